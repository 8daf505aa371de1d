/* Load and unload models, and the settings of log and traces. */

import {el, keyed, paintState, setText} from "./dom.js";
import {call} from "./stream.js";

export class SettingsView {
  title = "Settings";

  constructor(content) {
    this.why = el("p", {class: "notice", hidden: true});
    this.said = el("p", {role: "status", class: "soft"});
    this.control = el("p", {class: "soft"});
    this.body = el("tbody");
    const heads = ["Model", "State", ""].map((text) => el("th", {scope: "col"}, text));
    this.log = el("div");
    this.trace = el("div");
    content.append(el("h1", {}, "Settings"), this.why, this.said,
      el("section", {class: "card"}, el("h2", {}, "Models in the repository"), this.control,
        el("div", {class: "scroll"}, el("table", {}, el("caption", {class: "hidden-text"}, "Models"), el("thead", {}, el("tr", {}, ...heads)), this.body))),
      el("div", {class: "cards"},
        el("section", {class: "card"}, el("h2", {}, "Log"), this.log), el("section", {class: "card"}, el("h2", {}, "Traces"), this.trace)));
  }

  allowed(about) {
    this.why.hidden = !about.refusal;
    setText(this.why, about.refusal);
    this.about = about;
    setText(this.control, about.takesOrders ? "" : `Models are loaded and unloaded by the server alone (--model-control-mode=${about.control}); with explicit they are by you.`);
    if (about.refusal) return;
    this.fill(this.log, logForm, "/logging");
    this.fill(this.trace, traceForm, "/trace/setting");
  }

  /* A form of settings, as they are now. */
  async fill(place, make, path) {
    try {
      place.replaceChildren(make(await (await call(path)).json(), (changes) => this.change(place, make, path, changes)));
    } catch (error) {
      place.replaceChildren(el("p", {class: "error"}, error.message));
    }
  }

  async change(place, make, path, changes) {
    const done = await this.act("The settings are changed.", () => call(path, changes));
    if (done) await this.fill(place, make, path);
  }

  async act(text, what) {
    try {
      setText(this.said, "…");
      await what();
      this.said.className = "soft";
      setText(this.said, text);
      return true;
    } catch (error) {
      this.said.className = "error";
      setText(this.said, error.message);
      return false;
    }
  }

  update(state) {
    if (state.about && !this.about) this.allowed(state.about);
    const rows = [...new Map(state.frame.index.map((row) => [`${row[0]}\n${row[1]}`, row])).values()];
    keyed(this.body, rows, ([name, version]) => `${name}\n${version}`, ([name, version]) => this.row(name, version),
      (node, [, , at, reason]) => node.fill(at, reason));
  }

  row(name, version) {
    const pill = el("span"), load = el("button", {type: "button"}), path = `/repository/models/${encodeURIComponent(name)}`;
    const act = (verb, done) => this.act(done, () => call(`${path}/${verb}`, {}));
    load.addEventListener("click", async () => {
      load.disabled = true;
      await (load.verb === "unload" ? act("unload", `${name} is being unloaded.`) : act("load", `${name} is loaded.`));
      load.disabled = false;
    });
    const row = el("tr", {}, el("th", {scope: "row"}, `${name} ${version && `v${version}`}`), el("td", {}, pill), el("td", {}, load));
    row.fill = (at, reason) => {
      paintState(pill, at, reason);
      load.verb = at === "READY" ? "unload" : "load";
      setText(load, at === "READY" ? "Unload" : "Load");
      load.setAttribute("aria-label", `${load.textContent} ${name}`);
      load.hidden = !this.about || !this.about.takesOrders || Boolean(this.about.refusal);
    };
    return row;
  }
}

function form(fields, save) {
  return el("form", {onsubmit: (event) => {
    event.preventDefault();
    save();
  }}, el("fieldset", {}, ...fields), el("button", {class: "main"}, "Change"));
}

const check = (label, checked) => {
  const box = el("input", {type: "checkbox", checked: Boolean(checked)});
  return [box, el("label", {}, box, ` ${label}`)];
};

const entry = (label, value, attributes = {}) => {
  const box = el("input", {value: `${value}`, ...attributes});
  return [box, el("label", {}, `${label} `, box)];
};

function logForm(now, save) {
  const parts = {
    log_info: check("information", now.log_info), log_warning: check("warnings", now.log_warning), log_error: check("errors", now.log_error),
    log_verbose_level: entry("verbose level", now.log_verbose_level, {type: "number", min: 0, max: 10}),
  };
  const format = el("select", {}, ...["default", "ISO8601", "json"].map((name) => el("option", {value: name}, name)));
  format.value = now.log_format;
  const fields = [...Object.values(parts).map(([, label]) => label), el("label", {}, "format ", format)];
  return form(fields, () => {
    const values = Object.entries(parts).map(([name, [box]]) => [name, box.type === "checkbox" ? box.checked : Number(box.value)]);
    save({...Object.fromEntries(values), log_format: format.value});
  });
}

function traceForm(now, save) {
  const levels = [].concat(now.trace_level);
  const times = check("timestamps", levels.includes("TIMESTAMPS")), tensors = check("tensors", levels.includes("TENSORS"));
  const rate = entry("every how many requests", now.trace_rate, {inputmode: "numeric"}), count = entry("how many, -1 for any number", now.trace_count, {inputmode: "numeric"});
  return form([times[1], tensors[1], rate[1], count[1]], () => {
    const level = [...(times[0].checked ? ["TIMESTAMPS"] : []), ...(tensors[0].checked ? ["TENSORS"] : [])];
    save({trace_level: level.length ? level : ["OFF"], trace_rate: rate[0].value, trace_count: count[0].value});
  });
}
