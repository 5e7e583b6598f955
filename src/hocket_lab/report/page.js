"use strict";
const SVG = "http://www.w3.org/2000/svg";
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

// Tables: the head of a column sorts by it, and pressed again in the other direction.
// Unknown values stay at the end.
function sortBy(table, column, button) {
  const head = button.closest("th");
  const ascending = head.getAttribute("aria-sort") !== "ascending";
  all("th[aria-sort]", table).forEach((th) => th.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  const key = (row) => row.cells[column].dataset.value;
  const compare = (a, b) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    const [x, y] = [Number(a), Number(b)];
    const order = Number.isNaN(x) || Number.isNaN(y)
      ? a.localeCompare(b, "en", { numeric: true }) : x - y;
    return ascending ? order : -order;
  };
  const body = table.tBodies[0];
  body.append(...[...body.rows].sort((a, b) => compare(key(a), key(b))));
}
for (const table of all("table.sortable")) {
  all("thead button", table).forEach((button, column) =>
    button.addEventListener("click", () => sortBy(table, column, button)));
}

// Legend: a group is shown or hidden in all charts.
for (const button of all("[data-toggle]")) {
  button.addEventListener("click", () => {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    for (const line of all(`.chart [data-group="${button.dataset.toggle}"]`)) {
      line.classList.toggle("hidden", !shown);
    }
  });
}

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = getComputedStyle(root).colorScheme === "dark"
    || (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  root.dataset.theme = dark ? "light" : "dark";
});

// Charts: the values of all groups at the pointer, read back from the drawn lines.
function scale(text) {
  const [least, greatest, start, end] = text.split(" ").map(Number);
  const log = text.endsWith("log");
  return (place) => {
    const share = (place - start) / (end - start);
    return log ? least * (greatest / least) ** share : least + share * (greatest - least);
  };
}
const shorten = (value) => value.toLocaleString("en", { maximumSignificantDigits: 4 });
for (const chart of all(".chart")) {
  const [toX, toY] = [scale(chart.dataset.x), scale(chart.dataset.y)];
  const output = chart.parentNode.querySelector("output");
  const cursor = chart.querySelector(".cursor");
  const lines = all("g[data-group]", chart).map((group) => ({
    group,
    points: [...group.querySelector(".mean").points],
  })).filter((line) => line.points.length);
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const place = (event.clientX - box.left) / box.width * chart.viewBox.baseVal.width;
    const near = lines.filter((line) => !line.group.classList.contains("hidden"))
      .map(({ group, points }) => [group, points.reduce((best, point) =>
        Math.abs(point.x - place) < Math.abs(best.x - place) ? point : best)]);
    if (!near.length) return;
    const x = near.reduce((best, [, point]) =>
      Math.abs(point.x - place) < Math.abs(best - place) ? point.x : best, Infinity);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    cursor.style.visibility = "visible";
    const rows = near.map(([group, point]) => {
      const row = document.createElement("div");
      row.className = group.getAttribute("class");
      row.textContent = `${shorten(toY(point.y))}  ${group.dataset.label}`;
      return row;
    });
    const head = document.createElement("div");
    head.textContent = `${chart.dataset.name} ${shorten(toX(x))}`;
    output.replaceChildren(head, ...rows);
  });
  chart.addEventListener("pointerleave", () => {
    cursor.style.visibility = "hidden";
    output.replaceChildren();
  });
}

// Programs and timelines: a window of time, which buttons, keys, drags and Ctrl with the wheel
// move and zoom.
function formatSeconds(microseconds, step) {
  const [unit, name] = step >= 1e6 ? [1e6, "s"] : step >= 1e3 ? [1e3, "ms"] : [1, "µs"];
  return `${Number((microseconds / unit).toFixed(3)).toLocaleString("en")} ${name}`;
}
function roundStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
}
class SpanView {
  constructor(root) {
    this.view = root.querySelector(".view");
    this.name = this.view.ariaLabel;
    this.boxes = root.querySelector(".boxes");
    this.labels = root.querySelector(".labels");
    this.output = root.querySelector(":scope > output");
    this.length = Number(this.view.dataset.length);
    this.stages = JSON.parse(this.view.dataset.stages);
    this.rows = this.stages.length;
    this.measured = "microseconds" in this.view.dataset;
    this.microseconds = Number(this.view.dataset.microseconds) / this.length;
    this.unit = this.measured ? this.microseconds : 1;
    this.spans = all("rect", this.boxes).map((rect) => ({
      rect,
      x: rect.x.baseVal.value,
      y: rect.y.baseVal.value,
      width: rect.width.baseVal.value,
      kind: rect.getAttribute("class"),
      label: rect.dataset.label,
    }));
    const names = all(".key", root).map((key) => [key.classList[1], key.textContent]);
    this.names = Object.fromEntries(names);
    // A long timeline opens at the boxes in its middle, as many as can be told apart.
    const count = this.spans.length;
    const shown = this.measured ? Math.min(count, 30 * this.rows) : count;
    const [first, last] = [(count - shown) >> 1, (count + shown - 1) >> 1];
    const end = shown < count ? this.spans[last].x + this.spans[last].width : this.length;
    this.show(this.spans[first].x, end - this.spans[first].x);
    this.opened = [this.start, this.width];
    this.listen(root);
  }

  listen(root) {
    const act = {
      in: () => this.zoom(0.5),
      out: () => this.zoom(2),
      left: () => this.show(this.start - this.width / 4, this.width),
      right: () => this.show(this.start + this.width / 4, this.width),
      all: () => this.show(0, this.length),
    };
    for (const button of all("[data-zoom]", root)) {
      button.addEventListener("click", act[button.dataset.zoom]);
    }
    const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all" };
    this.view.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || !(event.key in keys)) return;
      event.preventDefault();
      act[keys[event.key]]();
    });
    this.view.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoom(2 ** (event.deltaY / 200), this.timeAt(event));
    }, { passive: false });
    this.view.addEventListener("dblclick", (event) => this.zoom(0.5, this.timeAt(event)));
    this.view.addEventListener("pointerdown", (event) => {
      this.grabbed = event.clientX;
      this.view.setPointerCapture(event.pointerId);
    });
    this.view.addEventListener("pointerup", () => { this.grabbed = undefined; });
    this.view.addEventListener("pointercancel", () => { this.grabbed = undefined; });
    this.view.addEventListener("pointermove", (event) => this.onMove(event));
    new ResizeObserver(() => this.show(this.start, this.width)).observe(this.view);
  }

  timeAt(event) {
    const box = this.view.getBoundingClientRect();
    return this.start + (event.clientX - box.left) / box.width * this.width;
  }

  zoom(factor, centre = this.start + this.width / 2) {
    const width = Math.min(this.length, Math.max(this.length / 1e5, this.width * factor));
    this.show(centre - (centre - this.start) * width / this.width, width);
  }

  onMove(event) {
    if (this.grabbed !== undefined) {
      const moved = event.clientX - this.grabbed;
      this.grabbed = event.clientX;
      this.show(this.start - moved / this.view.clientWidth * this.width, this.width);
      return;
    }
    const time = this.timeAt(event);
    const row = Math.floor((event.clientY - this.view.getBoundingClientRect().top) / 30);
    const span = this.spans.find((each) => Math.floor(each.y) === row
      && each.x <= time && time < each.x + each.width);
    if (!span) {
      this.output.textContent = "";
      return;
    }
    const text = `stage ${this.stages[row]}: ${this.names[span.kind]} ${span.label}`;
    const [start, length] = [span.x * this.microseconds, span.width * this.microseconds];
    this.output.textContent = this.measured
      ? `${text}, ${formatSeconds(length, length)} from ${formatSeconds(start, start)}` : text;
  }

  show(start, width) {
    this.width = width;
    this.start = Math.max(0, Math.min(start, this.length - width));
    this.boxes.setAttribute("viewBox", `${this.start} 0 ${this.width} ${this.rows}`);
    const texts = this.boxLabels();
    if (this.measured) texts.push(...this.axis());
    this.labels.replaceChildren(...texts);
  }

  // The window in microseconds, or in ticks of a program; null unless the reader has moved it.
  get chosen() {
    const [start, width] = this.opened;
    if (this.start === start && this.width === width) return null;
    return [this.start * this.unit, this.width * this.unit];
  }

  set chosen(window) {
    if (window) this.show(window[0] / this.unit, Math.min(this.length, window[1] / this.unit));
  }

  share(time) {
    return (time - this.start) / this.width;
  }

  // At a share of the width, so that it stays in place when the page is printed.
  text(content, x, y, name) {
    const text = document.createElementNS(SVG, "text");
    text.textContent = content;
    text.setAttribute("x", `${(x * 100).toFixed(3)}%`);
    text.setAttribute("y", y);
    if (name) text.setAttribute("class", name);
    return text;
  }

  boxLabels() {
    const pixels = this.view.clientWidth / this.width;
    return this.spans
      .filter(({ kind, x, width, label }) => "FB".includes(kind)
        && width * pixels > 7 * label.length + 2
        && x + width > this.start && x < this.start + this.width)
      .map(({ x, y, width, label }) =>
        this.text(label, this.share(x + width / 2), Math.floor(y) * 30 + 19));
  }

  axis() {
    const step = roundStep(this.width * this.microseconds / (this.view.clientWidth / 90));
    const end = (this.start + this.width) * this.microseconds;
    const marks = [];
    for (let n = Math.ceil(this.start * this.microseconds / step); n * step <= end; n += 1) {
      const x = this.share(n * step / this.microseconds);
      if (x > 0.03 && x < 0.97) {
        marks.push(this.text(formatSeconds(n * step, step), x, this.rows * 30 + 17, "axis"));
      }
    }
    return marks;
  }
}
const spanViews = all(".spans").map((root) => new SpanView(root));
