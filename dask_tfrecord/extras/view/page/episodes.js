// Episodes: one row, step by step: cameras, curves of numbers with a cursor, the instruction, and play.

import { get } from "./api.js";
import { curves } from "./charts.js";
import { button, count, data, debounce, h, note, notice, number, numberForm, plural, select, title, visible } from "./dom.js";
import { heat, picture } from "./values.js";

const FRAME_MS = 100;

export async function episodesPage({ main, query, set, signal, change, remember }) {
  const row = Math.max(0, Number(query.get("row")) || 0);
  const group = query.get("group") ?? set.groups[0];
  if (group === undefined) {
    main.append(notice("No groups", "No features share their row lengths, so there are no steps to show."));
    return {};
  }
  const episode = await get("episode", { data: set.data, row, group }, signal);
  const last = Math.max(0, episode.length - 1);
  let step = Math.min(last, Math.max(0, Number(query.get("step")) || 0));
  // The number of the run that plays; a later one ends it.
  let playing = 0;
  let runs = 0;

  const slider = h("input", { type: "range", min: "0", max: String(last), "aria-label": "Step", id: "step" });
  const output = h("output", { for: "step" });
  const play = button("▶ Play", toggle, { class: "main" });
  const frames = episode.images.map((name) => camera(set, row, set.columns.find((column) => column.name === name)));
  const plots = [
    ...Object.entries(episode.curves).map(([name, found]) => plot(name, found, (at) => show(at))),
    ...Object.entries(episode.maps).map(([name, found]) => heatMap(name, found, last)),
  ];
  const keep = debounce(200, () => !signal.aborted && remember({ step: step || null, row: row || null }));
  const move = (to) => {
    if (to >= 0 && to < (set.nrows ?? Infinity) && to !== row) change({ row: to, step: null });
  };
  const earlier = button("←", () => move(row - 1), { "aria-label": "Previous episode", disabled: row === 0 });
  const atEnd = row + 1 === set.nrows;
  const later = button("→", () => move(row + 1), { "aria-label": "Next episode", disabled: atEnd });
  const [form, focus] = numberForm("Episode", String(row), move, earlier, later);
  const named = (at) => change({ group: set.groups[at] });
  const groups = set.groups.length > 1 && select("Group", set.groups, set.groups.indexOf(group), named);
  const length = h("span", { class: "muted" }, plural(episode.length, "step"));
  main.append(
    title(h("h1", {}, `Episode ${count(row)}`), length, groups, form),
    ...(episode.instruction ? [h("p", { class: "instruction" }, data(episode.instruction, 600))] : []),
    h("div", { class: "scrubber" }, play, slider, output),
    h("div", { class: "cameras" }, frames.map((frame) => frame.element)),
    h("div", { class: "plots" }, plots.map((one) => one.element)),
  );
  if (!episode.length) main.append(notice("No steps", "This row has no values in the group."));

  function show(to) {
    step = Math.max(0, Math.min(to, last));
    slider.value = String(step);
    slider.setAttribute("aria-valuetext", `step ${step} of ${episode.length}`);
    output.textContent = `${step} / ${last}`;
    for (const one of plots) one.point(step);
    keep();
    return Promise.all(frames.map((frame) => frame.show(step)));
  }

  async function run(number) {
    while (playing === number && !signal.aborted) {
      const shown = show(step >= last ? 0 : step + 1);
      await Promise.all([shown, new Promise((resolve) => setTimeout(resolve, FRAME_MS))]);
      if (step >= last) toggle();
    }
  }

  function toggle() {
    playing = playing ? 0 : ++runs;
    play.textContent = playing ? "❚❚ Pause" : "▶ Play";
    if (playing) run(playing);
  }

  slider.addEventListener("input", () => show(Number(slider.value)));
  signal.addEventListener("abort", () => {
    playing = 0;
    for (const one of plots) one.close();
  });
  show(step);
  const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -last, End: last };
  const keys = (event) => {
    if (event.target === slider && event.key !== " ") return false;
    if (event.key in steps) show(step + steps[event.key]);
    else if (event.key === " " && !event.target.closest("button")) toggle();
    else if (event.key === "ArrowDown") move(row + 1);
    else if (event.key === "ArrowUp") move(row - 1);
    else return false;
    return true;
  };
  return { keys, jump: focus };
}

function camera(set, row, column) {
  const shown = h("img", { alt: "", decoding: "sync" });
  const frame = h("div", { class: "picture" }, shown);
  const name = column.name.split("/").at(-1);
  const element = h("section", { class: "panel" }, h("h3", { title: visible(column.name) }, data(name, 60)), frame);
  const show = async (step) => {
    const next = new Image();
    next.src = picture(set, row, column, step, Math.max(160, frame.clientWidth));
    frame.wanted = step;
    // The frame before stays until the next one is decoded.
    await next.decode().catch(() => {});
    if (frame.wanted !== step) return;
    shown.src = next.src;
    shown.alt = `${visible(name, 60)} at step ${step}`;
    frame.classList.toggle("exact", next.naturalWidth * 2 < frame.clientWidth);
  };
  return { element, show };
}

function plot(name, found, cursor) {
  const lines = found.map((values, at) => ({ label: String(at), values }));
  const chart = curves(lines, { label: `Curves of ${name}`, cursor, height: 150 });
  const now = h("p", { class: "nows" });
  const head = h("h3", { title: visible(name) }, data(name.split("/").at(-1), 60));
  const element = h("section", { class: "panel" }, head, chart.element, now);
  const point = (step) => {
    chart.point(step);
    now.textContent = lines.map((line) => number(line.values[step] ?? "–")).join("  ");
  };
  return { element, point, close: chart.close };
}

// Many components as a heat map, a row per component, with the step marked.
function heatMap(name, found, last) {
  const mark = h("div", { class: "mark" });
  const drawn = heat(found, 520, 130, `heat map of ${name}`);
  const about = note(`${plural(found.shape[0], "component")} × ${plural(found.shape[1], "step")}, ${found.range}`);
  const head = h("h3", { title: visible(name) }, data(name.split("/").at(-1), 60));
  const element = h("section", { class: "panel" }, head, h("div", { class: "heat" }, drawn, mark), about);
  const point = (step) => mark.style.setProperty("left", `${(100 * (step + 0.5)) / (last + 1)}%`);
  return { element, point, close: () => {} };
}
