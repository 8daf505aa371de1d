/* Draws timelines into an element: who executed what when, and why. It needs nothing but the data.

   TriremeTimeline.mount(element, data) -> {update(data), refresh(data), show(fromNs, spanNs), zoom(factor), pan(part), reset()}

   `update` draws anew. `refresh` is for data that goes on: the zoom stays, and a view of the end follows the end.

   data = {
     reasons: [name, ...],                      what bars count in `reason`; -1 for none
     runs: [{                                   one, or several to be put side by side
       title, startNs, endNs, notes: [text, ...],    startNs is 0 if it is left out
       groups: [{                               a model, or a GPU
         name,
         note,                                 behind the name; may be left out
         lanes: [{kind: "queue", title, depths: [[atNs, depth], ...]}
               | {kind: "requests", title,      each track has bars that do not overlap; startNs is null for none
                  tracks: [[[receivedNs, startNs, endNs, result, instance], ...], ...],
                  gaps: [[startNs, endNs, count], ...]}
               | {kind: "batches" | "rows" | "stream", title,
                  bars: [[startNs, endNs, label, batch, rows, reason, isOther], ...],
                  gaps: [[startNs, endNs, count], ...]}, ...],      bars that are not drawn; may be left out
         errors: [{text, times, atNs: [...]}, ...]
       }, ...]
     }, ...],
     differences: [[model, what, first, second], ...]      of two runs
   }
*/
"use strict";
const TriremeTimeline = (() => {
  const GUTTER = 190, ROW = 24, BAR = 18, TRACK = 8, HEAD = 30, SCALE = 26;
  const SEALS = {
    "full": "#4e79a7", "preferred size": "#59a14f", "delay over": "#f28e2b", "instance idle": "#76b7b2",
    "next request incompatible": "#b07aa1", "no batching": "#8a8fc9", "drain": "#9c9c9c", "batch strategy": "#d4b106",
  };
  const RESULTS = {"answered": "#3f9c6b", "answered from the cache": "#5aa9d6", "not answered yet": "#c9a227"};
  const ERRORS = ["#e15759", "#b5179e", "#a8442a", "#d6336c", "#7b2d8e", "#ff7b72", "#8c1c13", "#e07a5f"];
  const UNITS = [["s", 1e9], ["ms", 1e6], ["us", 1e3], ["ns", 1]];

  function node(name, attributes, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  function duration(ns) {
    const [unit, size] = UNITS.find(([, each]) => Math.abs(ns) >= each) || UNITS[3];
    return `${+(ns / size).toPrecision(6)} ${unit}`;
  }

  function tickOf(spanNs, count) {
    const raw = spanNs / Math.max(1, count), power = 10 ** Math.floor(Math.log10(Math.max(raw, 1)));
    return power * ([1, 2, 5, 10].find((each) => each * power >= raw) || 10);
  }

  function inkOn(colour) {
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
    return r * 0.299 + g * 0.587 + b * 0.114 > 140 ? "#111" : "#fff";
  }

  function aboutRequest(received, start, end, result, instance) {
    const lines = [`request: ${result}`, `${duration(received)} to ${duration(end)}, ${duration(end - received)}`];
    if (start === null) return lines;
    return [...lines, `waited ${duration(start - received)}, then ${duration(end - start)}${instance ? ` on ${instance}` : ""}`];
  }

  class Panel {
    constructor(owner, run) {
      this.owner = owner;
      this.run = run;
      this.closed = new Set();
      this.canvas = node("canvas", {
        tabindex: "0", role: "img",
        "aria-label": `${run.title}. Arrow keys move, plus and minus zoom, 0 shows all.`,
      });
      const titles = owner.data.runs.length > 1 ? [node("h2", {}, run.title)] : [];
      this.element = node("section", {class: "tt-panel"}, ...titles, this.canvas);
      this.take(run);
      this.listen();
    }

    take(run) {
      this.run = run;
      const notes = (run.notes || []).map((note) => node("p", {class: "tt-note"}, note));
      for (const before of this.element.querySelectorAll(".tt-note")) before.remove();
      this.element.append(...notes);
    }

    listen() {
      const canvas = this.canvas, owner = this.owner;
      canvas.addEventListener("keydown", (event) => owner.key(event));
      canvas.addEventListener("wheel", (event) => {
        if (!(event.ctrlKey || event.metaKey || event.shiftKey)) return;
        event.preventDefault();
        owner.zoom(Math.exp(-(event.deltaY || event.deltaX) / 400), this.timeAt(event.offsetX));
      }, {passive: false});
      let from = null;
      canvas.addEventListener("pointerdown", (event) => {
        const row = this.rowAt(event.offsetY);
        if (row && row.kind === "group") {
          if (!this.closed.delete(row.name)) this.closed.add(row.name);
          this.draw();
        } else if (event.offsetX > GUTTER) {
          from = event.offsetX;
          canvas.setPointerCapture(event.pointerId);
        }
      });
      canvas.addEventListener("pointermove", (event) => {
        if (from === null) return this.point(event);
        owner.pan((from - event.offsetX) / this.width());
        from = event.offsetX;
      });
      canvas.addEventListener("pointerup", () => { from = null; });
      canvas.addEventListener("pointerleave", () => owner.hideTip());
      canvas.addEventListener("dblclick", (event) => owner.zoom(2, this.timeAt(event.offsetX)));
    }

    width() { return Math.max(40, this.canvas.clientWidth - GUTTER - 8); }
    x(ns) { return GUTTER + (ns - this.owner.from) / (this.owner.to - this.owner.from) * this.width(); }
    timeAt(x) { return this.owner.from + (x - GUTTER) / this.width() * (this.owner.to - this.owner.from); }

    rows() {
      const rows = [];
      let top = SCALE;
      const add = (row, height) => { rows.push({...row, top, height}); top += height; };
      for (const group of this.run.groups) {
        add({kind: "group", name: group.name, note: group.note || "", errors: group.errors || []}, HEAD);
        if (this.closed.has(group.name)) continue;
        for (const lane of group.lanes) add(lane, lane.tracks ? Math.max(ROW, 8 + TRACK * lane.tracks.length) : ROW);
        if ((group.errors || []).length) add({kind: "errors", title: "refused or failed", errors: group.errors}, ROW);
      }
      this.height = top + 6;
      return rows;
    }

    rowAt(y) { return this.drawn.find((row) => y >= row.top && y < row.top + row.height); }

    draw() {
      const rows = this.drawn = this.rows(), canvas = this.canvas, scale = window.devicePixelRatio || 1;
      canvas.style.height = `${this.height}px`;
      canvas.width = Math.round(canvas.clientWidth * scale);
      canvas.height = Math.round(this.height * scale);
      const style = getComputedStyle(canvas), pen = this.pen = canvas.getContext("2d");
      const colour = (name) => style.getPropertyValue(name).trim();
      this.ink = colour("--tt-ink"); this.soft = colour("--tt-soft"); this.line = colour("--tt-line");
      this.band = colour("--tt-band"); this.mark = colour("--tt-mark");
      pen.setTransform(scale, 0, 0, scale, 0, 0);
      pen.clearRect(0, 0, canvas.clientWidth, this.height);
      pen.font = "12px ui-monospace, monospace";
      pen.textBaseline = "middle";
      this.drawScale();
      for (const row of rows) {
        const middle = row.top + row.height / 2;
        if (row.kind === "group") {
          pen.fillStyle = this.band;
          pen.fillRect(0, row.top + 3, canvas.clientWidth, row.height - 6);
          pen.fillStyle = this.ink;
          pen.font = "bold 12px ui-monospace, monospace";
          pen.fillText(`${this.closed.has(row.name) ? "▸" : "▾"} ${row.name}`, 6, middle);
          const named = pen.measureText(`▾ ${row.name}`).width;
          pen.font = "12px ui-monospace, monospace";
          pen.fillStyle = this.soft;
          pen.fillText(row.note, Math.max(GUTTER, named + 18), middle);
          continue;
        }
        pen.fillStyle = this.soft;
        pen.fillText(this.fit(row.title, GUTTER - 24), 18, middle);
        pen.save();
        pen.beginPath();
        pen.rect(GUTTER, row.top, this.width(), row.height);
        pen.clip();
        if (row.kind === "queue") this.drawQueue(row);
        else if (row.kind === "errors") this.drawErrors(row);
        else if (row.kind === "requests") this.drawRequests(row);
        else this.drawBars(row);
        pen.restore();
      }
    }

    fit(text, room) {
      if (this.pen.measureText(text).width <= room) return text;
      let end = text.length;
      while (end > 1 && this.pen.measureText(`${text.slice(0, end)}…`).width > room) end -= 1;
      return `${text.slice(0, end)}…`;
    }

    drawScale() {
      const {from, to} = this.owner, tick = tickOf(to - from, this.width() / 90), pen = this.pen;
      const [unit, size] = UNITS.find(([, each]) => tick >= each) || UNITS[3];
      pen.textAlign = "center";
      for (let at = Math.ceil(from / tick) * tick; at <= to; at += tick) {
        const x = this.x(at);
        pen.fillStyle = this.line;
        pen.fillRect(x, SCALE - 6, 1, this.height - SCALE);
        pen.fillStyle = this.soft;
        pen.fillText(`${+(at / size).toPrecision(10)} ${unit}`, Math.min(x, GUTTER + this.width() - 20), 10);
      }
      pen.textAlign = "left";
    }

    drawQueue(row) {
      const pen = this.pen, bottom = row.top + ROW - 3, most = Math.max(1, ...row.depths.map(([, depth]) => depth));
      let depth = 0;
      pen.beginPath();
      pen.moveTo(GUTTER, bottom);
      for (const [at, next] of row.depths) {
        const x = Math.max(GUTTER, Math.min(this.x(at), GUTTER + this.width()));
        pen.lineTo(x, bottom - BAR * depth / most);
        depth = next;
        pen.lineTo(x, bottom - BAR * depth / most);
      }
      const end = Math.min(this.x(this.run.endNs), GUTTER + this.width());
      pen.lineTo(end, bottom - BAR * depth / most);
      pen.lineTo(end, bottom);
      pen.fillStyle = this.band;
      pen.strokeStyle = this.soft;
      pen.fill();
      pen.stroke();
    }

    drawErrors(row) {
      for (const error of row.errors) {
        this.pen.fillStyle = this.owner.colourOfError(error.text);
        for (const at of error.atNs) this.pen.fillRect(this.x(at) - 1, row.top + 4, 3, ROW - 8);
      }
    }

    drawGaps(row, y) {
      this.pen.fillStyle = this.line;
      for (const [start, end] of row.gaps || []) {
        for (let x = this.x(start); x < Math.min(this.x(end), GUTTER + this.width()); x += 6) {
          if (x >= GUTTER) this.pen.fillRect(x, y, 3, 2);
        }
      }
    }

    drawRequests(row) {
      const pen = this.pen, {from, to} = this.owner;
      this.drawGaps(row, row.top + row.height - 3);
      row.tracks.forEach((track, at) => {
        const y = row.top + 3 + TRACK * at;
        for (const [received, start, end, result] of track) {
          if (end < from || received > to) continue;
          const first = this.x(received), middle = start === null ? first : this.x(start), last = Math.max(this.x(end), middle + 1.5);
          pen.fillStyle = this.soft;
          pen.fillRect(first, y + 2, middle - first, TRACK - 6);
          pen.fillStyle = RESULTS[result] || this.owner.colourOfError(result);
          pen.fillRect(middle, y, last - middle, TRACK - 2);
        }
      });
    }

    drawBars(row) {
      const pen = this.pen, {from, to} = this.owner;
      this.drawGaps(row, row.top + ROW / 2 - 1);
      for (const [start, end, label, , , reason, isOther] of row.bars) {
        if (end < from || start > to) continue;
        const x = this.x(start), width = Math.max(1.5, this.x(end) - x);
        const colour = SEALS[this.owner.data.reasons[reason]] || "#8899aa";
        pen.globalAlpha = row.kind === "rows" ? 0.55 : 1;
        pen.fillStyle = colour;
        pen.fillRect(x, row.top + 3, Math.max(1, width - 0.7), BAR);
        pen.globalAlpha = 1;
        if (isOther) {
          pen.fillStyle = this.mark;
          pen.fillRect(x, row.top + 3 + BAR, Math.max(1, width - 0.7), 3);
        }
        const left = Math.max(x, GUTTER), room = Math.min(x + width, GUTTER + this.width()) - left - 6;
        if (room > 10) {
          const text = this.fit(label, room);
          if (text.length > 1 || text === label) {
            pen.fillStyle = row.kind === "rows" ? this.ink : inkOn(colour);
            pen.fillText(text, left + 3, row.top + 3 + BAR / 2);
          }
        }
      }
    }

    point(event) {
      const row = this.rowAt(event.offsetY), at = this.timeAt(event.offsetX), reach = this.timeAt(2) - this.timeAt(0);
      if (!row || event.offsetX < GUTTER) return this.owner.hideTip();
      let lines = null;
      if (row.kind === "queue") {
        const before = row.depths.filter(([time]) => time <= at).pop();
        lines = [`${row.title}: ${before ? before[1] : 0} at ${duration(at)}`];
      } else if (row.kind === "errors") {
        const near = row.errors.filter((each) => each.atNs.some((time) => Math.abs(time - at) <= 2 * reach));
        if (near.length) lines = near.map((each) => `${each.times}: ${each.text}`);
      } else if (row.kind === "requests") {
        const track = row.tracks[Math.floor((event.offsetY - row.top - 3) / TRACK)] || [];
        const bar = track.find(([received, , end]) => received - reach <= at && at <= end + reach);
        if (bar) lines = aboutRequest(...bar);
      } else if (row.bars) {
        const bar = row.bars.find(([start, end]) => start - reach <= at && at <= end + reach);
        if (bar) {
          const [start, end, label, batch, rows, reason, isOther] = bar;
          lines = [`${label}`, `${duration(start)} to ${duration(end)}, ${duration(end - start)}`];
          if (batch) lines.push(`batch ${batch}${rows ? `, ${rows} rows` : ""}`);
          if (reason >= 0) lines.push(`closed: ${this.owner.data.reasons[reason]}`);
          if (isOther) lines.push("not so in the other run");
        }
      }
      const gap = !lines && (row.gaps || []).find(([start, end]) => start <= at && at <= end);
      if (gap) lines = [`${gap[2]} ${row.kind === "requests" ? "requests" : "batches"} that are not drawn`];
      if (lines) this.owner.showTip(lines, event);
      else this.owner.hideTip();
    }
  }

  class Timeline {
    constructor(element, data) {
      this.element = element;
      this.tip = node("div", {class: "tt-tip", role: "status", hidden: ""});
      this.update(data);
      new ResizeObserver(() => this.draw()).observe(element);
      window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    }

    update(data) {
      this.data = data;
      this.measure();
      this.from = this.begin;
      this.to = this.end;
      this.panels = data.runs.map((run) => new Panel(this, run));
      const panels = node("div", {class: "tt-panels"}, ...this.panels.map((panel) => panel.element));
      this.element.classList.add("tt");
      this.element.replaceChildren(this.controls(), panels, this.legend(), ...this.differences(), this.tip);
      this.draw();
    }

    measure() {
      const {runs} = this.data;
      this.begin = Math.min(...runs.map((run) => run.startNs || 0));
      this.end = Math.max(this.begin + 1, ...runs.map((run) => run.endNs));
      const groups = runs.flatMap((run) => run.groups);
      this.results = new Set(groups.flatMap((group) => group.lanes.flatMap(
        (lane) => (lane.tracks || []).flatMap((track) => track.map((bar) => bar[3])))));
      this.errors = [...new Set([...groups.flatMap((group) => (group.errors || []).map((error) => error.text)),
        ...[...this.results].filter((text) => !RESULTS[text])])];
    }

    refresh(data) {
      const span = this.to - this.from, follows = this.to >= this.end, whole = span >= this.end - this.begin;
      this.data = data;
      this.measure();
      this.panels.forEach((panel, at) => panel.take(data.runs[at]));
      const legend = this.legend(), before = this.element.querySelector(".tt-legend");
      if (before.textContent !== legend.textContent) before.replaceWith(legend);
      this.look(follows ? this.end - span : this.from, whole ? this.end - this.begin : span);
    }

    controls() {
      const button = (text, title, act) => {
        const made = node("button", {type: "button", title, "aria-label": title}, text);
        made.addEventListener("click", act);
        return made;
      };
      return node("div", {class: "tt-controls"},
        button("−", "Zoom out (-)", () => this.zoom(0.5)), button("+", "Zoom in (+)", () => this.zoom(2)),
        button("←", "Earlier (left arrow)", () => this.pan(-0.25)),
        button("→", "Later (right arrow)", () => this.pan(0.25)),
        button("All", "Show all (0)", () => this.reset()),
        node("span", {}, "Drag to move, Ctrl and wheel to zoom; click a model to fold it."));
    }

    legend() {
      const used = new Set(this.data.runs.flatMap((run) => run.groups.flatMap((group) => group.lanes.flatMap(
        (lane) => (lane.bars || []).map((bar) => this.data.reasons[bar[5]])))));
      const entry = (colour, text) => {
        const swatch = node("span", {class: "tt-swatch"});
        swatch.style.background = colour;  // a style attribute is not for pages with a strict policy
        return node("li", {}, swatch, text);
      };
      const seals = Object.keys(SEALS).filter((name) => used.has(name));
      const marked = this.data.differences ? [entry("var(--tt-mark)", "below a bar: not so in the other run")] : [];
      const lists = [node("h3", {}, "Batches closed because of"),
        node("ul", {}, ...seals.map((name) => entry(SEALS[name], name)), ...marked)];
      const results = Object.keys(RESULTS).filter((text) => this.results.has(text));
      if (results.length) {
        lists.push(node("h3", {}, "Requests"), node("ul", {}, ...results.map((text) => entry(RESULTS[text], text))));
      }
      if (this.errors.length) {
        const said = this.errors.map((text) => {
          const times = this.data.runs.map((run) => run.groups.flatMap((group) => group.errors || [])
            .filter((error) => error.text === text).map((error) => `${error.times}`).join("; ") || "not at all");
          const counted = times.some((each) => each !== "not at all");
          return entry(this.colourOfError(text), counted ? `${text} (${times.join(" | ")})` : text);
        });
        lists.push(node("h3", {}, "Refused or failed"), node("ul", {class: "tt-errors"}, ...said));
      }
      return node("div", {class: "tt-legend"}, ...lists);
    }

    differences() {
      const found = this.data.differences;
      if (!found) return [];
      const shown = (value) => value === null ? "–" : `${+value.toFixed(3)}`;
      const lines = found.map(([model, what, first, second]) => {
        const change = (second || 0) - (first || 0);
        const part = first ? ` (${change > 0 ? "+" : ""}${(100 * change / first).toFixed(1)} %)` : "";
        const cells = [model, what, shown(first), shown(second), change ? `${change > 0 ? "+" : ""}${shown(change)}${part}` : "="];
        return node("tr", change ? {class: "tt-changed"} : {}, ...cells.map((cell) => node("td", {}, cell)));
      });
      const heads = ["model", "", ...this.data.runs.map((run) => run.title), "difference"];
      return [node("h3", {}, "Side by side"), node("table", {class: "tt-differences"},
        node("thead", {}, node("tr", {}, ...heads.map((head) => node("th", {}, head)))), node("tbody", {}, ...lines))];
    }

    colourOfError(text) { return ERRORS[this.errors.indexOf(text) % ERRORS.length]; }

    draw() { for (const panel of this.panels) panel.draw(); }

    show(from, span) {
      this.hideTip();
      this.look(from, span);
    }

    look(from, span) {
      const most = Math.max(1, Math.min(span, this.end - this.begin));
      this.from = Math.max(this.begin, Math.min(from, this.end - most));
      this.to = this.from + most;
      this.draw();
    }

    zoom(factor, around = (this.from + this.to) / 2) {
      const span = (this.to - this.from) / factor;
      this.show(around - (around - this.from) / factor, Math.max(span, 100));
    }

    pan(part) { this.show(this.from + part * (this.to - this.from), this.to - this.from); }

    reset() { this.show(this.begin, this.end - this.begin); }

    key(event) {
      const acts = {
        ArrowLeft: () => this.pan(-0.1), ArrowRight: () => this.pan(0.1), PageUp: () => this.pan(-0.9),
        PageDown: () => this.pan(0.9), "+": () => this.zoom(1.5), "=": () => this.zoom(1.5), "-": () => this.zoom(1 / 1.5),
        "0": () => this.reset(), Home: () => this.show(this.begin, this.to - this.from),
        End: () => this.show(this.end, this.to - this.from),
      };
      if (acts[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) {
        event.preventDefault();
        acts[event.key]();
      }
    }

    showTip(lines, event) {
      this.tip.replaceChildren(...lines.map((line) => node("div", {}, line)));
      this.tip.hidden = false;
      const left = Math.min(event.clientX + 14, window.innerWidth - this.tip.offsetWidth - 8);
      this.tip.style.left = `${Math.max(4, left)}px`;
      this.tip.style.top = `${event.clientY + 16}px`;
    }

    hideTip() { this.tip.hidden = true; }
  }

  return {mount: (element, data) => new Timeline(element, data)};
})();
