// Values of cells: pictures with what is drawn over them, spark-lines, heat maps, text and bytes.

import { address } from "./api.js";
import { SERIES, canvas, colour, count, data, h, note, number, plural, visible } from "./dom.js";
import { finite } from "./charts.js";

const LETTERS = 160;

export function className(column, value) {
  return typeof value === "number" ? column.classes[value] : undefined;
}

export function scalar(column, value) {
  const name = className(column, value);
  return name === undefined ? number(value) : `${name} (${value})`;
}

// The name of a class in the colour that its boxes and masks have, or undefined.
export function classed(column, value) {
  if (className(column, value) === undefined) return undefined;
  const style = { "--tone": `var(--${SERIES[value % SERIES.length]})` };
  return h("span", { class: "class", style }, data(scalar(column, value), 60));
}

// The address of a picture, at most `width` pixels of the screen wide.
export function picture(set, row, column, index, width) {
  const pixels = Math.ceil(width * devicePixelRatio);
  return address("image", { data: set.data, row, column: column.name, index, width: pixels });
}

// Whether a column without names of classes has numbers of classes.
export const namedClass = (column) => /label|class|categor/i.test(column.name);

// Boxes and their labels, and masks, that the data set has for a picture: by the name of the image column.
function drawnOver(set, column) {
  const over = set.columns.filter((other) => other.draws_on === column.name);
  const boxes = over.find((other) => other.kind === "boxes");
  const beside = boxes ? set.columns.filter((other) => other.group === boxes.group) : [];
  const label = beside.find((other) => other.classes.length) ?? beside.find(namedClass);
  return { boxes, label, mask: over.find((other) => other.kind === "image") };
}

export function overlayNames(set, column) {
  if (column.kind !== "image") return [];
  const { boxes, label, mask } = drawnOver(set, column);
  return [boxes, label, mask].filter(Boolean).map((other) => other.name);
}

// A picture that fits into width × height, with boxes, class names and a mask over it. `cells` are those of the row.
export function image(set, row, column, index, cells, { width, height, names = false }) {
  const cell = cells[column.name];
  const [tall, wide] = cell?.sizes?.[index] ?? cell?.sizes?.[0] ?? [null, null];
  let scale = wide && tall ? Math.min(width / wide, height / tall) : 1;
  if (scale > 1) scale = Math.min(8, Math.max(1, Math.floor(scale)));
  const size = wide ? [Math.max(1, Math.round(wide * scale)), Math.max(1, Math.round(tall * scale))] : [width, height];
  const style = { width: `${size[0]}px`, height: `${size[1]}px`, "aspect-ratio": `${size[0]} / ${size[1]}` };
  const frame = h("span", { class: `picture ${scale > 1 ? "exact" : ""}`, style });
  const alt = `${visible(column.name, 60)} of row ${row}`;
  const element = h("img", { alt, loading: "eager", decoding: "async" });
  element.addEventListener("error", () => frame.replaceChildren(note("not decoded")));
  if (column.draws_on) {
    // The numbers of classes are black as pixels.
    drawMask(frame, set, row, column, index, size);
    return frame;
  }
  element.src = picture(set, row, column, index, size[0]);
  frame.append(element);
  const { boxes, label, mask } = drawnOver(set, column);
  const found = boxes && cells[boxes.name]?.boxes;
  if (mask && cells[mask.name]) drawMask(frame, set, row, mask, index, size);
  if (found?.length) drawBoxes(frame, size, found, label, cells[label?.name]?.values, names);
  return frame;
}

function over(frame, size, label) {
  const [element, context] = canvas(...size, label);
  frame.append(element);
  return context;
}

function drawBoxes(frame, size, boxes, label, labels, names) {
  const text = boxes.map((_, at) => (label && labels ? scalar(label, labels[at]) : "box")).join(", ");
  const context = over(frame, size, `${plural(boxes.length, "box")}: ${text}`);
  context.lineWidth = names ? 2 : 1.5;
  context.font = "600 11px system-ui, sans-serif";
  boxes.forEach(([top, left, bottom, right], at) => {
    const value = labels?.[at];
    const tone = colour(SERIES[(typeof value === "number" ? value : at) % SERIES.length]);
    const [x, y] = [left * size[0], top * size[1]];
    context.strokeStyle = tone;
    context.strokeRect(x, y, (right - left) * size[0], (bottom - top) * size[1]);
    if (!names || value === undefined) return;
    const name = visible((label && className(label, value)) ?? String(value), 24);
    const wide = context.measureText(name).width + 8;
    context.fillStyle = tone;
    context.fillRect(x - 1, Math.max(0, y - 15), wide, 15);
    context.fillStyle = colour("surface");
    context.fillText(name, x + 3, Math.max(0, y - 15) + 11);
  });
}

// Classes of pixels, each in a translucent colour; the value 0 is background.
function drawMask(frame, set, row, mask, index, size) {
  const source = new Image();
  source.addEventListener("load", () => {
    const context = over(frame, size, "mask");
    const { width, height } = context.canvas;
    context.imageSmoothingEnabled = false;
    context.drawImage(source, 0, 0, ...size);
    const pixels = context.getImageData(0, 0, width, height);
    const tones = SERIES.map((name) => colour(name).match(/\d+/g).map(Number));
    for (let at = 0; at < pixels.data.length; at += 4) {
      const value = pixels.data[at];
      const tone = tones[(value + SERIES.length - 1) % SERIES.length];
      pixels.data.set(value ? [tone[0], tone[1], tone[2], 90] : [0, 0, 0, 0], at);
    }
    context.putImageData(pixels, 0, 0);
  });
  source.src = address("image", { data: set.data, row, column: mask.name, index });
}

export function spark(values, width, height, label) {
  const [element, context] = canvas(width, height, label);
  const numbers = values.map(finite);
  const [low, range] = extent(numbers);
  const x = (at) => 2 + ((width - 4) * at) / Math.max(1, numbers.length - 1);
  const y = (value) => height - 3 - ((height - 6) * (value - low)) / range;
  context.strokeStyle = colour("s1");
  context.lineWidth = 1.3;
  context.lineJoin = "round";
  context.beginPath();
  numbers.forEach((value, at) => {
    // The line begins anew after a gap.
    const joined = at > 0 && numbers[at - 1] !== null;
    if (value !== null) context[joined ? "lineTo" : "moveTo"](x(at), y(value));
  });
  context.stroke();
  return element;
}

// Curves of a few components over the same steps, in their colours and on one scale.
function sparks(rows, width, height, label) {
  const [element, context] = canvas(width, height, label);
  const steps = rows.map((row) => row.map(finite));
  const [low, range] = extent(steps.flat());
  const x = (at) => 2 + ((width - 4) * at) / Math.max(1, steps.length - 1);
  const y = (value) => height - 3 - ((height - 6) * (value - low)) / range;
  context.lineWidth = 1.1;
  (steps[0] ?? []).forEach((_, component) => {
    context.strokeStyle = colour(SERIES[component % SERIES.length]);
    context.beginPath();
    steps.forEach((values, at) => {
      const joined = at > 0 && steps[at - 1][component] !== null;
      if (values[component] !== null) context[joined ? "lineTo" : "moveTo"](x(at), y(values[component]));
    });
    context.stroke();
  });
  return element;
}

// Nodes of steps of several components: a curve for each of a few, or a heat map with a row per component.
function stepsOf(cell, height) {
  const about = [cell.shape.join(" × "), cell.range].filter(Boolean).join(", ");
  const size = [96, Math.min(height - 10, 44)];
  const few = cell.rows[0].length <= SERIES.length;
  const drawn = few ? sparks(cell.rows, ...size, about) : heat({ rows: transposed(cell.rows) }, ...size, about);
  return [drawn, note(cell.shape.map(count).join(" × "))];
}

export function transposed(rows) {
  return (rows[0] ?? []).map((_, at) => rows.map((row) => row[at]));
}

// From dark blue through green to yellow, evenly lighter, so that the order is visible without colour too.
const RAMP = [[38, 30, 92], [42, 72, 132], [30, 116, 138], [34, 156, 122], [118, 192, 78], [240, 228, 66]];

export function heat(cell, width, height, label) {
  const [element, context] = canvas(width, height, label);
  const rows = cell.rows.map((row) => row.map(finite));
  const [low, range] = extent(rows.flat());
  rows.forEach((values, row) => {
    values.forEach((value, column) => {
      const place = ((value ?? low) - low) / range * (RAMP.length - 1);
      const [first, second] = [RAMP[Math.floor(place)], RAMP[Math.ceil(place)]];
      const tone = first.map((part, at) => Math.round(part + (second[at] - part) * (place % 1)));
      context.fillStyle = value === null ? colour("raised") : `rgb(${tone.join(" ")})`;
      const [left, top] = [Math.floor((column * width) / values.length), Math.floor((row * height) / rows.length)];
      context.fillRect(left, top, Math.ceil(width / values.length) + 1, Math.ceil(height / rows.length) + 1);
    });
  });
  return element;
}

// The least of some values, and the distance of the greatest one from it; null is no value.
function extent(values) {
  const known = values.filter((value) => value !== null);
  const low = known.length ? Math.min(...known) : 0;
  return [low, (known.length ? Math.max(...known) : 1) - low || 1];
}

// Nodes of a cell of the grid.
export function brief(set, row, column, cells, height) {
  const cell = cells[column.name];
  if (cell === null || cell === undefined) return [note("missing")];
  const shown = visible(cell.error ?? "", 80);
  if (cell.error) return [h("span", { class: "small-note bad", title: visible(cell.error) }, shown)];
  switch (column.kind) {
    case "number":
    case "bool":
    case "time":
      return [classed(column, cell.value) ?? data(scalar(column, cell.value))];
    case "text":
      return [data(cell.value, LETTERS, { class: "text" })];
    case "image": {
      const shown = Math.min(cell.count, 3);
      const box = { width: (height - 8) * 1.4, height: height - 8 };
      const pictures = Array.from({ length: shown }, (_, index) => image(set, row, column, index, cells, box));
      return cell.count > shown ? [...pictures, note(`+ ${count(cell.count - shown)}`)] : pictures;
    }
    case "vector":
    case "sequence": {
      const values = cell.values ?? cell.rows.flat();
      if (!values.length) return [note("no values")];
      if (cell.shape) return stepsOf(cell, height);
      const drawn = values.length > 4 && values.some((value) => finite(value) !== null);
      if (!drawn) return [data(values.map((value) => scalar(column, value)).join(", "), LETTERS)];
      const about = [plural(cell.length, cell.rows ? "row" : "value"), cell.range].filter(Boolean).join(", ");
      return [spark(values, 96, Math.min(height - 10, 40), about), note(count(cell.length))];
    }
    case "tensor":
      return [heat(cell, 64, Math.min(height - 10, 52), `heat map, ${cell.range}`), note(cell.shape.join(" × "))];
    case "boxes":
      return [h("span", {}, plural(cell.boxes.length, "box"))];
    default:
      return [
        h("span", { class: "badge" }, cell.content ?? "bytes"),
        note(plural(cell.length, "byte")),
        h("code", {}, cell.hex.slice(0, 24)),
      ];
  }
}
