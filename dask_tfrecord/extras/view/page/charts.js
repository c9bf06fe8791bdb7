// Charts: curves by uPlot, and histograms whose bars are options of a list, for the keyboard and for screen readers.

import { SERIES, colour, count, h, note, number, plural, visible } from "./dom.js";

export const MOST_CURVES = 16;
const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 100000];

// Curves over steps. `lines`: [{label, values}]; a number that is missing leaves a gap. `cursor(step)`: a click.
export function curves(lines, { height = 160, cursor, label }) {
  const series = lines.slice(0, MOST_CURVES);
  const figure = h("figure", { class: "curves", role: "img", "aria-label": visible(label, 200) });
  const steps = series[0].values.map((_, step) => step);
  let plot = null;
  let marked = null;
  const width = () => Math.max(figure.clientWidth, 160);
  const mark = (chart) => {
    if (marked === null) return;
    const at = Math.round(chart.valToPos(marked, "x", true));
    const { ctx, bbox } = chart;
    ctx.save();
    ctx.strokeStyle = colour("accent");
    ctx.lineWidth = 2 * devicePixelRatio;
    ctx.beginPath();
    ctx.moveTo(at, bbox.top);
    ctx.lineTo(at, bbox.top + bbox.height);
    ctx.stroke();
    ctx.restore();
  };
  const line = (one, at) => ({
    label: one.label,
    stroke: colour(SERIES[at % SERIES.length]),
    width: 1.5,
    points: { show: one.values.length < 3, size: 5 },
    dash: at >= SERIES.length ? [6, 3] : undefined,
  });
  const make = () => {
    plot?.destroy();
    const grid = { stroke: colour("line"), width: 1 };
    const axis = { stroke: colour("muted"), grid, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const options = {
      width: width(),
      height,
      padding: [8, 8, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 5 } },
      scales: { x: { time: false } },
      axes: [
        { ...axis, size: 26, incrs: STEPS },
        { ...axis, size: 52, values: (_, splits) => splits.map(number) },
      ],
      series: [{ label: "step" }, ...series.map(line)],
      hooks: { draw: [mark] },
    };
    plot = new uPlot(options, [steps, ...series.map((one) => one.values.map(finite))], figure);
    if (cursor) plot.over.addEventListener("click", () => plot.cursor.idx !== null && cursor(plot.cursor.idx));
  };
  const again = () => figure.isConnected && make();
  const sized = new ResizeObserver(() => plot?.width !== width() && make());
  sized.observe(figure);
  document.addEventListener("themechange", again);
  const names = series.map((one, at) => {
    const style = { "--tone": `var(--${SERIES[at % SERIES.length]})` };
    return h("li", { style }, visible(one.label, 40));
  });
  const legend = names.length > 1 && h("ul", { class: "legend" }, names);
  const more = lines.length > series.length && note(`and ${plural(lines.length - series.length, "component")} more`);
  return {
    element: h("div", {}, figure, legend, more),
    point(step) {
      marked = step;
      plot?.redraw(false);
    },
    close() {
      sized.disconnect();
      document.removeEventListener("themechange", again);
      plot?.destroy();
    },
  };
}

// A number that can be drawn, or null: flags are 0 and 1.
export function finite(value) {
  if (typeof value === "boolean") return Number(value);
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

// A histogram of [{label, count}]. `choose(index)` is called for a bar.
export function bars(label, entries, choose) {
  const sum = entries.reduce((total, entry) => total + entry.count, 0) || 1;
  const share = shareOf(entries);
  return options("bars", label, entries, choose, (entry) => {
    const text = `${visible(entry.label, 80)}: ${count(entry.count)} (${((100 * entry.count) / sum).toFixed(1)} %)`;
    const height = entry.count ? `max(2px, ${share(entry)})` : "0";
    return [{ title: text, "aria-label": text }, h("div", { class: "bar", style: { height } })];
  });
}

// The most frequent values, one a line with a bar behind it.
export function topValues(label, entries, choose) {
  const share = shareOf(entries);
  return options("values", label, entries, choose, (entry) => [
    {},
    h("span", { class: "share", style: { width: share(entry) } }),
    h("bdi", { class: "value" }, visible(entry.label, 60)),
    h("span", { class: "count" }, count(entry.count)),
  ]);
}

// The part of the highest count that an entry has, for a style.
function shareOf(entries) {
  const highest = Math.max(1, ...entries.map((entry) => entry.count));
  return (entry) => `${(100 * entry.count) / highest}%`;
}

// Options that arrows move through, `across()` of them in a line. `draw` makes the attributes and children of one.
export function options(name, label, entries, choose, draw, across = () => 1) {
  const made = entries.map((entry, at) => {
    const [attributes, ...children] = draw(entry);
    const tabIndex = choose && at === 0 ? 0 : -1;
    const option = { role: "option", "aria-selected": "false", tabIndex, onclick: () => choose?.(at) };
    return h("div", { ...option, ...attributes }, children);
  });
  const onkeydown = (event) => {
    const at = made.indexOf(event.target);
    const lines = { ArrowDown: at + across(), ArrowUp: at - across() };
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: made.length - 1, ...lines }[event.key];
    if (next !== undefined) made[Math.max(0, Math.min(next, made.length - 1))].focus();
    else if (event.key === "Enter" || event.key === " ") choose?.(at);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const onfocusin = ({ target }) => made.forEach((one) => (one.tabIndex = one === target ? 0 : -1));
  const attributes = { role: "listbox", "aria-label": visible(label, 120), onkeydown, onfocusin };
  return h("div", { ...attributes, class: choose ? `${name} can` : name }, made);
}
