/* Single requests for the timeline: those that batches have answered, those that are noted by themselves, and open ones. */

const MOST_BARS = 3000, MOST_TRACKS = 32;

export const RESULTS = {"": "answered", cached: "answered from the cache"};
export const OPEN = "not answered yet";

/* All that is known of a model's requests that ended at `from` or later, oldest end first; then the open ones. A
   decoupled model's are noted by themselves, whatever batch they were in. */
export function requestsOf(known, from, now) {
  const decoupled = known.model.batching !== null && known.model.batching.decoupled;
  const answered = decoupled ? [] : known.batches.flatMap((batch) => batch.totals.map((total, at) => (
    {received: batch.over - total * 1000, start: batch.start, end: batch.over, result: RESULTS[""], instance: batch.instance, key: `${batch.number}.${at}`})));
  const others = known.requests.map((each, at) => ({...each, key: `${each.end} ${at}`}));
  const ended = [...answered, ...others].filter((each) => each.end >= from).sort((a, b) => a.end - b.end);
  return [...ended, ...known.open.map((each, at) => ({...each, end: Math.max(now, each.received), key: `open ${at}`}))];
}

/* The lane of one model's requests, those at the same time on tracks of their own; and how many of how many it shows. */
export function requestLane(known, from, now) {
  const tracks = [], all = requestsOf(known, from, now);
  let drawn = 0;
  for (const {received, start, end, result, instance} of all.slice(-MOST_BARS).sort((a, b) => a.received - b.received)) {
    let track = tracks.find((each) => each.busyUntil <= received);
    if (!track && tracks.length < MOST_TRACKS) tracks.push(track = Object.assign([], {busyUntil: 0}));
    if (!track) continue;
    track.busyUntil = end;
    track.push([received, start, end, result, instance]);
    drawn += 1;
  }
  const unseen = known.unseen.filter(([, end]) => end >= from);
  const total = unseen.reduce((sum, [, , count]) => sum + count, all.length + known.openUnseen);
  const decoupled = known.model.batching !== null && known.model.batching.decoupled;
  return {lane: {kind: "requests", title: decoupled ? "streams" : "requests", tracks, gaps: unseen}, drawn, total};
}
