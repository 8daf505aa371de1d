/* The console: which view is shown, and the stream that fills it. */

import {ActorsView} from "./actors.js";
import {setText} from "./dom.js";
import {TryView} from "./form.js";
import {ModelView, ModelsView} from "./models.js";
import {SettingsView} from "./settings.js";
import {State} from "./state.js";
import {Connection, setKey} from "./stream.js";
import {TimelineView} from "./timeline_view.js";

const byId = (id) => document.getElementById(id);
const content = byId("content"), notice = byId("notice"), status = byId("connection"), state = new State();
const REDRAW_MS = 900;
let view = null, drawn = -REDRAW_MS, first = true;

const VIEWS = {
  models: (name, version) => (name ? new ModelView(content, name, version) : new ModelsView(content)),
  timeline: () => new TimelineView(content),
  actors: () => new ActorsView(content),
  try: (name, version) => new TryView(content, name, version),
  settings: () => new SettingsView(content),
};

function show() {
  const [name, ...rest] = decodeHash();
  if (view && view.close) view.close();
  content.replaceChildren();
  const known = VIEWS[name] ? name : "models";
  view = VIEWS[known](...(VIEWS[name] ? rest : []));
  document.title = `${view.title} – Trireme console`;
  for (const link of document.querySelectorAll(".top nav a")) {
    if (link.getAttribute("href") === `#${known}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (!first) content.focus({preventScroll: true});
  first = false;
  window.scrollTo(0, 0);
  draw(true);
}

function decodeHash() {
  try {
    return location.hash.slice(1).split("/").map(decodeURIComponent);
  } catch {
    return ["models"];
  }
}

function draw(now) {
  if (!state.frame) return;
  if (view.live) view.live(state);
  if (!now && performance.now() - drawn < REDRAW_MS) return;
  drawn = performance.now();
  view.update(state);
}

function say(kind, text) {
  status.className = `pill ${kind}`;
  setText(status, text);
}

function tell(text) {
  notice.hidden = !text;
  setText(notice, text);
}

const connection = new Connection({
  about(about) {
    state.clear();
    state.about = about;
    setText(byId("server"), `${about.version} · ${about.server}`);
    byId("key-button").hidden = !about.access;
    if (view && view.allowed) view.allowed(about);
  },
  frame(frame) {
    state.take(frame);
    say("good", "Live");
    tell("");
    content.classList.remove("stale");
    draw(false);
  },
  state(kind, text) {
    if (kind === "denied") byId("key-button").hidden = false;
    tell(text);
    say(kind === "denied" ? "bad" : "wait", kind === "denied" ? "Not allowed" : "Reconnecting…");
    content.classList.add("stale");
  },
});

byId("key-button").addEventListener("click", () => byId("key-dialog").showModal());
byId("key-dialog").addEventListener("close", () => {
  if (byId("key-dialog").returnValue === "use") {
    setKey(byId("key").value);
    byId("key").value = "";
    connection.again();
  }
});
window.addEventListener("hashchange", show);
show();
