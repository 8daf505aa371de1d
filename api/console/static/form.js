/* A form made from a model's configuration, which sends it a request and shows the answer. */

import {bars} from "./charts.js";
import {el, many, number, setText} from "./dom.js";
import {titleOf} from "./state.js";
import {call, events} from "./stream.js";
import {MOST_SHOWN, imageForm, imageValues, kserve, nested, pretty, readValues, sample, shapeOf} from "./tensors.js";

const MOST_EVENTS = 200;

export class TryView {
  title = "Try a model";

  constructor(content, name, version) {
    this.wanted = name ? [name, version] : null;
    this.choice = el("select", {id: "model", onchange: () => this.open()});
    this.why = el("p", {class: "notice", hidden: true});
    this.place = el("div");
    this.answer = el("section", {class: "card", "aria-live": "polite", "aria-label": "Answer", hidden: true});
    content.append(el("h1", {}, "Send a request"), this.why,
      el("p", {}, el("label", {htmlFor: "model"}, "Model "), this.choice), this.place, this.answer);
  }

  allowed(about) {
    this.why.hidden = !about.refusal;
    setText(this.why, about.refusal);
    this.refused = about.refusal;
  }

  update(state) {
    if (state.about && this.refused === undefined) this.allowed(state.about);
    const names = state.all.map(({model}) => model).sort((a, b) => a.name.localeCompare(b.name));
    const said = names.map(titleOf).join("\n");
    if (said === this.said) return;
    this.said = said;
    const before = this.choice.value || (this.wanted && JSON.stringify(this.wanted));
    const options = names.map((model) => el("option", {value: JSON.stringify([model.name, `${model.version}`])}, titleOf(model)));
    this.choice.replaceChildren(...options);
    if (options.some((option) => option.value === before)) this.choice.value = before;
    if (this.choice.value && this.choice.value !== this.opened) this.open();
  }

  async open() {
    const chosen = this.opened = this.choice.value;
    if (this.refused) return;
    this.answer.hidden = true;
    const [name, version] = JSON.parse(chosen);
    this.path = `/models/${encodeURIComponent(name)}/versions/${version}`;
    try {
      const config = await (await call(`${this.path}/config`)).json();
      if (chosen === this.opened) this.build(config);
    } catch (error) {
      this.place.replaceChildren(el("p", {class: "error", role: "alert"}, error.message));
    }
  }

  build(config) {
    this.streams = Boolean(config.model_transaction_policy && config.model_transaction_policy.decoupled);
    const batched = config.max_batch_size > 0;
    this.inputs = (config.input || []).map((input, at) => new Input(input, at, batched));
    this.outputs = (config.output || []).map(({name, label_filename: labels}) => ({name, labelled: Boolean(labels)}));
    const labelled = this.outputs.some((output) => output.labelled);
    this.classes = el("input", {type: "checkbox", checked: labelled});
    this.send = el("button", {class: "main"}, "Send");
    const form = el("form", {class: "card", onsubmit: (event) => this.submit(event)},
      ...this.inputs.map((input) => input.element),
      ...(labelled ? [el("label", {}, this.classes, " name the likeliest classes")] : []),
      el("p", {class: "buttons"}, this.send));
    this.place.replaceChildren(form);
  }

  async submit(event) {
    event.preventDefault();
    this.send.disabled = true;
    this.answer.hidden = false;
    const began = performance.now();
    try {
      const inputs = this.inputs.map((input) => input.read());
      if (this.streams) await this.stream(inputs);
      else {
        const wants = ({name, labelled}) => (labelled ? {name, parameters: {classification: 5}} : {name});
        const body = {inputs, ...(this.classes.checked ? {outputs: this.outputs.map(wants)} : {})};
        const answer = await (await call(`${this.path}/infer`, body)).json();
        this.show(answer, performance.now() - began);
      }
    } catch (error) {
      this.answer.replaceChildren(el("h2", {}, "No answer"), el("p", {class: "error", role: "alert"}, error.message));
    } finally {
      this.send.disabled = false;
    }
  }

  async stream(inputs) {
    const lines = el("pre", {tabindex: "0"});
    this.answer.replaceChildren(el("h2", {}, "Answers, one by one"), lines);
    const body = Object.fromEntries(inputs.map(({name, data}) => [name, data.length === 1 ? data[0] : data]));
    const response = await call(`${this.path}/generate_stream`, body);
    let count = 0;
    for await (const {data} of events(response.body)) {
      if (count < MOST_EVENTS) lines.append(`${data}\n`);
      count += 1;
    }
    this.answer.firstChild.append(` (${many(count, "answer", "answers")})`);
  }

  show(answer, took) {
    const parts = answer.outputs.map((output) => {
      const shape = output.shape.join(" × "), head = el("h3", {}, output.name, " ", el("span", {class: "soft"}, `${output.datatype} ${shape}`));
      const likely = classes(output);
      if (likely) return [head, likely];
      const chart = numbersChart(output);
      const values = output.data.length > MOST_SHOWN ? output.data.slice(0, MOST_SHOWN) : nested(output.data, output.shape);
      const more = output.data.length > MOST_SHOWN ? `\n… and ${number(output.data.length - MOST_SHOWN)} more` : "";
      return [head, ...(chart ? [chart] : []), el("pre", {tabindex: "0"}, pretty(values) + more)];
    });
    this.answer.replaceChildren(el("h2", {}, "Answer"),
      el("p", {class: "soft"}, `${answer.model_name} version ${answer.model_version} answered after ${number(took)} ms, as this browser saw it.`), ...parts.flat());
  }
}

/* Classes, which are texts "value:index:label". */
function classes(output) {
  const parsed = output.datatype === "BYTES" && output.data.map((text) => /^([-+.\deE]+):(\d+)(?::(.*))?$/s.exec(text));
  if (!parsed || !parsed.length || parsed.some((each) => !each)) return null;
  const chart = bars(`Likeliest classes of ${output.name}`);
  chart.draw(parsed.map(([, value, index, label]) => [label || `class ${index}`, Math.max(0, Number(value)), number(Number(value))]));
  return chart;
}

function numbersChart(output) {
  const few = output.data.length > 1 && output.data.length <= 20 && output.data.every((value) => typeof value === "number" && value >= 0);
  if (!few) return null;
  const chart = bars(`Values of ${output.name}`);
  chart.draw(output.data.map((value, at) => [`[${at}]`, value, number(value, 4)]));
  return chart;
}

class Input {
  constructor(input, at, batched) {
    this.input = input;
    this.batched = batched;
    const id = `input-${at}`, shape = shapeOf(input, batched);
    this.text = el("textarea", {id, spellcheck: "false"});
    this.write(sample(input.data_type, shape));
    this.error = el("p", {class: "error", hidden: true, id: `${id}-error`, role: "alert"});
    this.text.setAttribute("aria-describedby", `${id}-error`);
    const dims = [...(batched ? ["rows"] : []), ...(input.dims || []).map((dim) => (Number(dim) < 0 ? "any" : dim))].join(" × ");
    this.element = el("fieldset", {}, el("legend", {}, input.name, " ", el("span", {class: "soft"}, `${kserve(input.data_type)}, ${dims}`)),
      ...this.imagePart(id), el("label", {htmlFor: id}, "Values, as JSON"), this.text, this.error);
  }

  imagePart(id) {
    const form = imageForm(this.input);
    if (!form) return [];
    form.twoDimensions = this.input.dims.length === 2;
    const scale = el("select", {id: `${id}-scale`}, ...["1", "16", "255"].map((most) => el("option", {value: most}, `0 to ${most}`)));
    if (!/FP|BF/.test(this.input.data_type)) scale.value = "255";
    const invert = el("input", {type: "checkbox"}), preview = el("span");
    const file = el("input", {type: "file", accept: "image/*", id: `${id}-file`});
    const read = async () => {
      if (!file.files.length) return;
      try {
        const most = Number(scale.value), {flat, dims, canvas} = await imageValues(file.files[0], form, most);
        const values = invert.checked ? flat.map((value) => +(most - value).toPrecision(5)) : flat;
        this.write(nested(values, this.batched ? [1, ...dims] : dims));
        canvas.className = "preview";
        canvas.setAttribute("aria-hidden", "true");
        preview.replaceChildren(canvas);
        this.tell("");
      } catch {
        this.tell("the browser cannot read this file as an image");
      }
    };
    for (const each of [file, scale, invert]) each.addEventListener("change", read);
    return [el("div", {class: "form-grid"}, el("label", {htmlFor: `${id}-file`}, "From an image"), file,
      el("label", {htmlFor: `${id}-scale`}, "Values go from"), scale, el("label", {}, invert, " inverted"), preview)];
  }

  write(values) {
    this.text.value = pretty(values);
    this.text.rows = Math.max(2, Math.min(12, this.text.value.split("\n").length));
  }

  tell(text) {
    this.error.hidden = !text;
    setText(this.error, text);
  }

  /* The input as it is sent. */
  read() {
    try {
      const {data, shape} = readValues(this.text.value, this.input.data_type);
      this.tell("");
      return {name: this.input.name, datatype: kserve(this.input.data_type), shape, data};
    } catch (error) {
      this.tell(error.message);
      throw new Error(`${this.input.name}: ${error.message}`);
    }
  }
}
