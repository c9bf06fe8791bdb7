// Elements, text and numbers. Every value of a file becomes text; nothing is ever parsed as markup.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, entry] of Object.entries(value)) element.style.setProperty(key, entry);
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// Control and bidirectional formatting characters have no glyph of their own, or reorder the text around them.
const HIDDEN = /[^\P{C}\t\n\p{Cn}]|[\u2028\u2029]/gu;

export function visible(text, limit = Infinity) {
  const cut = text.length > limit ? `${text.slice(0, limit)}…` : text;
  const escape = (letter) => `‹U+${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`;
  return cut.toWellFormed().replace(HIDDEN, escape);
}

// Text of a file, isolated so that its direction does not change that of its surroundings.
export function data(text, limit = Infinity, attributes = {}) {
  return h("bdi", attributes, visible(String(text), limit));
}

// The end of a name that is longer than a number of letters: nested names begin alike. It starts after a slash.
export function ending(name, letters) {
  if (name.length <= letters) return name;
  const end = name.slice(1 - letters);
  const slash = end.indexOf("/");
  return `…${slash >= 0 && slash < end.length - 1 ? end.slice(slash) : end}`;
}

const GROUPED = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(number) {
  return number === null || number === undefined ? "?" : GROUPED.format(number);
}

export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : noun.endsWith("x") ? "es" : "s"}`;
}

export function number(value) {
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return String(value);
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(3).replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(5)));
}

export function bytes(size) {
  if (size === null || size === undefined) return "?";
  let value = size;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024) return unit === "B" ? `${value} B` : `${value.toPrecision(value < 1000 ? 3 : 4)} ${unit}`;
    value /= 1024;
  }
  return `${value.toPrecision(3)} TiB`;
}

// The colour of a custom property, as canvases need it: probed, since light-dark() is resolved for elements only.
export function colour(name) {
  const probe = document.getElementById("skip");
  probe.style.setProperty("outline-color", `var(--${name})`);
  return getComputedStyle(probe).outlineColor;
}

export const SERIES = ["s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8"];

export async function copy(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Could not copy";
  }
  setTimeout(() => (button.textContent = label), 1500);
}

export function button(label, onclick, attributes = {}) {
  return h("button", { type: "button", onclick, ...attributes }, label);
}

// `options`: paths of the values 0, 1, …, of which the ends differ.
export function select(label, options, chosen, change) {
  const option = (text, at) => {
    const attributes = { value: String(at), selected: at === chosen, title: visible(text) };
    return h("option", attributes, visible(ending(text, 48)));
  };
  const onchange = (event) => change(Number(event.target.value));
  return h("select", { "aria-label": label, onchange }, options.map(option));
}

// A form for a row number, and a function that puts the cursor into it.
export function numberForm(label, value, call, before = [], after = []) {
  const input = h("input", { inputmode: "numeric", value, placeholder: "number", "aria-label": label, id: "jump" });
  const submit = (event) => {
    event.preventDefault();
    const number = Number(input.value.replace(/[ ,_]/g, "") || NaN);
    if (Number.isInteger(number) && number >= 0) return call(number);
    input.setCustomValidity("A whole number, 0 or more");
    input.reportValidity();
  };
  input.addEventListener("input", () => input.setCustomValidity(""));
  return [h("form", { class: "buttons", onsubmit: submit }, before, input, after), () => input.select()];
}

// A box that scrolls, which the keyboard can reach.
export function scrollable(label, ...children) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, ...children);
}

// `heads`: names of the columns; a leading "#" aligns numbers.
export function table(heads, rows, attributes = {}) {
  const head = heads.map((name) => {
    return h("th", { scope: "col", class: name[0] === "#" ? "n" : null }, visible(name.replace(/^#/, ""), 80));
  });
  return h("table", attributes, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows));
}

export function facts(entries) {
  const known = Object.entries(entries).filter(([, value]) => value !== null && value !== undefined);
  const shown = known.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)));
  return h("dl", { class: "facts" }, shown);
}

export function codeBlock(text, label = "Copy as Python") {
  const control = button(label, () => copy(text, control), { class: "small" });
  return h("div", { class: "code" }, h("pre", { tabindex: "0", "aria-label": "Code" }, visible(text)), control);
}

export function notice(title, detail = "", kind = "empty") {
  const role = kind === "error" ? "alert" : undefined;
  return h("div", { class: `notice ${kind}`, role }, h("strong", {}, data(title)), detail && h("p", {}, data(detail)));
}

export function failure(error) {
  return notice(error.message, error.detail, "error");
}

// Show what `draw` makes of an answer in a box, or the error, unless another request came meanwhile.
export async function fill(box, request, draw) {
  box.request = request;
  let nodes;
  try {
    nodes = draw(await request);
  } catch (error) {
    nodes = error.name === "AbortError" ? null : [failure(error)];
  }
  if (nodes && box.request === request) box.replaceChildren(...nodes);
}

// The head of a section: what is alone or a group of buttons at the end is put to the right.
export function title(...children) {
  return h("div", { class: "title" }, children);
}

export function note(...text) {
  return h("span", { class: "small-note" }, text);
}

export function debounce(wait, call) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...values), wait);
  };
}

// A canvas of this size in CSS pixels, and its context in the same units; the device may have more.
export function canvas(width, height, label) {
  const scale = Math.min(globalThis.devicePixelRatio || 1, 3);
  const style = { width: `${width}px`, height: `${height}px` };
  const element = h("canvas", { role: "img", "aria-label": visible(label, 300), style });
  element.width = Math.round(width * scale);
  element.height = Math.round(height * scale);
  const context = element.getContext("2d");
  context.scale(scale, scale);
  return [element, context];
}

export function dialog(label, ...children) {
  const onclick = (event) => event.target === box && box.close();
  const box = h("dialog", { "aria-label": label, onclick, onclose: () => box.remove() }, children);
  document.body.append(box);
  box.showModal();
  return box;
}
