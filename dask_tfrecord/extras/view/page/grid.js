// A grid of any number of rows. Only those in sight exist as elements, which are used again while scrolling.

import { button, h } from "./dom.js";

// Browsers limit an element to about 33 million pixels, some to half of it; above this height, positions are mapped.
const TALLEST = 8e6;

export class Grid {
  // columns: [{key, label, width, sort}]; fill(row element, index): draw a row; opened(index); sorted(column).
  constructor({ label, columns, height, fill, opened, moved, sorted }) {
    Object.assign(this, { columns, height, fill, opened, moved });
    this.total = 0;
    this.position = 0;
    this.active = 0;
    this.free = [];
    this.drawn = new Map();
    this.generation = 0;
    this.width = columns.reduce((sum, column) => sum + column.width, 0);
    this.header = this.line("columnheader", { class: "row head", "aria-rowindex": "1" });
    columns.forEach((column, at) => {
      const cell = this.header.children[at];
      if (column.sorted) cell.setAttribute("aria-sort", column.sorted);
      const sort = () => sorted(column);
      cell.append(column.sort ? button(column.label(), sort, { tabIndex: -1 }) : column.label());
    });
    this.layer = h("div", { role: "rowgroup", class: "layer" });
    this.space = h("div", { class: "space", role: "presentation" });
    const heads = h("div", { role: "rowgroup", class: "heads" }, this.header);
    const attributes = { "aria-label": label, "aria-colcount": String(columns.length), tabindex: "0" };
    this.element = h("div", { role: "grid", class: "grid", ...attributes }, heads, this.layer, this.space);
    this.element.addEventListener("keydown", (event) => this.pressed(event) && event.preventDefault());
    this.element.addEventListener("scroll", () => this.scrolled());
    for (const part of [this.layer, this.space, this.header]) part.style.setProperty("width", `${this.width}px`);
    this.element.style.setProperty("--row", `${height}px`);
    this.sized = new ResizeObserver(() => this.resize());
    this.sized.observe(this.element);
  }

  get visibleHeight() {
    return Math.max(this.element.clientHeight - this.header.offsetHeight, this.height);
  }

  get lastPosition() {
    return Math.max(0, this.total * this.height - this.visibleHeight);
  }

  // Pixels that the bar of the browser can move by, and pixels of rows for each of them.
  get travel() {
    return Math.max(0, Math.min(this.total * this.height, TALLEST) - this.visibleHeight);
  }

  get ratio() {
    return this.travel ? this.lastPosition / this.travel : 1;
  }

  get inSight() {
    const first = Math.floor(this.position / this.height);
    return [first, Math.min(this.total, Math.ceil((this.position + this.visibleHeight) / this.height))];
  }

  setTotal(total) {
    this.total = total;
    this.element.setAttribute("aria-rowcount", String(total + 1));
    this.active = Math.max(0, Math.min(this.active, total - 1));
    this.resize();
  }

  resize() {
    const visibleHeight = this.visibleHeight;
    this.layer.style.setProperty("height", `${visibleHeight}px`);
    this.space.style.setProperty("height", `${this.travel}px`);
    this.position = Math.min(this.position, this.lastPosition);
    this.place();
    this.draw();
  }

  // Put the bar where the rows are, as far as they differ: after small steps through many rows, and at both ends.
  place() {
    this.bar = this.position / this.ratio;
    if (Math.abs(this.element.scrollTop - this.bar) >= 1) this.element.scrollTop = this.bar;
    this.bar = this.element.scrollTop;
  }

  scrolled() {
    const now = this.element.scrollTop;
    const step = now - this.bar;
    if (step) {
      this.bar = now;
      // A wheel or finger moves rows by as many pixels as it moves the bar; a dragged bar moves to the same fraction.
      const small = Math.abs(step) < this.visibleHeight && now > 0 && now < this.travel;
      this.position = this.ratio === 1 || !small ? now * this.ratio : this.position + step;
      this.position = Math.max(0, Math.min(this.position, this.lastPosition));
    }
    if (!this.waiting) this.waiting = requestAnimationFrame(() => this.draw());
    clearTimeout(this.settled);
    if (this.ratio !== 1) this.settled = setTimeout(() => this.place(), 200);
  }

  draw() {
    cancelAnimationFrame(this.waiting);
    this.waiting = 0;
    const [first, stop] = this.inSight;
    for (const [index, row] of this.drawn) {
      if (index >= first && index < stop) continue;
      this.drawn.delete(index);
      this.free.push(row);
    }
    for (let index = first; index < stop; index++) {
      let row = this.drawn.get(index);
      if (!row) {
        row = this.free.pop() ?? this.newRow();
        // Screen readers and searches of the browser follow the order of the elements.
        if (index > first) this.drawn.get(index - 1).after(row);
        else this.layer.prepend(row);
        this.drawn.set(index, row);
        row.index = index;
        row.setAttribute("aria-rowindex", String(index + 2));
        this.fill(row, index);
        row.hidden = false;
      }
      row.classList.toggle("active", index === this.active);
      row.style.setProperty("transform", `translateY(${Math.round(index * this.height - this.position)}px)`);
    }
    for (const row of this.free) row.hidden = true;
    const active = this.drawn.get(this.active);
    if (active) this.element.setAttribute("aria-activedescendant", active.id);
    else this.element.removeAttribute("aria-activedescendant");
    this.moved?.(first, stop);
  }

  line(role, attributes) {
    return h("div", { role: "row", ...attributes }, this.columns.map((column, at) => {
      const cell = { role, "aria-colindex": String(at + 1), class: column.class };
      return h("div", { ...cell, style: { width: `${column.width}px` } });
    }));
  }

  newRow() {
    const row = this.line("gridcell", { class: "row", id: `row-${this.generation++}` });
    row.addEventListener("click", () => {
      this.active = row.index;
      this.draw();
      this.opened(row.index);
    });
    return row;
  }

  // Fill rows again, after values have come.
  refill() {
    for (const [index, row] of this.drawn) this.fill(row, index);
  }

  show(index, { top = false } = {}) {
    this.active = Math.max(0, Math.min(index, this.total - 1));
    const at = this.active * this.height;
    const lowest = at + this.height - this.visibleHeight;
    this.position = top ? at : Math.min(at, Math.max(lowest, this.position));
    this.position = Math.max(0, Math.min(this.position, this.lastPosition));
    this.place();
    this.draw();
  }

  pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return false;
    const screen = Math.max(1, Math.floor(this.visibleHeight / this.height) - 1);
    const steps = { ArrowUp: -1, ArrowDown: 1, PageUp: -screen, PageDown: screen, Home: -this.total, End: this.total };
    if (event.key in steps) this.show(this.active + steps[event.key]);
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      this.element.scrollLeft += event.key === "ArrowRight" ? 120 : -120;
    } else if (event.key === "Enter" && this.total) this.opened(this.active);
    else return false;
    return true;
  }

  close() {
    this.sized.disconnect();
    clearTimeout(this.settled);
    cancelAnimationFrame(this.waiting);
  }
}
