// The shell: which page the address names, its life, the keyboard, the theme, and news of changed files.

import { Failure, follow, get } from "./api.js";
import { bytesPage } from "./bytes.js";
import { comparePage } from "./compare.js";
import { data, dialog, h, notice, plural, visible } from "./dom.js";
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
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null && value !== "" && !(key === "data" && String(value) === "0")) {
      query.set(key, value);
    }
  }
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

// Change parameters of the shown page. Its state changed already, so nothing is drawn again.
function remember(parameters, { push = false } = {}) {
  const { name, query } = parse();
  const hash = link(name, { ...Object.fromEntries(query), ...parameters });
  if (hash === location.hash) return;
  history[push ? "pushState" : "replaceState"](null, "", hash);
  if (shown) shown.key = keyOf(parse());
}

function showRecord(row) {
  const { name, query } = parse();
  return go(name, { ...Object.fromEntries(query), record: row });
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
      const parts = { main, query: route.query, signal: controller.signal, set, go, remember, link, showRecord, overviewOf };
      const handlers = await PAGES.get(route.name).draw(parts);
      Object.assign(page, handlers);
    } catch (error) {
      if (controller.signal.aborted || error.name === "AbortError") return;
      if (!(error instanceof Failure)) console.error(error);
      main.replaceChildren(notice(error.message, error.detail ?? "", "error"));
    }
  }
  const row = parse().query.get("record");
  const set = Number(parse().query.get("data") ?? 0);
  if (shown?.record !== row && shown) {
    shown.record = row;
    openRecord(row, {
      set,
      overview: row === null ? null : await overviewOf(set),
      showRecord,
      step: shown.step,
      link,
      close: () => {
        const { name, query } = parse();
        if (query.has("record")) go(name, { ...Object.fromEntries(query), record: null });
      },
    });
  }
}

function drawTop(route, set) {
  const tabs = [...PAGES].filter(([, page]) => page.offered?.(set) ?? true);
  const links = tabs.map(([name, page]) =>
    h("a", { href: link(name, { data: set.data }), "aria-current": name === route.name ? "page" : null }, page.title),
  );
  const choose = h(
    "select",
    { id: "set", "aria-label": "Data set", onchange: () => go(route.name, { data: choose.value }) },
    set.sets.map((name, at) => h("option", { value: String(at), selected: at === set.data }, visible(name, 60))),
  );
  top.replaceChildren(
    h("a", { class: "brand", href: link("overview"), "aria-label": "Overview" }, h("img", { src: "icon.svg", alt: "" })),
    set.sets.length > 1 ? choose : data(set.name, 80, { class: "name", title: visible(set.name) }),
    h("nav", { "aria-label": "Pages" }, links),
    h(
      "div",
      { class: "tools" },
      h("button", { type: "button", id: "theme", title: "Light or dark (t)", "aria-label": "Light or dark", onclick: theme }, "◐"),
      h("button", { type: "button", id: "help", title: "Keyboard (?)", "aria-label": "Help", onclick: help }, "?"),
    ),
  );
  document.title = `${PAGES.get(route.name).title} · ${visible(set.name, 60)}`;
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
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function theme() {
  document.documentElement.dataset.theme = stored("theme", isDark() ? "light" : "dark") ?? (isDark() ? "light" : "dark");
  document.dispatchEvent(new Event("themechange"));
}

function help() {
  const rows = KEYS.map(([keys, what]) => h("tr", {}, h("th", { scope: "row" }, h("kbd", {}, keys)), h("td", {}, what)));
  const box = dialog(
    "Keyboard",
    h("div", { class: "title" }, h("h2", {}, "Keyboard"), h("button", { type: "button", onclick: () => box.close() }, "Close")),
    h("table", { class: "keys" }, h("tbody", {}, rows)),
  );
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const typing = event.target.closest("input:not([type=range]), select, textarea");
  if (typing) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const { query } = parse();
  const set = query.get("data");
  const act = () => {
    if (document.querySelector("dialog[open]")) return shown?.recordKeys?.(event) ?? false;
    if (event.key === "?") return help();
    if (event.key === "t") return theme();
    if (event.key === "g") return shown?.jump ? shown.jump() : go("rows", { data: set }).then(() => shown?.jump?.());
    if (event.key === "/") return shown?.filter ? shown.filter() : go("filter", { data: set }).then(() => shown?.filter?.());
    const place = Number(event.key) - 1;
    const tab = top.querySelectorAll("nav a")[place];
    if (event.key >= "1" && tab) return tab.click();
    return shown?.keys(event) ?? false;
  };
  if (act() !== false) event.preventDefault();
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
    const reload = h("button", { type: "button", onclick: () => location.reload() }, "Reload");
    const text = change.changed.length === 1 ? visible(change.changed[0].name, 80) : plural(change.changed.length, "shard");
    const verb = change.changed.length === 1 ? ` has ${change.changed[0].what}.` : " have changed.";
    news.replaceChildren(h("p", {}, text, verb, " ", reload));
  };
  follow("changes", { data: parse().query.get("data") ?? 0 }, controller.signal, receive, () => {});
}

document.getElementById("skip").addEventListener("click", () => main.focus());
document.addEventListener("keydown", pressed);
document.addEventListener("visibilitychange", watchChanges);
addEventListener("popstate", draw);
addEventListener("pagehide", () => shown?.controller.abort());
addEventListener("pageshow", (event) => event.persisted && location.reload());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("themechange")));
if (stored("theme")) document.documentElement.dataset.theme = stored("theme");
await draw();
watchChanges();
