// Overview: what the data set is, its columns with statistics that grow, and its shards.

import { follow } from "./api.js";
import { bars, topValues } from "./charts.js";
import { button, bytes, codeBlock, count, data, facts, h, notice, number, plural, scrollable, table, typeOf, visible } from "./dom.js";

const MOST_SHARDS = 500;

export function overviewPage({ main, signal, set, go, link }) {
  const size = set.shards.reduce((sum, shard) => sum + (shard.size ?? 0), 0);
  const damaged = set.shards.filter((shard) => shard.damage).length;
  const progress = h("div", { class: "progress", role: "status" }, "Reading a sample…");
  const cards = new Map(set.columns.map((column) => [column.name, card(column)]));
  const section = (title, ...children) => h("section", { class: "section" }, title, ...children);
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
    codeBlock(set.code),
  );
  if (set.hints.length) {
    main.append(section(h("h2", {}, "Hints"), h("ul", { class: "hints" }, set.hints.map((hint) => h("li", {}, visible(hint, 2000))))));
  }
  const none = notice("No columns", "The data set has no records, or no features were found.");
  const body = cards.size ? h("div", { class: "cards" }, [...cards.values()].map((one) => one.element)) : none;
  main.append(section(h("div", { class: "title" }, h("h2", {}, "Columns"), progress), body));
  if (set.shards.length) main.append(section(h("h2", {}, "Shards"), shardTable(set, link)));
  const choose = (expression) => go("filter", { data: set.data, filter: expression });
  const close = follow(
    "statistics",
    { data: set.data },
    signal,
    (message) => {
      for (const [name, found] of Object.entries(message.columns)) cards.get(name)?.update(found, choose);
      const bar = h("progress", { value: message.rows, max: message.total ?? message.rows, "aria-label": "Statistics" });
      const of = message.total ? `of ${count(message.total)} rows` : "rows";
      if (message.done) progress.replaceChildren(`Statistics of ${plural(message.rows, "row")}`);
      else progress.replaceChildren(bar, `${count(message.rows)} ${of}`, stop);
    },
    (error) => progress.replaceChildren(h("span", { class: "bad" }, data(error.message), error.detail && ": ", data(error.detail, 300))),
  );
  const stop = button("Stop", () => {
    close();
    stop.replaceWith("stopped");
  }, { class: "small" });
}

export function columnHead(column) {
  return [
    h("h3", { title: visible(column.name) }, data(column.name)),
    h(
      "div",
      { class: "badges" },
      h("span", { class: "badge accent" }, column.kind),
      h("span", { class: "badge" }, typeOf(column)),
      column.group && h("span", { class: "badge" }, data(column.group, 40)),
    ),
  ];
}

function card(column) {
  const body = h("div", {}, h("div", { class: "ghost" }));
  const element = h("article", { class: "panel card" }, columnHead(column), body);
  return { element, update: (found, choose) => body.replaceChildren(...distribution(column, found, choose)) };
}

// An expression for the values of a bar, or nothing if the column cannot be filtered by them.
function between(column, low, high, last) {
  const name = /^[A-Za-z_]\w*$/.test(column.name) ? column.name : JSON.stringify(column.name);
  if (low === high) return `${name} == ${low}`;
  return `${name} >= ${low} and ${name} ${last ? "<=" : "<"} ${high}`;
}

// Nodes that show what the statistics know of a column; `choose` is called with an expression for a bar.
export function distribution(column, found, choose, other) {
  const nodes = [];
  const can = choose && ["number", "bool", "text"].includes(column.kind);
  if (found.histogram?.counts.length) {
    const { edges, counts } = found.histogram;
    const entries = counts.map((one, at) => ({
      label: edges[at] === edges[at + 1] ? number(edges[at]) : `${number(edges[at])} to ${number(edges[at + 1])}`,
      count: one,
      other: other?.histogram?.counts[at],
    }));
    const pick = (at) => choose(found.histogram.expressions?.[at] ?? between(column, edges[at], edges[at + 1], at === counts.length - 1));
    nodes.push(
      bars(`Histogram of ${column.name}`, entries, can && pick),
      h("div", { class: "ends" }, h("span", {}, number(edges[0])), h("span", {}, number(edges.at(-1)))),
    );
  } else if (found.top?.length) {
    const entries = found.top.map((one) => ({ ...one, label: one.label ?? String(one.value) }));
    nodes.push(topValues(`Frequent values of ${column.name}`, entries, can && ((at) => found.top[at].expression && choose(found.top[at].expression))));
  }
  const measure = (name, value) => value !== undefined && value !== null && h("span", {}, `${name} ${value}`);
  nodes.push(
    h(
      "div",
      { class: "measures" },
      measure("mean", finiteText(found.mean)),
      measure("missing", found.missing ? count(found.missing) : null),
      found.lengths && measure("lengths", found.lengths.min === found.lengths.max ? count(found.lengths.min) : `${count(found.lengths.min)} … ${count(found.lengths.max)}`),
    ),
  );
  return nodes;
}

function finiteText(value) {
  return value === undefined || value === null ? null : number(value);
}

function shardTable(set, link) {
  const rows = set.shards.slice(0, MOST_SHARDS).map((shard, at) => {
    const name = data(shard.name, 120);
    const linked = set.kind === "tfrecord" ? h("a", { href: link("bytes", { data: set.data, shard: at }) }, name) : name;
    const damage = shard.damage ? data(shard.damage, 200) : "none found";
    return h(
      "tr",
      {},
      h("th", { scope: "row", class: "wrap" }, linked),
      h("td", { class: "n" }, bytes(shard.size)),
      h("td", { class: "n" }, count(shard.records)),
      h("td", {}, shard.compression ?? "none"),
      h("td", { class: shard.damage ? "bad wrap" : "muted" }, damage),
    );
  });
  const more = set.shards.length - rows.length;
  const heads = ["shard", "#size", "#records", "compression", "damage"];
  return h("div", { class: "panel" }, scrollable("Shards", table(heads, rows)), more > 0 && `and ${plural(more, "shard")} more`);
}
