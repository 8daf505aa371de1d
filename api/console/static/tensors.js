/* What a form needs to know of tensors: made-up values, text that people write, and images that become numbers. */

const NUMBERS = /^TYPE_(U?INT|FP|BF)/;
export const MOST_SHOWN = 64;

export const kserve = (type) => ({TYPE_STRING: "BYTES"}[type] || type.replace("TYPE_", ""));

/* The shape that is sent: one row, and one where the configuration says any. */
export function shapeOf(input, batched) {
  const dims = (input.dims || []).map((dim) => (Number(dim) > 0 ? Number(dim) : 1));
  return batched ? [1, ...dims] : dims;
}

export function sample(type, shape) {
  const count = shape.reduce((all, each) => all * each, 1), one = type === "TYPE_STRING" ? "text" : type === "TYPE_BOOL" ? false : 0;
  return nested(Array(Math.min(count, 1 << 20)).fill(one), shape);
}

/* Values in rows, as people read and write them. */
export function nested(flat, shape) {
  if (shape.length < 2) return flat;
  const size = shape.slice(1).reduce((all, each) => all * each, 1);
  return Array.from({length: shape[0]}, (_, at) => nested(flat.slice(at * size, (at + 1) * size), shape.slice(1)));
}

const short = (_key, value) => (typeof value === "number" && !Number.isInteger(value) ? +value.toPrecision(6) : value);

export function pretty(value) {
  if (!Array.isArray(value) || !Array.isArray(value[0])) return JSON.stringify(value, short);
  return `[\n${value.map((each) => pretty(each).replace(/^/gm, " ")).join(",\n")}\n]`;
}

/* Values and shape of what was written: a number, a list, lists in lists. Throws an Error that says what is wrong. */
export function readValues(text, type) {
  const trimmed = text.trim();
  let value;
  try {
    value = JSON.parse(trimmed);
  } catch {
    if (type !== "TYPE_STRING") throw new Error("write numbers as JSON, such as [1, 2, 3]");
    value = [trimmed];
  }
  if (!Array.isArray(value)) value = [value];
  const shape = [];
  for (let at = value; Array.isArray(at); at = at[0]) shape.push(at.length);
  const flat = value.flat(Infinity);
  if (flat.length !== shape.reduce((all, each) => all * each, 1)) throw new Error("the rows are not of equal length");
  return {data: flat, shape};
}

/* Where an image may go: [height, width, channels, whether channels come first], or null. */
export function imageForm(input) {
  const dims = (input.dims || []).map(Number), large = (size) => size >= 8 || size === -1, few = (size) => size === 1 || size === 3;
  if (!NUMBERS.test(input.data_type)) return null;
  if (dims.length === 2 && dims.every(large)) return [...dims, 1, false];
  if (dims.length !== 3) return null;
  if (few(dims[2]) && large(dims[0]) && large(dims[1])) return [dims[0], dims[1], dims[2], false];
  if (few(dims[0]) && large(dims[1]) && large(dims[2])) return [dims[1], dims[2], dims[0], true];
  return null;
}

/* The numbers of an image, brought to the size of the input: from 0 to `most`. */
export async function imageValues(file, form, most) {
  const picture = await createImageBitmap(file);
  const [height, width, channels, first] = [form[0] > 0 ? form[0] : picture.height, form[1] > 0 ? form[1] : picture.width, form[2], form[3]];
  const canvas = Object.assign(document.createElement("canvas"), {width, height}), pen = canvas.getContext("2d", {willReadFrequently: true});
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, width, height);
  pen.drawImage(picture, 0, 0, width, height);
  const pixels = pen.getImageData(0, 0, width, height).data, planes = Array.from({length: channels}, () => []);
  for (let at = 0; at < pixels.length; at += 4) {
    const [r, g, b] = [pixels[at], pixels[at + 1], pixels[at + 2]];
    const values = channels === 1 ? [0.299 * r + 0.587 * g + 0.114 * b] : [r, g, b];
    values.forEach((value, plane) => planes[plane].push(most === 255 ? Math.round(value) : +(value / 255 * most).toPrecision(5)));
  }
  const flat = first ? planes.flat() : planes[0].flatMap((_, at) => planes.map((plane) => plane[at]));
  const dims = first ? [channels, height, width] : form[2] === 1 && !first && form.twoDimensions ? [height, width] : [height, width, channels];
  return {flat, dims, canvas};
}
