/* global TriremeTimeline */
/* The timeline of the last seconds: the simulator's drawing, filled with the batches that frames bring. */

import {el, keyed, many, milliseconds, setText} from "./dom.js";
import {SEALS, nameOf, titleOf} from "./state.js";

const WINDOW_NS = 12e9, FIRST_NS = 1.5e9, MOST_BARS = 3000, MOST_ROWS = 40;

/* What the drawing wants of one model: its queue, its instances, batches beside each other on lanes of their own, and,
   where each sequence has a row of an instance's batches, these rows. */
export function modelGroup(known, from) {
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
  sorted.push(...streamLanes(known.streams.filter((each) => each.end >= from)));
  const depths = gaps.length ? known.depths.filter(([at]) => at >= from) : depthsOf(batches);
  const queue = {kind: "queue", title: gaps.length ? "queue, now and then" : "queue", depths};
  const errors = new Map();
  for (const {t, reason, count} of known.refusals.filter((each) => each.t >= from)) {
    const text = `refused: ${reason.replaceAll("_", " ")}`, error = errors.get(text) || {text, times: 0, atNs: []};
    error.times += count;
    error.atNs.push(t);
    errors.set(text, error);
  }
  return {name: titleOf(model), lanes: [queue, ...sorted], errors: [...errors.values()]};
}

/* Requests to a decoupled model, from the start of their execution to their last response, beside each other. */
function streamLanes(streams) {
  const lanes = [];
  for (const {start, end, failed} of [...streams].sort((a, b) => a.start - b.start)) {
    let lane = lanes.find((each) => each.busyUntil <= start);
    if (!lane) lanes.push(lane = {kind: "stream", title: `stream ${lanes.length + 1}`, bars: [], busyUntil: 0});
    lane.busyUntil = end;
    lane.bars.push([start, end, failed ? "failed" : "answered", 0, 0, -1, 0]);
  }
  return lanes;
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
    this.rows = el("tbody");
    const heads = ["Model", "Batch", "Instance", "Rows", "Requests", "Longest wait", "Took", "Closed because"];
    const table = el("table", {}, el("caption", {class: "hidden-text"}, "The last batches"),
      el("thead", {}, el("tr", {}, ...heads.map((text) => el("th", {scope: "col"}, text)))), this.rows);
    this.details = el("details", {ontoggle: () => this.last && this.fillTable(this.last)}, el("summary", {}, "The last batches as a table"),
      el("div", {class: "scroll"}, table));
    content.append(
      el("h1", {}, "The last seconds"),
      el("p", {class: "soft"}, "Each bar is a batch on the instance that executed it, with the number of its rows; its colour says why it was closed."),
      el("p", {class: "buttons"}, this.button, this.hint),
      el("section", {class: "card", "aria-label": "Timeline"}, this.element), el("section", {class: "card"}, this.details));
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
    const busy = state.all.filter((known) => known.batches.some((each) => each.over >= from) || known.streams.some((each) => each.end >= from) || known.refusals.some((each) => each.t >= from));
    const groups = [...busy.map((known) => modelGroup(known, from)), ...gpuGroups(busy, from)];
    const missing = groups.some((group) => group.lanes.some((lane) => (lane.gaps || []).length));
    const notes = groups.length ? [] : ["No batch was executed in these seconds."];
    if (missing) notes.push("Dotted: batches that are not drawn, since a busy model has more than a page can show.");
    return {reasons: SEALS, runs: [{title: "The last seconds", startNs: from, endNs: end, notes, groups}]};
  }

  update() { if (!this.stopped && this.details.open && this.last) this.fillTable(this.last); }

  fillTable(state) {
    const all = state.all.flatMap((known) => known.batches.slice(-MOST_ROWS).map((batch) => [known.model, batch]));
    const rows = all.sort((a, b) => b[1].over - a[1].over).slice(0, MOST_ROWS);
    keyed(this.rows, rows, ([model, batch]) => `${nameOf(model)} ${batch.number}`, ([model, batch]) => {
      const wait = batch.waits.length ? milliseconds(Math.max(...batch.waits)) : "–";
      const cells = [batch.number, batch.instance, batch.rows, batch.requests, wait, milliseconds((batch.end - batch.start) / 1000), SEALS[batch.seal]];
      return el("tr", {}, el("th", {scope: "row"}, titleOf(model)), ...cells.map((cell) => el("td", {}, `${cell}`)));
    }, () => {});
    setText(this.details.firstChild, rows.length ? `The last ${many(rows.length, "batch", "batches")} as a table` : "The last batches as a table");
  }
}

