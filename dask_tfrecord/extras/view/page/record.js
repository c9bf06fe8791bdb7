// Everything about one record, in a dialog over the page.

import { get } from "./api.js";
import { MOST_CURVES, curves, finite } from "./charts.js";
import {
  button, bytes, count, data, dialog, ending, facts, failure, fill, h, note, number, plural, table, title, visible,
} from "./dom.js";
import { columnHead } from "./overview.js";
import { brief, classed, heat, image, scalar, transposed } from "./values.js";

const MOST_PICTURES = 24;
const MOST_LETTERS = 1 << 20;
let open = null;

// Show the record of a row, or none: the dialog follows the address.
export async function openRecord(row, { overview: set, showRecord, step, link, close }) {
  open?.controller.abort();
  if (row === null) {
    const box = open?.box;
    open = null;
    box?.close();
    return;
  }
  const controller = new AbortController();
  const body = h("div", {}, h("p", { class: "waiting" }, "Reading…"));
  const box = open?.box ?? dialog(`Row ${row}`);
  const move = (by) => {
    const next = step?.(by) ?? Number(row) + by;
    if (next >= 0 && (set.nrows === null || next < set.nrows) && next !== Number(row)) showRecord(next);
  };
  open = { controller, box };
  box.className = "record";
  box.onclose = () => {
    if (open?.box !== box) return;
    controller.abort();
    open = null;
    close();
  };
  box.onkeydown = (event) => {
    if (event.target.closest("input, [role=listbox]") || !["ArrowLeft", "ArrowRight"].includes(event.key)) return;
    move(event.key === "ArrowRight" ? 1 : -1);
    event.preventDefault();
  };
  const controls = [
    button("←", () => move(-1), { "aria-label": "Previous row" }),
    button("→", () => move(1), { "aria-label": "Next row" }),
    button("Close", () => box.close()),
  ];
  const heading = h("h2", {}, `Row ${count(Number(row))}`);
  box.replaceChildren(title(heading, h("div", { class: "buttons" }, controls)), body);
  const { signal } = controller;
  const draw = (found) => describe(set, Number(row), found, link, signal);
  await fill(body, get("row", { data: set.data, row }, signal), draw);
}

function pre(label, text) {
  return h("pre", { tabindex: "0", "aria-label": visible(label, 120) }, visible(text));
}

function describe(set, row, found, link, signal) {
  const nodes = [];
  const { location, cells } = found;
  if (location) {
    const { file, record, offset } = location;
    const at = set.shards.findIndex((shard) => shard.name === file);
    const href = at >= 0 && offset !== null ? link("bytes", { data: set.data, shard: at, offset }) : null;
    const shard = h("a", { href, title: visible(file) }, data(ending(file, 60)));
    const place = offset === null ? null : count(offset);
    nodes.push(facts({ shard, record: count(record), "byte offset": place, size: found.nbytes ? bytes(found.nbytes) : null }));
  }
  const errors = new Set(set.columns.map((column) => cells[column.name]?.error));
  if (set.columns.length > 1 && errors.size === 1 && [...errors][0]) {
    return [...nodes, failure({ message: "The record cannot be read", detail: [...errors][0] })];
  }
  // Cameras are in natural order, at the places of images.
  const natural = (one, other) => one.name.localeCompare(other.name, "en", { numeric: true });
  const images = set.columns.filter((column) => column.kind === "image").sort(natural);
  for (const column of set.columns.map((one) => (one.kind === "image" ? images.shift() : one))) {
    const head = h("div", { class: "head" }, columnHead(column));
    const value = h("div", {}, full(set, row, column, cells, signal));
    nodes.push(h("section", { class: "field", "aria-label": visible(column.name, 120) }, head, value));
  }
  const json = JSON.stringify(found.json, null, 2).slice(0, MOST_LETTERS);
  return [...nodes, h("details", {}, h("summary", {}, "JSON"), pre("JSON", json))];
}

function full(set, row, column, cells, signal) {
  const cell = cells[column.name];
  if (cell === null || cell === undefined || cell.error) return brief(set, row, column, cells, 92);
  switch (column.kind) {
    case "image": {
      const side = cell.count > 1 ? 160 : 420;
      const draw = (_, index) => image(set, row, column, index, cells, { width: side, height: side, names: true });
      const pictures = Array.from({ length: Math.min(cell.count, MOST_PICTURES) }, draw);
      const [tall, wide] = cell.sizes?.[0] ?? [];
      const more = cell.count > MOST_PICTURES ? `, the first ${MOST_PICTURES} are shown` : "";
      const size = wide ? `, ${wide} × ${tall} pixels` : "";
      return [h("div", { class: "pictures" }, pictures), note(plural(cell.count, "image"), size, more)];
    }
    case "text": {
      const cut = cell.length > String(cell.value).length;
      return [pre(column.name, String(cell.value)), cut ? note(plural(cell.length, "letter")) : ""];
    }
    case "vector":
    case "sequence":
      return numbers(column, cell, signal);
    case "tensor": {
      const [tall, wide] = [cell.rows.length, cell.rows[0]?.length ?? 1];
      const width = Math.min(420, Math.max(120, wide * 14));
      const height = Math.min(320, Math.max(60, (width * tall) / wide));
      const text = `shape ${cell.shape.join(" × ")}, ${cell.range}`;
      return [heat(cell, width, height, `heat map of ${column.name}`), h("div", {}, note(text))];
    }
    case "boxes": {
      const rows = cell.boxes.map((box) => h("tr", {}, box.map((side) => h("td", { class: "n" }, number(side)))));
      return [table(["#top", "#left", "#bottom", "#right"], rows)];
    }
    case "bytes": {
      const content = h("span", { class: "badge" }, visible(cell.content ?? "bytes", 60));
      return [h("div", { class: "badges" }, content, note(plural(cell.length, "byte"))), pre(column.name, cell.hex)];
    }
    default:
      return [classed(column, cell.value) ?? h("span", { class: "mono" }, visible(scalar(column, cell.value)))];
  }
}

// A curve, or one for each component of steps, and the values themselves.
function numbers(column, cell, signal) {
  if (cell.shape && cell.rows[0]?.length > MOST_CURVES) {
    const text = `shape ${cell.shape.join(" × ")}, ${cell.range}; a row per component`;
    return [heat({ rows: transposed(cell.rows) }, 640, 160, `heat map of ${column.name}`), h("div", {}, note(text))];
  }
  const rows = cell.rows ?? [cell.values ?? []];
  const text = rows.map((values) => values.map((value) => scalar(column, value)).join(", ")).join("\n");
  const component = (_, at) => ({ label: String(at), values: cell.rows.map((step) => step[at]) });
  const lines = cell.rows ? (cell.rows[0] ?? []).map(component) : [{ label: column.name, values: rows[0] }];
  const size = cell.shape ? cell.shape.map(count).join(" × ") : plural(cell.length, cell.rows ? "row" : "value");
  const about = note(size, cell.range && `, ${cell.range}`);
  const known = lines.some((line) => line.values.some((value) => finite(value) !== null));
  if (!known || lines[0].values.length <= 4) return [pre(column.name, text || "no values"), about];
  const chart = curves(lines, { label: `Curve of ${column.name}`, height: 140 });
  signal.addEventListener("abort", () => chart.close());
  const values = h("details", {}, h("summary", {}, "Values"), pre(column.name, text));
  return [chart.element, about, values];
}
