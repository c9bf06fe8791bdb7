// Charts: curves by uPlot, and histograms whose bars are options of a list, for the keyboard and for screen readers.

import { SERIES, colour, count, h, number, visible } from "./dom.js";

// Lines over one axis. `series`: [{label, values}]; a number that is missing leaves a gap. Returns {element, point, close}.
export function curves(series, { x, height = 160, cursor, label, xLabel = "step" }) {
  const element = h("figure", { class: "curves", role: "img", "aria-label": visible(label, 200) });
  const steps = x ?? series[0].values.map((_, step) => step);
  let plot = null;
  let marked = null;
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
  const make = () => {
    plot?.destroy();
    const axis = {
      stroke: colour("muted"),
      grid: { stroke: colour("line"), width: 1 },
      ticks: { show: false },
      font: "11px system-ui, sans-serif",
    };
    const options = {
      width: Math.max(element.clientWidth, 160),
      height,
      padding: [8, 8, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 5 } },
      scales: { x: { time: false } },
      axes: [
        { ...axis, size: 26, incrs: x ? undefined : [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 100000] },
        { ...axis, size: 52, values: (_, splits) => splits.map(number) },
      ],
      series: [
        { label: xLabel },
        ...series.map((one, at) => ({
          label: one.label,
          stroke: colour(SERIES[at % SERIES.length]),
          width: 1.5,
          points: { show: one.values.length < 3, size: 5 },
          dash: at >= SERIES.length ? [6, 3] : undefined,
        })),
      ],
      hooks: { draw: [mark] },
    };
    plot = new uPlot(options, [steps, ...series.map((one) => one.values.map(finite))], element);
    if (cursor) plot.over.addEventListener("click", () => plot.cursor.idx !== null && cursor(plot.cursor.idx));
  };
  const again = () => element.isConnected && make();
  const sized = new ResizeObserver(() => {
    if (!plot) make();
    else if (Math.abs(plot.width - element.clientWidth) > 1) plot.setSize({ width: Math.max(element.clientWidth, 160), height });
  });
  sized.observe(element);
  document.addEventListener("themechange", again);
  return {
    element,
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

export function legend(labels) {
  return h("ul", { class: "legend" }, labels.map((label, at) => h("li", { class: SERIES[at % SERIES.length] }, visible(label, 40))));
}

export function finite(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

// Bars: [{label, count, other}], `other` the count of a second data set. `choose(index)` is called for a bar.
export function bars(label, entries, choose) {
  const highest = Math.max(1, ...entries.map((entry) => Math.max(entry.count, entry.other ?? 0)));
  const sum = entries.reduce((total, entry) => total + entry.count, 0) || 1;
  const options = entries.map((entry, at) => {
    const text = `${visible(entry.label, 80)}: ${count(entry.count)} (${((100 * entry.count) / sum).toFixed(1)} %)`;
    const bar = h("div", { class: "bar" });
    bar.style.setProperty("height", entry.count ? `max(2px, ${(100 * entry.count) / highest}%)` : "0");
    const parts = [bar];
    if (entry.other !== undefined) {
      const second = h("div", { class: "bar other" });
      second.style.setProperty("height", entry.other ? `max(2px, ${(100 * entry.other) / highest}%)` : "0");
      parts.push(second);
    }
    const tabIndex = choose && at === 0 ? 0 : -1;
    return h("div", { role: "option", title: text, "aria-label": text, "aria-selected": "false", tabIndex, onclick: () => choose?.(at) }, parts);
  });
  return list("bars", label, options, choose);
}

// The most frequent values, one a line with a bar behind it.
export function topValues(label, entries, choose) {
  const highest = Math.max(1, ...entries.map((entry) => entry.count));
  const options = entries.map((entry, at) => {
    const share = h("span", { class: "share" });
    share.style.setProperty("width", `${(100 * entry.count) / highest}%`);
    const text = h("bdi", { class: "value" }, visible(entry.label, 60));
    const tabIndex = choose && at === 0 ? 0 : -1;
    const parts = [share, text, h("span", { class: "count" }, count(entry.count))];
    return h("div", { role: "option", "aria-selected": "false", tabIndex, onclick: () => choose?.(at) }, parts);
  });
  return list("values", label, options, choose);
}

function list(name, label, options, choose) {
  const move = (event) => {
    const at = options.indexOf(event.target);
    const next = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: options.length - 1 }[event.key];
    if (next !== undefined) {
      const target = options[Math.max(0, Math.min(next, options.length - 1))];
      options[at].tabIndex = -1;
      target.tabIndex = 0;
      target.focus();
    } else if (event.key === "Enter" || event.key === " ") choose?.(at);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return h("div", { role: "listbox", class: `${name} ${choose ? "can" : ""}`, "aria-label": visible(label, 120), onkeydown: move }, options);
}
