// Overview: what the data set is, its columns with statistics that grow, and its shards.

import { follow } from "./api.js";
import { bars, topValues } from "./charts.js";
import {
  button, bytes, codeBlock, copy, count, data, facts, failure, h, notice, number, plural, scrollable, table, title, visible,
} from "./dom.js";
import { namedClass, scalar } from "./values.js";

const MOST_SHARDS = 500;
const MOST_VALUES = 5;

export function overviewPage({ main, signal, set, go, link }) {
  const size = set.shards.reduce((sum, shard) => sum + (shard.size ?? 0), 0);
  const damaged = set.shards.filter((shard) => shard.damage).length;
  const progress = h("div", { class: "progress", role: "status" }, "Reading a sample…");
  const section = (...children) => main.append(h("section", { class: "section" }, children));
  const message = set.message && h("span", { class: "badge" }, visible(set.message, 60));
  main.append(
    h("div", { class: "badges" }, h("span", { class: "badge accent" }, set.kind), message),
    h("h1", {}, data(set.name)),
    facts({
      rows: set.nrows === null ? "not counted" : count(set.nrows),
      columns: count(set.columns.length),
      shards: set.shards.length ? count(set.shards.length) : null,
      size: size ? bytes(size) : null,
      damaged: damaged ? h("span", { class: "bad" }, plural(damaged, "shard")) : null,
    }),
    ...(set.error ? [failure({ message: set.error })] : []),
    codeBlock(set.code),
  );
  const bodies = new Map(set.columns.map((column) => [column.name, h("div", {}, h("div", { class: "ghost" }))]));
  const card = (column) => {
    const control = button("Copy", () => copy(column.code, control), { class: "small", title: column.code });
    return h("article", { class: "panel card" }, columnHead(column), bodies.get(column.name), control);
  };
  const none = notice("No columns", set.hints.join("\n") || "The data set has no records.");
  const cards = set.columns.length ? h("div", { class: "cards" }, set.columns.map(card)) : none;
  const schema = set.schema && button("Copy schema as Python", () => copy(set.schema, schema), { class: "small" });
  section(title(h("h2", {}, "Columns"), progress, schema), cards);
  const hints = set.columns.length ? set.hints.map(hintLine) : [];
  if (hints.length) section(h("h2", {}, "Hints"), h("ul", { class: "hints panel" }, hints));
  if (set.shards.length) section(h("h2", {}, "Shards"), shardTable(set, link));
  const choose = (expression) => go("filter", { data: set.data, filter: expression });
  const receive = ({ columns, rows, total, done }) => {
    for (const column of set.columns) {
      const found = columns[column.name];
      if (found) bodies.get(column.name).replaceChildren(...distribution(column, found, choose));
    }
    const bar = h("progress", { value: rows, max: total ?? rows, "aria-label": "Statistics" });
    if (done) progress.replaceChildren(`Statistics of ${plural(rows, "row")}`);
    else progress.replaceChildren(bar, `${count(rows)} ${total ? `of ${count(total)} rows` : "rows"}`, stop);
  };
  const failed = ({ message, detail }) => {
    progress.replaceChildren(h("span", { class: "bad" }, data(message), detail && ": ", data(detail, 300)));
  };
  const close = follow("statistics", { data: set.data }, signal, receive, failed);
  const stopped = () => {
    close();
    stop.replaceWith("stopped");
  };
  const stop = button("Stop", stopped, { class: "small" });
}

// One line of a hint: the column, and what its values could be.
function hintLine(hint) {
  const [name, text] = hint.split(/: (.*)/s);
  const shown = text === undefined ? data(hint, 400) : [h("strong", {}, data(name, 60)), " ", data(text, 400)];
  return h("li", { title: visible(hint, 2000) }, shown);
}

export function columnHead(column) {
  const badges = [
    h("span", { class: "badge accent" }, column.kind),
    column.type !== column.kind && h("span", { class: "badge" }, column.type),
    column.group && h("span", { class: "badge" }, data(column.group, 40)),
  ];
  return [h("h3", { title: visible(column.name) }, data(column.name)), h("div", { class: "badges" }, badges)];
}

// Nodes that show what the statistics know of a column. `choose` is called with the expression of a bar.
export function distribution(column, found, choose) {
  const nodes = [];
  const sizes = found.of === "sizes";
  const text = (value) => (sizes ? bytes(value) : scalar(column, value));
  const range = (low, high, show) => (low === high ? show(low) : `${show(low)} to ${show(high)}`);
  const pick = (bars) => choose && bars[0].expression && ((at) => choose(bars[at].expression));
  const { top, bins, mean, min, max, missing, lengths } = found;
  const isClass = column.classes.length || (Number.isInteger(min) && namedClass(column));
  if (top.length) {
    nodes.push(topValues(`Frequent values of ${column.name}`, top.slice(0, MOST_VALUES), pick(top)));
  } else if (min !== max && bins.length) {
    const entries = bins.map(({ low, high, count }) => ({ label: range(low, high, text), count }));
    const ends = [bins[0].low, bins.at(-1).high].map((value) => h("span", {}, text(value)));
    const what = `${sizes ? "Sizes" : "Histogram"} of ${column.name}`;
    nodes.push(bars(what, entries, pick(bins)), h("div", { class: "ends" }, ends));
  }
  const known = {
    value: !sizes && min !== null && min === max ? text(min) : null,
    size: sizes && min !== null ? range(min, max, bytes) : null,
    // Numbers of classes have no mean.
    mean: !sizes && min !== max && !isClass ? number(mean) : null,
    missing: missing ? count(missing) : null,
    lengths: lengths && range(...lengths, count),
  };
  const measures = Object.entries(known).filter(([, value]) => value !== null);
  nodes.push(h("div", { class: "measures" }, measures.map(([name, value]) => h("span", {}, `${name} ${value}`))));
  return nodes;
}

function shardTable(set, link) {
  const rows = set.shards.slice(0, MOST_SHARDS).map((shard, at) => {
    const name = data(shard.name, 120);
    const place = set.kind === "tfrecord" && link("bytes", { data: set.data, shard: at });
    const damage = shard.damage ? data(shard.damage, 200) : "none found";
    return h(
      "tr",
      {},
      h("th", { scope: "row", class: "wrap" }, place ? h("a", { href: place }, name) : name),
      h("td", { class: "n" }, bytes(shard.size)),
      h("td", { class: "n" }, count(shard.records)),
      h("td", {}, shard.compression ?? "none"),
      h("td", { class: shard.damage ? "bad wrap" : "muted" }, damage),
    );
  });
  const left = set.shards.length - rows.length;
  const more = left > 0 && `and ${plural(left, "shard")} more`;
  const heads = ["shard", "#size", "#records", "compression", "damage"];
  return h("div", { class: "panel" }, scrollable("Shards", table(heads, rows)), more);
}
