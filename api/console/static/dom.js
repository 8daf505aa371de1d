/* Small helpers. Text from the server only ever becomes text nodes and attributes, never markup. */

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key in {value: 1, checked: 1, disabled: 1, hidden: 1, htmlFor: 1}) made[key] = value;
    else if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((each) => each !== null && each !== undefined));
  return made;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/* Keeps one child of `parent` for each item, in order, and makes and drops as few as possible, so that focus stays. */
export function keyed(parent, items, key, make, update) {
  const known = parent.keyedChildren || (parent.keyedChildren = new Map());
  const wanted = new Set();
  let at = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    wanted.add(name);
    let child = known.get(name);
    if (!child) known.set(name, child = make(item));
    if (child !== at) parent.insertBefore(child, at);
    else at = at.nextElementSibling;
    update(child, item);
  }
  for (const [name, child] of known) {
    if (!wanted.has(name)) {
      child.remove();
      known.delete(name);
    }
  }
}

export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : `${+value.toPrecision(digits)}`;
}

export function milliseconds(us) {
  return us === null || us === undefined || !Number.isFinite(us) ? "–" : `${number(us / 1000)} ms`;
}

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let at = 0;
  while (count >= 1024 && at < units.length - 1) [count, at] = [count / 1024, at + 1];
  return `${number(count)} ${units[at]}`;
}

export function many(count, one, more) { return `${number(count)} ${count === 1 ? one : more}`; }

const STATES = {READY: "good", serving: "good", LOADING: "wait", UNLOADING: "wait", starting: "wait", draining: "wait", exiting: "wait"};
const WORDS = {READY: "ready", LOADING: "loading", UNLOADING: "unloading", UNAVAILABLE: "not loaded", UNKNOWN: "unknown"};

/* A pill that says a state in words, with a colour. */
export function paintState(node, state, reason = "") {
  const failed = state === "UNAVAILABLE" && reason && reason !== "unloaded";
  node.className = `pill ${failed ? "bad" : STATES[state] || (state === "UNAVAILABLE" || !state ? "wait" : "bad")}`;
  setText(node, failed ? "failed" : WORDS[state] || state);
  node.title = reason;
  node.hidden = !state;
}
