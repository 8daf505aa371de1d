/* The models: one line each, and one of them in detail. */

import {PART_COLOURS, SEAL_COLOURS, bars, spark, stack, swatch} from "./charts.js";
import {bytes, el, keyed, many, milliseconds, number, paintState, setText} from "./dom.js";
import {PARTS, SEALS, nameOf, percentiles, titleOf} from "./state.js";

const link = (model) => `#models/${encodeURIComponent(model.name)}/${model.version}`;
const sealParts = (sealed) => SEALS.map((name) => [name, sealed[name] || 0, SEAL_COLOURS[name]]);

function tile(title, hint) {
  const value = el("dd");
  const made = el("div", {class: "tile", title: hint}, el("dt", {}, title), value);
  made.say = (text) => setText(value, text);
  return made;
}

const COLUMNS = [
  ["Model", ""], ["State", ""], ["Requests/s", "", "requests a second; the curve is the last minute"], ["Rows a batch", "number", "on average, of how many at most"],
  ["Queue", "number", "requests that wait now"], ["Median", "number", "half of the requests took no longer, of those seen last"],
  ["p99", "number", "99 of 100 requests took no longer"], ["Batches closed", "", "why batches were not larger; the colours are below"],
  ["Refused, failed", "number", "requests of the last minute"], ["Instances", "number", "alive, of how many"],
];

export class ModelsView {
  title = "Models";

  constructor(content) {
    this.tiles = {
      rate: tile("Requests a second"), inflight: tile("In flight", "accepted and not answered yet"),
      bytes: tile("Bytes in flight", "size of their inputs"), refused: tile("Refused a second"), ready: tile("Models ready"),
    };
    this.body = el("tbody");
    const heads = COLUMNS.map(([text, kind, hint]) => el("th", {scope: "col", class: kind, title: hint}, text));
    this.others = el("p", {class: "soft"});
    this.table = el("table", {}, el("caption", {class: "hidden-text"}, "Models and what they do"),
      el("thead", {}, el("tr", {}, ...heads)), this.body);
    this.empty = el("p", {class: "card", hidden: true}, "No model is ready. Put one into the repository, or load one in Settings.");
    content.append(
      el("h1", {}, "What the server does"),
      el("p", {class: "soft"}, "Requests wait in their model's queue until a batch of them is formed and an instance executes it."),
      el("dl", {class: "tiles"}, ...Object.values(this.tiles)),
      el("section", {class: "card", "aria-label": "Models"}, el("div", {class: "scroll"}, this.table), this.legend()), this.empty, this.others);
  }

  legend() {
    return el("ul", {class: "legend", "aria-hidden": "true"}, ...SEALS.map((name) => el("li", {}, swatch(SEAL_COLOURS[name]), name)));
  }

  update(state) {
    const {frame} = state;
    this.tiles.rate.say(number(state.rate(state.total, "requests")));
    this.tiles.refused.say(number(state.rate(state.total, "refused")));
    this.tiles.inflight.say(number(frame.inflight.requests));
    this.tiles.bytes.say(bytes(frame.inflight.bytes));
    const failed = frame.index.filter(([, , at, reason]) => at === "UNAVAILABLE" && reason && reason !== "unloaded");
    this.tiles.ready.say(`${frame.index.filter(([, , at]) => at === "READY").length} of ${frame.index.length}`);
    const rows = [...state.all, ...failed.map(([name, version, at, reason]) => ({failed: {name, version, at, reason}}))];
    keyed(this.body, rows, (row) => (row.failed ? `failed ${row.failed.name}\n${row.failed.version}` : nameOf(row.model)),
      (row) => this.row(row), (node, row) => node.fill(state, row));
    this.table.hidden = !rows.length;
    this.empty.hidden = rows.length > 0;
    setText(this.others, frame.more ? `and ${many(frame.more, "model", "models")} more` : "");
  }

  row(row) {
    const head = el("th", {scope: "row"}), pill = el("span"), cells = COLUMNS.slice(2).map(([, kind]) => el("td", {class: kind}));
    const [rate, batch, queue, median, p99, sealed, refused, instances] = cells;
    const made = el("tr", {}, head, el("td", {}, pill), ...cells);
    if (row.failed) {
      head.append(`${row.failed.name} ${row.failed.version && `v${row.failed.version}`}`);
      cells[0].colSpan = cells.length;
      cells.slice(1).forEach((cell) => cell.remove());
      made.fill = (_state, {failed}) => {
        paintState(pill, failed.at, failed.reason);
        setText(rate, failed.reason);
      };
      return made;
    }
    head.append(el("a", {href: link(row.model)}, titleOf(row.model)));
    const curve = spark(), text = el("span"), parts = stack(), said = el("span", {class: "hidden-text"});
    rate.append(el("div", {class: "rate"}, text, curve));
    sealed.append(parts, said);
    made.fill = (state, known) => {
      const {model} = known, lately = state.lately(known), seen = percentiles(known.samples, [0.5, 0.99]);
      const entry = state.frame.index.find(([name, version]) => name === model.name && version === `${model.version}`);
      paintState(pill, entry ? entry[2] : "READY", entry ? entry[3] : "");
      setText(text, number(state.rate(known.history, "requests")));
      curve.draw(state.curve(known.history, "requests"));
      const most = model.batching && model.batching.maxBatchSize;
      setText(batch, lately.executions ? `${number(lately.rows / lately.executions)}${most ? ` of ${most}` : ""}` : "–");
      setText(queue, number(model.pending));
      const mean = lately.success ? lately.ns.total / lately.success / 1000 : null;
      setText(median, seen ? milliseconds(seen[0][0]) : mean ? `⌀ ${milliseconds(mean)}` : "–");
      setText(p99, seen ? milliseconds(seen[0][1]) : "–");
      parts.draw(sealParts(lately.sealed));
      setText(said, SEALS.filter((name) => lately.sealed[name]).map((name) => `${name} ${lately.sealed[name]}`).join(", ") || "none");
      setText(refused, number(Object.values(lately.refused).reduce((all, each) => all + each, lately.fail)));
      setText(instances, model.instances[1] ? `${model.instances[0]} of ${model.instances[1]}` : "–");
    };
    return made;
  }
}

export class ModelView {
  constructor(content, name, version) {
    this.name = name;
    this.version = version;
    this.title = name;
    this.pill = el("span");
    this.why = el("ul", {class: "why"});
    this.gone = el("p", {class: "notice", hidden: true}, "This version is not ready now.");
    this.split = stack();
    this.latency = el("tbody");
    this.sizes = bars("Batches by size");
    this.seals = bars("Batches by the reason for which they were closed");
    this.refusals = bars("Refused requests by reason");
    this.facts = el("p", {class: "soft"});
    this.seen = el("p", {class: "soft"});
    this.noRefusals = el("p", {class: "soft"}, "none in the last minute");
    const heads = ["", "mean", "half", "90 %", "99 %"].map((text) => el("th", {scope: "col", class: text ? "number" : ""}, text));
    content.append(
      el("p", {}, el("a", {href: "#models"}, "← All models")),
      el("h1", {}, name, " ", el("span", {class: "soft"}, `version ${version} `), this.pill), this.facts,
      el("p", {}, el("a", {href: `#try/${encodeURIComponent(name)}/${version}`}, "Send it a request")), this.gone,
      el("section", {class: "card"}, el("h2", {}, "Why are its batches as they are?"), this.why),
      el("div", {class: "cards"},
        el("section", {class: "card wide"}, el("h2", {}, "Where the time of a request goes"), this.split,
          el("ul", {class: "legend", "aria-hidden": "true"}, ...PARTS.map(([part, text]) => el("li", {}, swatch(PART_COLOURS[part]), text))),
          el("div", {class: "scroll"}, el("table", {}, el("caption", {class: "hidden-text"}, "Latency by part"),
            el("thead", {}, el("tr", {}, ...heads)), this.latency)), this.seen),
        el("section", {class: "card"}, el("h2", {}, "Rows in its batches"), this.sizes),
        el("section", {class: "card"}, el("h2", {}, "Why batches were closed"), this.seals),
        el("section", {class: "card"}, el("h2", {}, "Requests refused"), this.refusals, this.noRefusals)));
  }

  update(state) {
    const known = state.find(this.name, this.version);
    this.gone.hidden = Boolean(known);
    if (!known) return paintState(this.pill, "UNAVAILABLE");
    const {model} = known, lately = state.lately(known);
    const entry = state.frame.index.find(([name, version]) => name === model.name && version === `${model.version}`);
    paintState(this.pill, entry ? entry[2] : "READY", entry ? entry[3] : "");
    setText(this.facts, facts(model, known, state));
    keyed(this.why, model.why, (text) => text.replace(/\d+/g, "#"), () => el("li"), (node, text) => setText(node, text));
    this.updateLatency(known, lately);
    const share = (count, of) => `${number(count)} (${number(100 * count / of)} %)`;
    const all = model.sizes.reduce((total, [, count]) => total + count, 0) || 1;
    this.sizes.draw(ranges(model.sizes).map(([name, count]) => [name, count, share(count, all)]));
    const closed = sealParts(model.sealed).filter(([, count]) => count > 0);
    this.seals.draw(closed.map(([name, count, colour]) => [name, count, share(count, model.executions), colour]));
    const refused = Object.entries(lately.refused).filter(([, count]) => count > 0).sort((a, b) => b[1] - a[1]);
    this.refusals.draw(refused.map(([name, count]) => [name.replaceAll("_", " "), count, number(count), "var(--bad)"]));
    this.noRefusals.hidden = refused.length > 0;
  }

  updateLatency(known, lately) {
    const seen = percentiles(known.samples), times = lately.success;
    const rows = [["whole request", 0, "total"], ...PARTS.map(([part, text], at) => [text, at + 1, part])];
    keyed(this.latency, rows, ([text]) => text, ([text, at, part]) => {
      const head = el("th", {scope: "row"}, ...(at ? [swatch(PART_COLOURS[part])] : []), text);
      return el("tr", {}, head, ...[1, 2, 3, 4].map(() => el("td", {class: "number"})));
    }, (node, [, at, part]) => {
      const values = [times ? lately.ns[part] / times / 1000 : null, ...(seen ? seen[at] : [null, null, null])];
      values.forEach((value, column) => setText(node.children[column + 1], milliseconds(value)));
    });
    this.split.draw(PARTS.map(([part, text]) => [text, times ? Math.max(0, lately.ns[part]) : 0, PART_COLOURS[part]]));
    setText(this.seen, known.samples.length
      ? `Means are of the last ${Math.round(lately.seconds)} s, percentiles of ${many(known.samples.length, "request", "requests")} seen last.`
      : "Percentiles come with the first requests.");
  }
}

/* Sizes one by one if there are few, else in ranges: 1, 2, 3 to 4, 5 to 8 and so on. */
function ranges(sizes) {
  if (sizes.length <= 10) return sizes.map(([size, count]) => [many(size, "row", "rows"), count]);
  const found = new Map();
  for (const [size, count] of sizes) {
    const most = 2 ** Math.ceil(Math.log2(size)), name = most > 2 ? `${most / 2 + 1} to ${most} rows` : many(most, "row", "rows");
    found.set(name, (found.get(name) || 0) + count);
  }
  return [...found];
}

function facts(model, known, state) {
  const {batching} = model, parts = [`${number(state.rate(known.history, "requests"))} requests a second`, `${number(model.pending)} queued`];
  if (batching) {
    const kinds = {default: "no batching", dynamic: "dynamic batching", sequence: "sequence batching", ensemble: "ensemble"};
    parts.push(kinds[batching.scheduler]);
    if (batching.maxBatchSize) parts.push(`at most ${batching.maxBatchSize} rows`);
    if (batching.scheduler === "dynamic") parts.push(`queue delay ${batching.delayUs} µs`);
  }
  if (model.instances[1]) parts.push(`${model.instances[0]} of ${many(model.instances[1], "instance", "instances")}`);
  if (model.blocks) {
    parts.push(`${number(state.rate(known.history, "tokens"))} tokens a second`);
    parts.push(`${number(100 * model.blocks[0] / (model.blocks[1] || 1))} % of the memory for keys and values in use`);
  }
  if (model.restarts) parts.push(many(model.restarts, "restart", "restarts"));
  return parts.join(" · ");
}
