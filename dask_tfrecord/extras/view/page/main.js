// The shell: which page the address names, its life, the keyboard, the theme, and news of changed files.

import { Failure, follow, get, queryOf } from "./api.js";
import { bytesPage } from "./bytes.js";
import { comparePage } from "./compare.js";
import { button, data, dialog, ending, failure, h, plural, select, title, visible } from "./dom.js";
import { episodesPage } from "./episodes.js";
import { overviewPage } from "./overview.js";
import { openRecord } from "./record.js";
import { filterPage, rowsPage } from "./rows.js";

const PAGES = new Map([
  ["overview", { title: "Overview", draw: overviewPage }],
  ["rows", { title: "Rows", draw: rowsPage }],
  ["filter", { title: "Filter", draw: filterPage }],
  ["episodes", { title: "Episodes", draw: episodesPage, offered: (set) => set.groups.length > 0 }],
  ["bytes", { title: "Bytes", draw: bytesPage, offered: (set) => set.kind === "tfrecord" }],
  ["compare", { title: "Compare", draw: comparePage, offered: (set) => set.sets.length > 1 }],
]);
const KEYS = [
  ["↑ ↓ ← →", "Move by a row, a column or a step"],
  ["Page Up, Page Down", "Move by a screen"],
  ["Home, End", "First and last row or step"],
  ["Enter", "Open the record"],
  ["g", "Jump to a row"],
  ["/", "Filter"],
  ["Space", "Play and pause an episode"],
  ["1 … 6", "Pages, from the left"],
  ["t", "Light or dark"],
  ["?", "This help"],
  ["Esc", "Close, or stop typing"],
];

const MOST_NEWS = 3;
const DARK = matchMedia("(prefers-color-scheme: dark)");

const main = document.getElementById("main");
const top = document.getElementById("top");
const news = document.getElementById("news");
// The page that is shown: its name and parameters (`key`), the end of its life, and what it does with keys.
let shown = null;
const overviews = new Map();

function parse() {
  const [name, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { name: PAGES.has(name) ? name : "overview", query: new URLSearchParams(query) };
}

function link(name, parameters = {}) {
  const query = queryOf(parameters);
  if (query.get("data") === "0") query.delete("data");
  return `#/${name}${query.size ? `?${query}` : ""}`;
}

function keyOf({ name, query }) {
  const rest = new URLSearchParams(query);
  rest.delete("record");
  rest.sort();
  return `${name}?${rest}`;
}

function go(name, parameters) {
  history.pushState(null, "", link(name, parameters));
  return draw();
}

// The address of the shown page with other parameters.
function changed(parameters) {
  const { name, query } = parse();
  return [name, { ...Object.fromEntries(query), ...parameters }];
}

function change(parameters) {
  return go(...changed(parameters));
}

// Change parameters of the shown page. Its state changed already, so nothing is drawn again.
function remember(parameters) {
  const hash = link(...changed(parameters));
  if (hash === location.hash) return;
  history.replaceState(null, "", hash);
  if (shown) shown.key = keyOf(parse());
}

function showRecord(row) {
  return change({ record: row });
}

async function overviewOf(set) {
  if (!overviews.has(set)) overviews.set(set, await get("overview", { data: set }));
  return overviews.get(set);
}

async function draw() {
  const route = parse();
  const key = keyOf(route);
  if (shown?.key !== key) {
    shown?.controller.abort();
    const controller = new AbortController();
    shown = { key, controller, keys: () => false, jump: null, filter: null };
    const page = shown;
    main.replaceChildren(h("p", { class: "waiting" }, "Opening…"));
    try {
      const set = await overviewOf(Number(route.query.get("data") ?? 0));
      if (controller.signal.aborted) return;
      drawTop(route, set);
      main.replaceChildren();
      main.className = `page-${route.name}`;
      const { query } = route;
      const { signal } = controller;
      const parts = { main, query, signal, set, go, change, remember, link, showRecord, overviewOf };
      Object.assign(page, await PAGES.get(route.name).draw(parts));
    } catch (error) {
      if (controller.signal.aborted || error.name === "AbortError") return;
      if (!(error instanceof Failure)) console.error(error);
      main.replaceChildren(failure(error));
    }
  }
  const row = parse().query.get("record");
  const set = Number(parse().query.get("data") ?? 0);
  if (shown.record === row) return;
  shown.record = row;
  const overview = row === null ? null : await overviewOf(set);
  const close = () => parse().query.has("record") && showRecord(null);
  openRecord(row, { overview, showRecord, step: shown.step, link, close });
}

function drawTop(route, set) {
  const tabs = [...PAGES].filter(([, page]) => page.offered?.(set) ?? true);
  const links = tabs.map(([name, page]) =>
    h("a", { href: link(name, { data: set.data }), "aria-current": name === route.name ? "page" : null }, page.title),
  );
  const several = set.sets.length > 1 && route.name !== "compare";
  const choose = () => select("Data set", set.sets, set.data, (at) => go(route.name, { data: at }));
  const logo = h("img", { src: "icon.svg", alt: "" });
  const tools = [
    button("◐", theme, { title: "Light or dark (t)", "aria-label": "Light or dark" }),
    button("?", help, { title: "Keyboard (?)", "aria-label": "Help" }),
  ];
  top.replaceChildren(
    h("a", { class: "brand", href: link("overview"), "aria-label": "Overview" }, logo),
    several ? choose() : data(ending(set.name, 44), 80, { class: "name", title: visible(set.name) }),
    h("nav", { "aria-label": "Pages" }, links),
    h("div", { class: "tools" }, tools),
  );
  document.title = `${PAGES.get(route.name).title} · ${visible(ending(set.name, 60))}`;
}

function stored(name, value) {
  // A browser that keeps nothing for this origin refuses.
  try {
    if (value !== undefined) localStorage.setItem(name, value);
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : DARK.matches;
}

function theme() {
  const other = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = other;
  stored("theme", other);
  document.dispatchEvent(new Event("themechange"));
}

function help() {
  const row = ([keys, what]) => h("tr", {}, h("th", { scope: "row" }, h("kbd", {}, keys)), h("td", {}, what));
  const head = title(h("h2", {}, "Keyboard"), button("Close", () => box.close()));
  const box = dialog("Keyboard", head, h("table", { class: "keys" }, h("tbody", {}, KEYS.map(row))));
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const typing = event.target.closest("input:not([type=range]), select, textarea");
  if (typing) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const set = parse().query.get("data");
  // What the shown page does, or the page that a key names once it is drawn.
  const act = (what, page) => (shown?.[what] ? shown[what]() : go(page, { data: set }).then(() => shown?.[what]?.()));
  const answer = () => {
    if (document.querySelector("dialog[open]")) return false;
    if (event.key === "?") return help();
    if (event.key === "t") return theme();
    if (event.key === "g") return act("jump", "rows");
    if (event.key === "/") return act("filter", "filter");
    const place = Number(event.key) - 1;
    const tab = top.querySelectorAll("nav a")[place];
    if (event.key >= "1" && tab) return tab.click();
    return shown?.keys(event) ?? false;
  };
  if (answer() !== false) event.preventDefault();
}

let stopNews = () => {};

// The browser opens six connections to one host, for all its windows: a hidden page gives its own back.
function watchChanges() {
  stopNews();
  if (document.hidden) return;
  const controller = new AbortController();
  stopNews = () => controller.abort();
  const receive = (change) => {
    if (!change.changed?.length) return;
    overviews.clear();
    const names = change.changed.slice(0, MOST_NEWS).map(({ name, what }) => `${visible(name, 80)} (${what})`);
    const text = `Changed: ${plural(change.changed.length, "shard")}, ${names.join(", ")} `;
    news.replaceChildren(h("p", {}, text, button("Reload", () => location.reload())));
  };
  follow("changes", { data: parse().query.get("data") ?? 0 }, controller.signal, receive, () => {});
}

document.getElementById("skip").addEventListener("click", () => main.focus());
document.addEventListener("keydown", pressed);
document.addEventListener("visibilitychange", watchChanges);
addEventListener("popstate", draw);
addEventListener("pagehide", () => shown?.controller.abort());
addEventListener("pageshow", (event) => event.persisted && location.reload());
DARK.addEventListener("change", () => document.dispatchEvent(new Event("themechange")));
if (stored("theme")) document.documentElement.dataset.theme = stored("theme");
await draw();
watchChanges();
