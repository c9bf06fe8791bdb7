// Compare: two opened data sets side by side, such as a source and its conversion.

import { get, sampleStatistics } from "./api.js";
import {
  button, count, data, h, numberForm, plural, scrollable, select, table, title, visible,
} from "./dom.js";
import { distribution } from "./overview.js";
import { brief } from "./values.js";

const ROWS = 8;

export async function comparePage({ main, query, set, signal, change, overviewOf }) {
  const first = Number(query.get("a") ?? 0);
  const second = Number(query.get("b") ?? (first === 0 ? 1 : 0));
  const start = Math.max(0, Number(query.get("row")) || 0);
  const move = (row) => change({ row: Math.max(0, row) || null });
  const pair = await Promise.all([first, second].map(overviewOf));
  if (signal.aborted) return {};
  const names = [...new Set(pair.flatMap((one) => one.columns.map((column) => column.name)))];
  const columns = names.map((name) => pair.map((one) => one.columns.find((column) => column.name === name)));
  const bodies = names.map(() => [h("div", {}), h("div", {})]);
  const state = h("p", { class: "muted", role: "status" }, "Comparing rows…");
  const rows = scrollable("Rows of both data sets");
  const earlier = button("←", () => move(start - ROWS), { "aria-label": "Earlier rows", disabled: start === 0 });
  const later = button("→", () => move(start + ROWS), { "aria-label": "Later rows" });
  const [form, focus] = numberForm("First row", String(start), move, earlier, later);
  const choose = (key, chosen) => select(`Data set ${key}`, set.sets, chosen, (at) => change({ [key]: at }));
  const heads = pair.map((one) => {
    return `${visible(one.name, 60)} (${one.nrows === null ? "not counted" : plural(one.nrows, "row")})`;
  });
  const types = table(["column", ...heads], names.map((name, at) => typeRow(name, columns[at], bodies[at])));
  main.append(
    title(h("h1", {}, "Compare"), choose("a", first), h("span", { class: "muted" }, "with"), choose("b", second)),
    h("section", { class: "panel" }, title(h("h2", {}, `Rows from ${count(start)}`), state, form), rows),
    h("section", { class: "section panel" }, h("h2", {}, "Columns"), scrollable("Columns of both data sets", types)),
  );
  pair.forEach((one, side) => {
    sampleStatistics(one, signal, (found) => {
      names.forEach((name, at) => {
        const column = columns[at][side];
        if (column && found[name]) bodies[at][side].replaceChildren(...distribution(column, found[name]));
      });
    });
  });
  const common = columns.filter(([one, other]) => one && other);
  if (!common.length) {
    state.textContent = "no column has the same name in both";
    return { jump: focus };
  }
  const wanted = { start, stop: start + ROWS, column: common.map(([column]) => column.name) };
  const answers = await Promise.all(pair.map((one) => get("rows", { data: one.data, ...wanted }, signal)));
  const body = table(["#row", "column", ...pair.map((one) => one.name)], rowLines(pair, common, answers));
  rows.replaceChildren(body);
  const differing = body.querySelectorAll("tr.differs").length;
  state.textContent = differing ? `values that differ: ${count(differing)}` : "all values are equal";
  state.className = differing ? "bad" : "good";
  return { jump: focus };
}

function typeRow(name, columns, bodies) {
  const types = columns.map((column) => (column?.type ?? "–"));
  const differs = types[0] === types[1] ? "mono" : "mono bad";
  const cells = types.map((type, side) => h("td", {}, h("span", { class: differs }, type), bodies[side]));
  return h("tr", {}, h("th", { scope: "row", class: "wrap" }, data(name, 80)), cells);
}

function rowLines(pair, common, answers) {
  const longest = answers[0].rows.length >= answers[1].rows.length ? answers[0] : answers[1];
  return longest.rows.flatMap((row, place) =>
    common.map((columns, at) => {
      const { name } = columns[0];
      const cells = answers.map((answer) => ({ [name]: answer.cells[name]?.[place] ?? null }));
      const known = answers.map((answer) => place < answer.rows.length);
      const differs = known[0] !== known[1] || JSON.stringify(cells[0]) !== JSON.stringify(cells[1]);
      const shown = pair.map((set, side) => (known[side] ? brief(set, row, columns[side], cells[side], 56) : "–"));
      const values = shown.map((nodes) => h("td", {}, h("div", { class: "inline" }, nodes)));
      const number = h("th", { scope: "row", class: "n" }, at === 0 ? String(row) : "");
      return h("tr", { class: differs ? "differs" : null }, number, h("td", { class: "wrap" }, data(name, 60)), values);
    }),
  );
}
