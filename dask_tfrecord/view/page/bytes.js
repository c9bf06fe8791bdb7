// Bytes: a map of the records of a shard, damaged ranges, one record in hexadecimal and by its fields, and repair.

import { get } from "./api.js";
import {
  button, bytes, canvas, codeBlock, colour, count, data, fill, h, plural, scrollable, select, table, title,
} from "./dom.js";

const CELL = 16;
const MOST_CELLS = 2000;
const STATES = [
  ["intact", "s1"],
  ["length or its CRC", "s4"],
  ["CRC of the payload", "s2"],
  ["cut off", "bad"],
  ["damaged range", "bad"],
];
const RANGE = STATES.length - 1;

export async function bytesPage({ main, query, set, signal, change, remember }) {
  const shard = Math.max(0, Number(query.get("shard")) || 0);
  const start = Math.max(0, Number(query.get("start")) || 0);
  const again = (parameters) => change({ shard, start: null, offset: null, ...parameters });
  const names = set.shards.map((one) => one.name);
  const choose = select("Shard", names, shard, (at) => again({ shard: at }));
  const detail = h("div", { class: "two section" });
  const repair = h("section", { class: "section panel" }, h("p", { class: "waiting" }, "Checking the shard…"));
  main.append(title(h("h1", {}, "Bytes"), choose));
  const found = await get("shard", { data: set.data, shard, start, stop: start + MOST_CELLS }, signal);
  if (signal.aborted) return {};
  const cells = cellsOf(found);
  const chart = map(cells, choose, pick);
  const shown = found.offsets.length;
  const end = shown ? found.offsets.at(-1) + found.lengths.at(-1) : found.size;
  const ends = found.records === null ? end >= found.size : found.stop >= found.records;
  const pager = h("div", { class: "buttons" }, [
    button("← Earlier", () => again({ start: Math.max(0, start - MOST_CELLS) || null }), { disabled: start === 0 }),
    button("Later →", () => again({ start: found.stop }), { disabled: ends }),
  ]);
  const records = found.records === null ? "" : `${plural(found.records, "record")}, `;
  const heading = h("h2", {}, shown ? `Records ${count(start)} – ${count(start + shown - 1)}` : "No records");
  const about = h("span", { class: "muted" }, `${records}${bytes(found.size)}`);
  const states = STATES.map(([what, tone], at) => {
    const number = cells.filter((cell) => cell.state === at).length;
    return h("li", { style: { "--tone": `var(--${tone})` } }, `${what}: ${count(number)}`);
  });
  const head = title(heading, about, (start > 0 || !ends) && pager);
  const list = h("ul", { class: "states" }, states);
  main.append(h("section", { class: "panel" }, head, chart.element, list, damageList(found.damaged)), detail, repair);

  function pick(cell) {
    remember({ offset: cell.offset, shard: shard || null, start: start || null });
    chart.select(cell);
    fill(detail, get("record", { data: set.data, shard, offset: cell.offset }, signal), recordPanels);
  }

  fill(repair, get("repair", { data: set.data, shard }, signal), repairPlan);
  const wanted = Number(query.get("offset"));
  const first = query.has("offset") ? cells.find((cell) => cell.offset === wanted) ?? { offset: wanted } : cells[0];
  if (first) pick(first);
  return { keys: (event) => chart.pressed(event), jump: () => chart.element.focus() };
}

// Records and damaged ranges, by their offset.
function cellsOf(found) {
  const records = found.offsets.map((offset, at) => {
    return { offset, length: found.lengths[at], number: found.start + at, state: found.states[at] };
  });
  const ranges = found.damaged
    .filter((range) => !records.some((record) => record.state && record.offset === range.start))
    .map((range) => ({ offset: range.start, length: range.stop - range.start, state: RANGE, what: range.what }));
  return [...records, ...ranges].sort((a, b) => a.offset - b.offset);
}

function map(cells, choose, picked) {
  const last = String(Math.max(0, cells.length - 1));
  const slider = { role: "slider", "aria-valuemin": "0", "aria-valuemax": last, "aria-valuenow": "0" };
  const element = h("div", { class: "map", tabindex: "0", "aria-label": "Record", ...slider });
  const longest = Math.log(Math.max(2, ...cells.map((cell) => cell.length + 1)));
  let selected = 0;
  let across = 1;
  const draw = () => {
    const width = Math.max(CELL, element.clientWidth);
    across = Math.max(1, Math.floor(width / CELL));
    const [surface, context] = canvas(width, Math.max(1, Math.ceil(cells.length / across)) * CELL, "");
    surface.removeAttribute("role");
    surface.setAttribute("aria-hidden", "true");
    const tones = STATES.map(([, name]) => colour(name));
    cells.forEach((cell, at) => {
      const [x, y] = [(at % across) * CELL, Math.floor(at / across) * CELL];
      context.globalAlpha = cell.state ? 1 : 0.3 + (0.7 * Math.log(cell.length + 1)) / longest;
      context.fillStyle = tones[cell.state];
      context.fillRect(x + 1, y + 1, CELL - 2, CELL - 2);
    });
    context.globalAlpha = 1;
    context.strokeStyle = colour("text");
    context.lineWidth = 2;
    const [left, top] = [(selected % across) * CELL, Math.floor(selected / across) * CELL];
    if (cells.length) context.strokeRect(left + 1, top + 1, CELL - 2, CELL - 2);
    element.replaceChildren(surface);
  };
  const text = (cell) => {
    const what = cell.state === RANGE ? "" : `record ${cell.number}, `;
    return `${what}byte ${cell.offset}, ${STATES[cell.state][0]}, ${plural(cell.length, "byte")}`;
  };
  const select = (cell) => {
    const at = cells.indexOf(cell);
    if (at < 0) return;
    selected = at;
    element.setAttribute("aria-valuenow", String(at));
    element.setAttribute("aria-valuetext", text(cell));
    draw();
  };
  const at = (event) => {
    const box = element.getBoundingClientRect();
    return cells[Math.floor((event.clientY - box.top) / CELL) * across + Math.floor((event.clientX - box.left) / CELL)];
  };
  element.addEventListener("click", (event) => at(event) && picked(at(event)));
  element.addEventListener("mousemove", (event) => (element.title = at(event) ? text(at(event)) : ""));
  const pressed = (event) => {
    if (event.target === choose) return false;
    const lines = { ArrowUp: -across, ArrowDown: across, PageUp: -10 * across, PageDown: 10 * across };
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -cells.length, End: cells.length, ...lines }[event.key];
    if (step === undefined || !cells.length) return false;
    picked(cells[Math.max(0, Math.min(selected + step, cells.length - 1))]);
    return true;
  };
  new ResizeObserver(draw).observe(element);
  document.addEventListener("themechange", () => element.isConnected && draw());
  return { element, select, pressed };
}

function damageList(ranges) {
  if (!ranges.length) return h("p", { class: "good" }, "No damage in these records.");
  const rows = ranges.map((range) => {
    const [start, stop] = [range.start, range.stop].map((byte) => h("td", { class: "n" }, count(byte)));
    return h("tr", {}, start, stop, h("td", { class: "wrap bad" }, data(range.what, 400)));
  });
  return scrollable("Damaged ranges", table(["#from byte", "#to byte", "damage"], rows, { id: "damage" }));
}

function recordPanels(record) {
  const panel = (head, body) => h("section", { class: "panel" }, title(...head), body);
  const state = h("span", { class: `badge ${record.state ? "bad" : "accent"}` }, STATES[record.state][0]);
  const length = record.length === null ? "unknown length" : plural(record.length, "byte");
  const heading = [h("h2", {}, `Byte ${count(record.offset)}`), h("span", { class: "muted" }, length), state];
  const lines = (record.fields ?? []).map(fieldLine);
  const fields = h("ul", { class: "fields", tabindex: "0", "aria-label": "Fields" }, lines);
  const none = h("p", { class: "muted" }, "The payload is no protobuf message.");
  const dump = h("pre", { class: "hex", tabindex: "0", "aria-label": "Bytes of the record" });
  dump.append(hexDump(record.hex, record.offset));
  return [panel(heading, dump), panel([h("h2", {}, "Fields by wire format")], lines.length ? fields : none)];
}

function fieldLine(one) {
  const depth = String(String(one.path).split(".").length - 1);
  const key = h("span", { class: "key" }, `${one.path} `);
  const wire = h("span", { class: "muted" }, `${one.wire ?? ""} `);
  return h("li", { style: { "--depth": depth } }, key, wire, data(one.value ?? "", 200));
}

// Lines of an offset, sixteen bytes and their letters.
function hexDump(hex, offset) {
  const lines = [];
  for (let at = 0; at < hex.length; at += 32) {
    const pairs = hex.slice(at, at + 32).match(/../g) ?? [];
    const letters = pairs.map((pair) => {
      const code = parseInt(pair, 16);
      return code >= 32 && code < 127 ? String.fromCharCode(code) : "·";
    });
    const place = (offset + at / 2).toString(16).padStart(8, "0");
    lines.push(`${place}  ${pairs.join(" ").padEnd(47)}  ${letters.join("")}`);
  }
  return lines.join("\n");
}

function repairPlan(plan) {
  const kept = h("span", { class: "muted" }, `${plural(plan.kept, "record")}, ${bytes(plan.kept_bytes)}`);
  const head = title(h("h2", {}, "What repair would keep"), kept);
  if (!plan.ranges.length) return [head, h("p", { class: "muted" }, "It would keep every byte.")];
  const ranges = plan.ranges.map((range) => `${count(range.start)} – ${count(range.stop)}`).join(", ");
  const dropped = `It would drop ${plural(plan.ranges.length, "range")} of bytes: ${ranges}`;
  return [head, h("p", { class: "wrap" }, dropped), codeBlock(plan.command, "Copy")];
}
