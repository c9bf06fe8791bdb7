// Bytes: a map of the records of a shard, damaged ranges, one record in hexadecimal and by its fields, and repair.

import { get } from "./api.js";
import { options } from "./charts.js";
import { button, bytes, codeBlock, count, data, fill, h, plural, scrollable, select, table, title } from "./dom.js";

// Pixels of a cell, as in the style sheet.
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
  main.append(title(h("h1", {}, "Bytes"), choose), repair);
  const found = await get("shard", { data: set.data, shard, start, stop: start + MOST_CELLS }, signal);
  if (signal.aborted) return {};
  const cells = cellsOf(found);
  let picked = null;
  const chart = map(cells, pick);
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
  repair.before(h("section", { class: "panel" }, head, chart.element, list, damageList(found.damaged)), detail);

  function pick(cell) {
    if (cell === picked) return;
    picked = cell;
    remember({ offset: cell.offset, shard: shard || null, start: start || null });
    chart.select(cell);
    fill(detail, get("record", { data: set.data, shard, offset: cell.offset }, signal), recordPanels);
  }

  fill(repair, get("repair", { data: set.data, shard }, signal), repairPlan);
  const wanted = Number(query.get("offset"));
  const first = query.has("offset") ? cells.find((cell) => cell.offset === wanted) ?? { offset: wanted } : cells[0];
  if (first) pick(first);
  const focus = () => chart.element.querySelector("[aria-selected=true]")?.focus();
  return { keys: (event) => event.key.startsWith("Arrow") && event.target === document.body && focus(), jump: focus };
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

// Cells in the colours of their states; those of longer records are darker.
function map(cells, picked) {
  const longest = Math.log(Math.max(2, ...cells.map((cell) => cell.length + 1)));
  const draw = (cell) => {
    const [what, tone] = STATES[cell.state];
    const record = cell.state === RANGE ? "" : `record ${cell.number}, `;
    const title = `${record}byte ${cell.offset}, ${what}, ${plural(cell.length, "byte")}`;
    const size = cell.state ? 1 : 0.3 + (0.7 * Math.log(cell.length + 1)) / longest;
    return [{ title, "aria-label": title, style: { "--tone": `var(--${tone})`, "--size": String(size) } }];
  };
  const across = () => Math.max(1, Math.floor(element.clientWidth / CELL));
  const element = options("map", "Records", cells, (at) => picked(cells[at]), draw, across);
  // The record of the cell that has the focus is shown.
  element.addEventListener("focusin", ({ target }) => picked(cells[[...element.children].indexOf(target)]));
  const select = (cell) => {
    element.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
    element.children[cells.indexOf(cell)]?.setAttribute("aria-selected", "true");
  };
  return { element, select };
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
  return [panel(heading, dump), panel([h("h2", {}, "Fields")], lines.length ? fields : none)];
}

function fieldLine(one) {
  const key = h("span", { class: "key" }, data(one.name, 80), " ");
  const kind = h("span", { class: "muted" }, `${one.kind} `);
  return h("li", { style: { "--depth": String(one.depth) } }, key, kind, data(one.value ?? "", 200));
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
