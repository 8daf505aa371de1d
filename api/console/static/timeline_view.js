/* global TriremeTimeline */
/* The timeline of the last seconds: the simulator's drawing, filled with the batches and requests that frames bring. */

import {el, keyed, many, milliseconds, setText} from "./dom.js";
import {requestLane, requestsOf} from "./requests.js";
import {SEALS, nameOf, titleOf} from "./state.js";

const WINDOW_NS = 12e9, FIRST_NS = 1.5e9, MOST_BARS = 3000, MOST_ROWS = 40;

/* What the drawing wants of one model: its requests, its queue, its instances, batches beside each other on lanes of
   their own, and, where each sequence has a row of an instance's batches, these rows. */
export function modelGroup(known, from, now) {
  const {model} = known;
  const batches = known.batches.filter((each) => each.over >= from).slice(-MOST_BARS).sort((a, b) => a.start - b.start);
  const lanes = new Map(), gaps = gapsOf(batches);
  for (const batch of batches) {
    let place = 0, name = batch.instance;
    while (lanes.has(name) && lanes.get(name).busyUntil > batch.start) name = `${batch.instance}, beside ${++place}`;
    if (!lanes.has(name)) lanes.set(name, {kind: "batches", title: name, bars: [], gaps, busyUntil: 0});
    const lane = lanes.get(name), label = batch.failed ? `${batch.rows} (${batch.failed} failed)` : `${batch.rows}`;
    lane.busyUntil = batch.end;
    lane.bars.push([batch.start, batch.end, label, batch.number, batch.rows, batch.seal, 0]);
    for (const slot of batch.slots) {
      const row = `${batch.instance}, row ${slot}`;  // behind its instance
      if (!lanes.has(row)) lanes.set(row, {kind: "rows", title: `row ${slot}`, bars: []});
      lanes.get(row).bars.push([batch.start, batch.end, "", batch.number, batch.rows, batch.seal, 0]);
    }
  }
  const sorted = [...lanes].sort(([a], [b]) => a.localeCompare(b, "en", {numeric: true})).map(([, lane]) => lane);
  const depths = gaps.length ? known.depths.filter(([at]) => at >= from) : depthsOf(batches);
  const queue = {kind: "queue", title: gaps.length ? "queue, now and then" : "queue", depths};
  const {lane, drawn, total} = requestLane(known, from, now);
  const note = total ? `${drawn.toLocaleString("en")} of ${many(total, "request", "requests")} drawn` : "";
  return {name: titleOf(model), note, lanes: [lane, queue, ...sorted], errors: errorsOf(known.refusals, from)};
}

function errorsOf(refusals, from) {
  const errors = new Map();
  for (const {t, reason, count} of refusals.filter((each) => each.t >= from)) {
    const text = `refused: ${reason.replaceAll("_", " ")}`, error = errors.get(text) || {text, times: 0, atNs: []};
    error.times += count;
    error.atNs.push(t);
    errors.set(text, error);
  }
  return [...errors.values()];
}

/* A GPU's work: the part of each batch that the model took. */
function gpuGroups(all, from) {
  const groups = new Map();
  for (const {model, batches} of all) {
    for (const batch of batches) {
      if (batch.gpu < 0 || batch.over < from) continue;
      const name = `GPU ${batch.gpu}`, title = `${batch.instance}`;
      if (!groups.has(name)) groups.set(name, {name, lanes: new Map(), errors: []});
      const lanes = groups.get(name).lanes;
      if (!lanes.has(title)) lanes.set(title, {kind: "stream", title, bars: []});
      lanes.get(title).bars.push([batch.infer, batch.output, model.name, batch.number, batch.rows, batch.seal, 0]);
    }
  }
  return [...groups.values()].map((group) => ({...group, lanes: [...group.lanes.values()]}));
}

/* Where numbers of batches are missing, some were executed that this page has not been told of. */
function gapsOf(batches) {
  const ordered = [...batches].sort((a, b) => a.number - b.number), gaps = [];
  ordered.slice(1).forEach((batch, at) => {
    const before = ordered[at], missing = batch.number - before.number - 1;
    if (missing > 0) gaps.push([before.end, Math.max(before.end, batch.start), missing]);
  });
  return gaps;
}

/* The queue's depth from when requests came and when their batches began. */
function depthsOf(batches) {
  const steps = batches.flatMap((batch) => batch.waits.flatMap((us) => [[batch.start - us * 1000, 1], [batch.start, -1]]));
  steps.sort((a, b) => a[0] - b[0] || b[1] - a[1]);
  let depth = 0;
  return steps.map(([at, step]) => [at, depth += step]);
}

export class TimelineView {
  title = "Timeline";

  constructor(content) {
    this.stopped = false;
    this.button = el("button", {type: "button", class: "main", "aria-pressed": "false", onclick: () => this.toggle()}, "Stop");
    this.hint = el("span", {class: "soft", role: "status"}, "live");
    this.element = el("div");
    this.batches = new Table("batch", "batches", ["Batch", "Instance", "Rows", "Requests", "Longest wait", "Took", "Closed because"], () => this.fill());
    this.requests = new Table("request", "requests", ["Instance", "Waited", "Took", "Result"], () => this.fill());
    content.append(
      el("h1", {}, "The last seconds"),
      el("p", {class: "soft"}, "Thin bars are requests: grey from arrival to execution, then in the colour of what became of them. Thick bars are batches on their instances, with the number of rows; the colour says why each was closed."),
      el("p", {class: "buttons"}, this.button, this.hint),
      el("section", {class: "card", "aria-label": "Timeline"}, this.element),
      el("section", {class: "card"}, this.requests.element, this.batches.element));
  }

  toggle() {
    this.stopped = !this.stopped;
    setText(this.button, this.stopped ? "Go on" : "Stop");
    this.button.setAttribute("aria-pressed", `${this.stopped}`);
    setText(this.hint, this.stopped ? "stopped: zoom and move as you like" : "live");
  }

  live(state) {
    if (this.stopped) return;
    this.last = state;
    const data = this.data(state);
    if (this.timeline) this.timeline.refresh(data);
    else {
      this.timeline = TriremeTimeline.mount(this.element, data);
      this.timeline.show(state.frame.t - FIRST_NS, FIRST_NS);
    }
  }

  data(state) {
    const end = state.frame.t, from = Math.max(0, end - WINDOW_NS);
    const busy = state.all.filter((known) => known.open.length || known.batches.some((each) => each.over >= from)
      || known.requests.some((each) => each.end >= from) || known.refusals.some((each) => each.t >= from));
    const groups = [...busy.map((known) => modelGroup(known, from, end)), ...gpuGroups(busy, from)];
    const errors = errorsOf(state.refusals, from);
    if (errors.length) groups.push({name: "for no model that is served", lanes: [], errors});
    const missing = groups.some((group) => group.lanes.some((lane) => (lane.gaps || []).length));
    const notes = groups.length ? [] : ["No request came in these seconds."];
    if (missing) notes.push("Dotted: batches and requests that are not drawn, since a busy model has more than a page can show.");
    return {reasons: SEALS, runs: [{title: "The last seconds", startNs: from, endNs: end, notes, groups}]};
  }

  update() { if (!this.stopped) this.fill(); }

  fill() {
    if (!this.last) return;
    const {all, frame} = this.last;
    this.batches.fill(() => all.flatMap(({model, batches}) => batches.slice(-MOST_ROWS).map((batch) => {
      const wait = batch.waits.length ? milliseconds(Math.max(...batch.waits)) : "–";
      const cells = [batch.number, batch.instance, batch.rows, batch.requests, wait, milliseconds((batch.end - batch.start) / 1000), SEALS[batch.seal]];
      return {model, key: `${batch.number}`, at: batch.over, cells};
    })));
    this.requests.fill(() => all.flatMap((known) => requestsOf(known, frame.t - WINDOW_NS, frame.t).slice(-MOST_ROWS).map((each) => {
      const {received, start, end, result, instance} = each;
      const [waited, took] = start === null ? [end - received, null] : [start - received, end - start];
      return {model: known.model, key: each.key, at: end, cells: [instance || "–", milliseconds(waited / 1000), milliseconds(took === null ? null : took / 1000), result]};
    })));
  }
}

/* The newest of something, filled only while it is open. */
class Table {
  constructor(one, several, heads, opened) {
    [this.one, this.several] = [one, several];
    this.rows = el("tbody");
    const table = el("table", {}, el("caption", {class: "hidden-text"}, `The last ${several}`),
      el("thead", {}, el("tr", {}, ...["Model", ...heads].map((text) => el("th", {scope: "col"}, text)))), this.rows);
    this.element = el("details", {ontoggle: opened}, el("summary", {}, `The last ${several} as a table`), el("div", {class: "scroll"}, table));
  }

  fill(find) {
    if (!this.element.open) return;
    const rows = find().sort((a, b) => b.at - a.at).slice(0, MOST_ROWS);
    keyed(this.rows, rows, ({model, key}) => `${nameOf(model)} ${key}`, ({model, cells}) => el("tr", {}, el("th", {scope: "row"}, titleOf(model)),
      ...cells.map((cell) => el("td", {}, `${cell}`))), () => {});
    setText(this.element.firstChild, rows.length ? `The last ${many(rows.length, this.one, this.several)} as a table` : `The last ${this.several} as a table`);
  }
}

