// Rows and Filter: the same grid, over all rows, a random sample, or the rows that meet an expression.

import { follow, get, sampleStatistics } from "./api.js";
import { distribution } from "./overview.js";
import {
  button, copy, count, data, debounce, dialog, ending, failure, h, notice, numberForm, plural, scrollable, title, visible,
} from "./dom.js";
import { Grid } from "./grid.js";
import { brief, overlayNames } from "./values.js";

const PAGE = 64;
const KEPT_PAGES = 48;
const SAMPLE = 1000;
const MOST_COLUMNS = 40;
// Pixels of a letter of the header.
const LETTER = 7.8;
const WIDTHS = { number: 140, bool: 100, time: 250, text: 280, vector: 180, sequence: 180, bytes: 340, boxes: 110 };

// Values of rows by position in the grid: pages that are asked for when they come in sight, the last ones kept.
class Loader {
  constructor(set, names, signal, request, arrived, failed) {
    Object.assign(this, { set, names, signal, request, arrived, failed });
    this.pages = new Map();
    this.asked = new Map();
    signal.addEventListener("abort", () => this.clear());
  }

  clear() {
    for (const controller of this.asked.values()) controller.abort();
    this.asked.clear();
    this.pages.clear();
  }

  at(index) {
    const page = this.pages.get(Math.floor(index / PAGE));
    const place = index % PAGE;
    if (!page || place >= page.rows.length) return null;
    const cells = {};
    for (const name of this.names) cells[name] = page.cells[name]?.[place];
    return { row: page.rows[place], cells };
  }

  want(first, stop) {
    this.wanted = [Math.floor(first / PAGE), Math.floor(Math.max(first, stop - 1) / PAGE)];
    this.timer ??= setTimeout(() => this.#ask(), 30);
  }

  #ask() {
    this.timer = null;
    const [first, last] = this.wanted;
    for (const [page, controller] of this.asked) {
      if (page >= first && page <= last) continue;
      controller.abort();
      this.asked.delete(page);
    }
    for (let page = first; page <= last; page++) this.#load(page);
  }

  async #load(page) {
    if (this.signal.aborted || this.pages.has(page) || this.asked.has(page)) return;
    const controller = new AbortController();
    this.asked.set(page, controller);
    try {
      const where = this.request(page * PAGE, (page + 1) * PAGE);
      if (!where) return;
      const answer = await get("rows", { data: this.set.data, column: this.names, ...where }, controller.signal);
      this.pages.set(page, answer);
      if (this.pages.size > KEPT_PAGES) this.pages.delete(this.pages.keys().next().value);
      this.arrived(page * PAGE, answer.rows);
    } catch (error) {
      if (error.name !== "AbortError") this.failed(error);
    } finally {
      if (this.asked.get(page) === controller) this.asked.delete(page);
    }
  }
}

function shownColumns(set, query) {
  const chosen = query.get("columns");
  if (chosen) {
    const names = new Set(JSON.parse(chosen));
    return set.columns.filter((column) => names.has(column.name));
  }
  const drawn = set.columns.filter((column) => !(column.kind === "image" && column.draws_on));
  const images = drawn.filter((column) => column.kind === "image");
  return [...images, ...drawn.filter((column) => column.kind !== "image")].slice(0, MOST_COLUMNS);
}

function rowHeight(columns) {
  const kinds = new Set(columns.map((column) => column.kind));
  if (kinds.has("image")) return 92;
  return kinds.has("tensor") ? 60 : ["vector", "sequence"].some((kind) => kinds.has(kind)) ? 44 : 34;
}

function imageWidth(column, side) {
  const [tall, wide] = column.shape?.slice(-3) ?? [];
  const width = Math.round(side * Math.min(1.4, wide && tall ? wide / tall : 1.4)) + 24;
  return column.shape?.length > 3 ? 3 * width : Math.max(90, width);
}

function widthOf(column, height) {
  return column.kind === "image" ? imageWidth(column, height - 8) : (WIDTHS[column.kind] ?? 200);
}

// The error of all cells of a row, if they have the same: the record is damaged.
function wholeError(columns, cells) {
  const errors = new Set(columns.map((column) => cells[column.name]?.error));
  return columns.length > 1 && errors.size === 1 ? [...errors][0] : undefined;
}

// The grid of a page. `order` maps positions to those that the server knows; without one they are the same.
function makeGrid(page, { total, request, sorted, order = (index) => index, moved }) {
  const { set, query, signal, showRecord, remember } = page;
  const columns = shownColumns(set, query);
  const height = rowHeight(columns);
  const names = [...new Set(columns.flatMap((column) => [column.name, ...overlayNames(set, column)]))];
  const failed = (error) => grid.element.before(failure(error));
  // Of rows that nobody has counted, the grid knows those that came, and a page more while pages are full.
  const arrived = (first, rows) => {
    if (total() === null) grid.setTotal(Math.max(grid.total, first + rows.length + (rows.length === PAGE ? PAGE : 0)));
    grid.refill();
  };
  const loader = new Loader(set, names, signal, request, arrived, failed);
  const keep = debounce(250, (first) => !signal.aborted && remember({ row: first || null }));
  const grid = new Grid({
    label: `Rows of ${visible(set.name, 80)}`,
    height,
    columns: [
      { label: () => "row", width: 96, class: "at number" },
      ...columns.map((column) => ({
        name: column.name,
        kind: column.kind,
        label: () => data(ending(column.name, Math.floor((widthOf(column, height) - 24) / LETTER)), Infinity, {
          title: visible(column.name),
        }),
        width: widthOf(column, height),
        class: column.kind === "number" ? "number" : null,
        sort: sorted && !["image", "tensor", "boxes"].includes(column.kind),
        sorted: query.get("sort") === column.name ? (query.has("down") ? "descending" : "ascending") : null,
      })),
    ],
    fill: (element, index) => {
      const at = loader.at(order(index));
      const [place, ...cells] = element.children;
      place.textContent = at ? String(at.row) : "…";
      element.classList.toggle("ghostly", !at);
      if (at && element.shown === at.row) return;
      element.shown = at ? at.row : null;
      const ghost = () => [h("div", { class: "ghost" })];
      const error = at && wholeError(columns, at.cells);
      element.classList.toggle("failed", Boolean(error));
      columns.forEach((column, which) => {
        if (error) {
          const first = which === 0 ? [h("span", { class: "bad", title: visible(error) }, visible(error, 400))] : [];
          cells[which].replaceChildren(...first);
          return;
        }
        cells[which].replaceChildren(...(at ? brief(set, at.row, column, at.cells, height) : ghost()));
      });
    },
    opened: (index) => {
      const at = loader.at(order(index));
      if (at) showRecord(at.row);
    },
    moved: (first, stop) => {
      if (stop > first) {
        const places = Array.from({ length: stop - first }, (_, at) => order(first + at));
        loader.want(Math.min(...places), Math.max(...places) + 1);
      }
      keep(first);
      moved?.(first, stop);
    },
    sorted,
  });
  signal.addEventListener("abort", () => grid.close());
  const step = (by) => {
    grid.show(grid.active + by);
    const at = loader.at(order(grid.active));
    return at?.row ?? null;
  };
  return { grid, loader, step, columns };
}

function columnsButton({ set, change }, shown) {
  const open = () => {
    const inputs = set.columns.map((column) => h("input", { type: "checkbox", checked: shown.includes(column) }));
    const apply = () => {
      const names = set.columns.map((column) => column.name).filter((_, at) => inputs[at].checked);
      box.close();
      change({ columns: names.length ? JSON.stringify(names) : null, record: null });
    };
    const labels = inputs.map((input, at) => h("li", {}, h("label", {}, input, " ", data(set.columns[at].name, 80))));
    const head = title(h("h2", {}, "Columns"), button("Show", apply, { class: "main" }));
    const box = dialog("Columns", head, h("ul", {}, labels));
  };
  return button(`Columns ${shown.length}/${set.columns.length}`, open);
}

export async function rowsPage(page) {
  const { main, query, set, signal, change } = page;
  const sampled = query.has("sample");
  const size = Math.min(Math.max(1, Number(query.get("sample")) || SAMPLE), 10_000);
  const seed = Number(query.get("seed")) || 0;
  const sort = query.get("sort");
  const none = { sample: null, seed: null, sort: null, down: null };
  const again = (parameters) => change({ record: null, row: null, ...parameters });
  const place = h("span", { class: "place", role: "status" });
  const known = set.nrows ?? set.found ?? null;
  const total = () => (sampled ? Math.min(size, known ?? size) : set.nrows);
  const where = (start, stop) => (sampled ? { start, stop, sample: size, seed } : { start, stop });
  let order = null;
  const view = makeGrid(page, {
    total,
    request: where,
    order: (index) => (order ? order[index] : index),
    moved: (first, stop) => {
      place.textContent = stop ? `${count(first)} – ${count(stop - 1)} of ${count(total())}` : "no rows";
    },
    sorted: (column) => {
      const down = sort === column.name && !query.has("down") ? "1" : null;
      again({ sample: size, seed: seed || null, sort: column.name, down });
    },
  });
  const { grid } = view;
  const jump = (row) => {
    if (sampled) return again({ ...none, row });
    grid.show(row, { top: true });
    return grid.element.focus();
  };
  const [form, focus] = numberForm("Row number", "", jump, [], h("button", { type: "submit" }, "Jump"));
  const random = () => again(sampled ? none : { sample: SAMPLE });
  const seeded = (event) => again({ seed: Number(event.target.value) || null });
  const sample = button("Random sample", random, { "aria-pressed": String(sampled) });
  const bar = h("div", { class: "bar-line" }, form, sample);
  if (sampled) {
    const input = h("input", { inputmode: "numeric", value: String(seed), onchange: seeded });
    bar.append(h("label", {}, "Seed ", input), button("Another", () => again({ seed: seed + 1 })));
  }
  bar.append(columnsButton(page, view.columns), place);
  main.append(h("h1", { class: "unseen" }, "Rows"), bar, grid.element);
  if (sort && sampled) order = await sortedPositions(set, where(0, total()), sort, query.has("down"), signal);
  grid.setTotal(order?.length ?? total() ?? PAGE);
  if (query.get("row")) grid.show(Number(query.get("row")), { top: true });
  return { keys: (event) => grid.pressed(event), jump: focus, step: view.step };
}

// Positions of a sample in the order of one of its columns; missing values last.
async function sortedPositions(set, where, name, down, signal) {
  const answer = await get("rows", { data: set.data, column: name, ...where }, signal);
  const keys = answer.cells[name].map((cell) => cell?.value ?? cell?.length ?? null);
  const compare = (a, b) => {
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a === "number" && typeof b === "number") return down ? b - a : a - b;
    return (down ? -1 : 1) * String(a).localeCompare(String(b), "en", { numeric: true });
  };
  return keys.map((_, at) => at).sort((a, b) => compare(keys[a], keys[b]) || a - b);
}

// An expression of columns that exist.
function example(columns) {
  const named = (column) => (/^[A-Za-z_][\w/]*$/.test(column.name) ? column.name : `'${column.name}'`);
  const parts = columns.flatMap((column) => {
    if (column.kind === "number") return [`${named(column)} == 3`];
    if (column.kind === "text") return [`${named(column)} == 'a'`];
    return column.kind === "sequence" ? [`len(${named(column)}) > 5`] : [];
  });
  return parts.slice(0, 2).join(" and ") || "label == 3";
}

export function filterPage(page) {
  const { main, query, set, signal, change } = page;
  const expression = query.get("filter") ?? "";
  const apply = (filter) => change({ filter, row: null, record: null });
  const named = { "aria-label": "Expression", id: "expression", spellcheck: "false" };
  const input = h("input", { value: expression, placeholder: example(set.columns), ...named });
  const submit = (event) => {
    event.preventDefault();
    apply(input.value.trim());
  };
  const form = h("form", { class: "grow", onsubmit: submit }, input, h("button", { class: "main" }, "Filter"));
  const bar = h("div", { class: "bar-line" }, form);
  const strip = scrollable("Distributions of columns");
  strip.className = "strip";
  main.append(h("h1", { class: "unseen" }, "Filter"), bar, strip);
  const add = (more) => apply(expression ? `${expression} and ${more}` : more);
  const hide = () => (strip.hidden = true);
  const draw = (found) => {
    const chart = (column) => distribution(column, found[column.name], add).slice(0, -1);
    const offered = ({ name }) => [found[name]?.top, found[name]?.bins].flat().some((bar) => bar?.expression);
    const cards = set.columns.filter((column) => offered(column) && chart(column).length).slice(0, MOST_COLUMNS);
    const head = ({ name }) => h("h3", { title: visible(name) }, data(ending(name, 26)));
    const card = (column) => h("article", { class: "panel card" }, head(column), chart(column));
    strip.replaceChildren(...cards.map(card));
    if (!cards.length) hide();
  };
  sampleStatistics(set, signal, draw, hide);
  const handlers = { filter: () => input.select() };
  if (expression) return { ...handlers, ...search(page, expression, apply, bar) };
  main.append(notice("No filter yet", "Type an expression of columns, or click a bar above. Press / to type."));
  return handlers;
}

// The rows that meet an expression, while the server finds them.
function search(page, expression, apply, bar) {
  const { main, query, set, signal } = page;
  const found = [];
  const state = h("div", { class: "progress", role: "status" });
  const request = (start, stop) => (start < found.length ? { start, stop, filter: expression } : null);
  const view = makeGrid(page, { total: () => found.length, request });
  const { grid, loader } = view;
  const wanted = Number(query.get("row") ?? 0);
  let placed = 0;
  const code = button("Copy as Python", () => copy(code.text, code), { hidden: true });
  const replace = (node) => grid.element.replaceWith(node);
  const receive = (message) => {
    // The last page was read before it was full.
    if (message.found.length) loader.pages.delete(Math.floor(found.length / PAGE));
    for (const row of message.found) found.push(row);
    grid.setTotal(found.length);
    if (wanted && grid.position === placed && found.length > wanted) {
      grid.show(wanted, { top: true });
      placed = grid.position; // Less than wanted until enough rows are found to fill the grid below it.
    }
    const { rows, total, done } = message;
    const searched = total ? `${count(rows)} of ${count(total)} rows` : plural(rows, "row");
    const progress = h("progress", { value: rows, max: total || 1, hidden: done, "aria-label": "Rows searched" });
    const text = h("span", {}, h("strong", {}, count(message.count)), ` found in ${searched}`);
    state.replaceChildren(progress, text);
    code.hidden = !(code.text = message.code ?? code.text);
    cancel.hidden = message.done;
    if (message.done && !found.length) replace(notice("No rows", "No row meets the expression."));
  };
  const failed = (error) => {
    cancel.hidden = true;
    state.replaceChildren();
    replace(failure(error));
  };
  const close = follow("filter", { data: set.data, expression }, signal, receive, failed);
  const cancel = button("Cancel", () => {
    close();
    cancel.hidden = true;
    state.append(" (cancelled)");
  });
  bar.append(cancel, button("Clear", () => apply("")), code, state);
  main.append(grid.element);
  return { keys: (event) => grid.pressed(event), step: view.step };
}
