/* Small drawings. Each has its numbers as text beside it, so it is hidden from screen readers. */

import {el, keyed, number, setText, svg} from "./dom.js";

export const SEAL_COLOURS = {
  "full": "#4e79a7", "preferred size": "#59a14f", "delay over": "#f28e2b", "instance idle": "#76b7b2",
  "next request incompatible": "#b07aa1", "no batching": "#8a8fc9", "drain": "#9c9c9c", "batch strategy": "#d4b106",
};
export const PART_COLOURS = {queue: "var(--queue)", input: "var(--input)", compute: "var(--compute)", output: "var(--output)"};

export function swatch(colour) {
  const made = el("span", {class: "swatch", "aria-hidden": "true"});
  made.style.background = colour;
  return made;
}

/* A curve of the last minute. */
export function spark() {
  const path = svg("path", {d: ""});
  const made = svg("svg", {class: "spark", viewBox: "0 0 90 22", preserveAspectRatio: "none", "aria-hidden": "true"}, path);
  made.draw = (values) => {
    const most = Math.max(1e-9, ...values), step = 90 / 60;
    const points = values.map((value, at) => `${(90 - (values.length - 1 - at) * step).toFixed(1)},${(20.5 - 19 * value / most).toFixed(1)}`);
    path.setAttribute("d", points.length > 1 ? `M${points.join("L")}` : "");
  };
  return made;
}

/* Parts of a whole, side by side: `parts` are [name, value, colour]. */
export function stack() {
  const made = el("div", {class: "stack", "aria-hidden": "true"});
  made.draw = (parts) => {
    const whole = parts.reduce((all, [, value]) => all + value, 0);
    const shown = whole > 0 ? parts.filter(([, value]) => value > 0) : [];
    keyed(made, shown, ([name]) => name, () => el("span"), (span, [name, value, colour]) => {
      span.style.width = `${100 * value / whole}%`;
      span.style.background = colour;
      span.title = `${name}: ${number(100 * value / whole)} %`;
    });
  };
  return made;
}

/* Horizontal bars with their names and values: `rows` are [name, value, text, colour]. */
export function bars(label) {
  const made = el("div", {class: "bars", role: "list", "aria-label": label});
  made.draw = (rows) => {
    const most = Math.max(1e-9, ...rows.map(([, value]) => value));
    const cells = rows.flatMap(([name, value, text, colour]) => [
      {id: `${name} name`, kind: "name", text: name}, {id: `${name} bar`, kind: "bar", share: value / most, colour},
      {id: `${name} value`, kind: "value", text: `${text}`},
    ]);
    keyed(made, cells, (cell) => cell.id, (cell) => (cell.kind === "bar"
      ? el("span", {class: "track", "aria-hidden": "true"}, el("span", {class: "fill"}))
      : el("span", {role: "listitem"})), (node, cell) => {
      if (cell.kind !== "bar") return setText(node, cell.text);
      node.firstChild.style.width = `${100 * cell.share}%`;
      node.firstChild.style.background = cell.colour || "";
    });
  };
  return made;
}
