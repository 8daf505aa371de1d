/* What is known of the server: the last frame, counters of the last minute, and single batches and requests of the last
   seconds. */

import {OPEN, RESULTS} from "./requests.js";

const HISTORY_NS = 61e9, STEP_NS = 0.9e9, RATE_NS = 4.5e9, BATCHES_NS = 30e9, MOST_BATCHES = 4000, MOST_SAMPLES = 3000;

export const SEALS = ["full", "preferred size", "delay over", "instance idle", "next request incompatible", "no batching", "drain", "batch strategy"];
export const PARTS = [["queue", "waiting in the queue"], ["input", "gathering inputs"], ["compute", "the model"], ["output", "handing out outputs"]];

export const nameOf = (model) => `${model.namespace}\n${model.name}\n${model.version}`;
export const titleOf = (model) => `${model.name} v${model.version}`;

function sum(values) { return Object.values(values).reduce((all, each) => all + each, 0); }

function counters(model) {
  return {
    requests: model.success + model.fail, success: model.success, fail: model.fail, rows: model.rows, executions: model.executions,
    ns: model.ns, sealed: model.sealed, alone: model.alone, refused: model.refused, refusals: sum(model.refused),
    tokens: model.tokens || 0,
  };
}

function minus(now, before) {
  return Object.fromEntries(Object.keys({...now, ...before}).map((key) => [key, (now[key] || 0) - (before[key] || 0)]));
}

export class State {
  constructor() { this.clear(); }

  clear() {
    this.frame = null;
    this.about = null;
    this.models = new Map();
    this.total = [];
    this.refusals = [];
  }

  take(frame) {
    if (this.frame && frame.t < this.frame.t) {  // the stream began anew
      this.models.clear();
      this.total = [];
      this.refusals = [];
    }
    this.refusals = takeRefusals(this.refusals, frame.refused, this.frame && this.frame.refused, frame.t);
    this.frame = frame;
    const there = new Set();
    for (const model of frame.models) {
      const key = nameOf(model);
      there.add(key);
      let known = this.models.get(key);
      if (!known || known.model.executions > model.executions || known.model.success > model.success) {
        this.models.set(key, known = {model, history: [], batches: [], samples: [], refusals: [], depths: [], requests: [], open: [], openUnseen: 0, unseen: []});
      }
      this.takeModel(known, model, frame.t);
    }
    for (const key of this.models.keys()) if (!there.has(key)) this.models.delete(key);
    const requests = frame.models.reduce((all, each) => all + each.success + each.fail, 0);
    const refused = sum(frame.refused) + frame.models.reduce((all, each) => all + sum(each.refused), 0);
    push(this.total, {t: frame.t, requests, refused}, frame.t);
  }

  takeModel(known, model, t) {
    const before = known.model, last = known.depths.length ? known.depths[known.depths.length - 1][0] : t;
    known.model = model;
    push(known.history, {t, ...counters(model)}, t);
    known.refusals = takeRefusals(known.refusals, model.refused, before.refused, t);
    known.depths.push([t, model.pending]);
    for (const batch of model.batches) {
      const [number, instance, gpu, rows, seal, start, infer, output, end, over, requests, failed, waits, totals, slots] = batch;
      known.batches.push({number, instance, gpu, rows, seal, start, infer, output, end, over, requests, failed, waits, totals, slots});
      const parts = [(infer - start) / 1000, (output - infer) / 1000, (end - output) / 1000];
      totals.forEach((total, at) => known.samples.push([total, waits[at], ...parts]));
    }
    this.takeRequests(known, model, model.ended - before.ended, last, t);
    const old = t - BATCHES_NS;
    known.batches = known.batches.filter((each) => each.over >= old).slice(-MOST_BATCHES);
    known.samples = known.samples.slice(-MOST_SAMPLES);
    known.requests = known.requests.filter((each) => each.end >= old).slice(-MOST_BATCHES);
    known.unseen = known.unseen.filter((each) => each[1] >= old);
    known.depths = known.depths.filter((each) => each[0] >= old);
  }

  /* Of `ended` requests since the last frame some are told of, with their batches or by themselves. */
  takeRequests(known, model, ended, last, t) {
    const decoupled = model.batching !== null && model.batching.decoupled, open = [];
    let told = decoupled ? 0 : model.batches.reduce((sum, batch) => sum + batch[13].length, 0);
    for (const [received, start, end, result, instance] of model.requests) {
      if (end === null) open.push({received, start, end, result: OPEN, instance});
      else {
        told += 1;
        known.requests.push({received, start, end, result: RESULTS[result] || result, instance});
      }
    }
    known.open = open;
    known.openUnseen = Math.max(0, model.executing - open.length);
    if (ended > told) known.unseen.push([last, t, ended - told]);
  }

  get all() { return [...this.models.values()]; }

  find(name, version) { return this.all.find(({model}) => model.name === name && `${model.version}` === version); }

  rate(history, field) {
    const last = history[history.length - 1];
    const first = last && history.find((each) => each.t >= last.t - RATE_NS);
    return first && last.t > first.t ? (last[field] - first[field]) * 1e9 / (last.t - first.t) : null;
  }

  /* What was counted in the last minute, or since this page watches. */
  lately(known) {
    const first = known.history[0], last = known.history[known.history.length - 1];
    return {
      seconds: (last.t - first.t) / 1e9,
      executions: last.executions - first.executions, rows: last.rows - first.rows, success: last.success - first.success,
      fail: last.fail - first.fail,
      ns: minus(last.ns, first.ns), sealed: minus(last.sealed, first.sealed), alone: minus(last.alone, first.alone),
      refused: minus(last.refused, first.refused),
    };
  }

  /* Rates of requests for a small curve, one a second. */
  curve(history, field) {
    return history.slice(1).map((each, at) => Math.max(0, (each[field] - history[at][field]) * 1e9 / (each.t - history[at].t)));
  }
}

function takeRefusals(known, now, before, t) {
  const more = before ? Object.entries(minus(now, before)).filter(([, count]) => count > 0) : [];
  return [...known.filter((each) => each.t >= t - BATCHES_NS), ...more.map(([reason, count]) => ({t, reason, count}))];
}

/* Keep one value about every second, the newest always last. */
function push(history, value, t) {
  const before = history[history.length - 2];
  if (before && t - before.t < STEP_NS) history[history.length - 1] = value;
  else history.push(value);
  while (history.length > 1 && history[0].t < t - HISTORY_NS) history.shift();
}

/* Percentiles in microseconds of the requests seen last: of the whole, the queue, input, compute and output. */
export function percentiles(samples, shares = [0.5, 0.9, 0.99]) {
  if (!samples.length) return null;
  return [0, 1, 2, 3, 4].map((part) => {
    const sorted = samples.map((each) => each[part]).sort((a, b) => a - b);
    return shares.map((share) => sorted[Math.min(sorted.length - 1, Math.max(0, Math.ceil(share * sorted.length) - 1))]);
  });
}
