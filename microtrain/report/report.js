// Shows the values of a chart's curves under the pointer, and hides a curve at a click.
// The charts stand in the page without this; their numbers are in their data attributes.
"use strict";
const SIZE = 1000;
const SVG = "http://www.w3.org/2000/svg";

const text = (value) => {
  if (value === null) return "not finite";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e-4 && size < 1e6 ? value.toPrecision(5) : value.toExponential(3);
};

const make = (parent, tag, className, content = "") => {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = content;
  return parent.appendChild(node);
};

// The index of the point nearest to x; points ascend.
const nearest = (points, x) => {
  let low = 0, high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle; else high = middle;
  }
  return Math.abs(points[low][0] - x) <= Math.abs(points[high][0] - x) ? low : high;
};

document.querySelectorAll("figure.chart").forEach((figure) => {
  const { range: [x0, x1, y0, y1], log, unit } = JSON.parse(figure.dataset.scale);
  const area = figure.querySelector(".area"), svg = area.querySelector("svg");
  const drawn = svg.querySelectorAll(".line, .dots");
  const curves = [...svg.querySelectorAll(".line")].map((line) => ({
    line, name: line.dataset.name, look: line.classList[1], points: JSON.parse(line.dataset.points),
  }));
  const path = (className) => {
    const node = svg.appendChild(document.createElementNS(SVG, "path"));
    node.setAttribute("class", className);
    return node;
  };
  let tip = null, marks = [], at = null;

  const clear = () => {
    marks.forEach((mark) => mark.remove());
    marks = [];
    if (tip) tip.remove();
    tip = null;
  };

  const show = (x) => {
    clear();
    const shown = curves.filter(({ line, points }) => points.length && line.style.display !== "none");
    if (!shown.length) return;
    const picked = shown.map((curve) => curve.points[nearest(curve.points, x)]);
    at = picked.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a - x) ? b[0] : a), picked[0][0]);
    const left = (at - x0) / (x1 - x0);
    const cross = path("cross");
    cross.setAttribute("d", `M${left * SIZE} 0V${SIZE}`);
    marks.push(cross);
    tip = make(area, "div", "tip");
    make(tip, "b", "", `${unit} ${at.toLocaleString("en")}`);
    shown.forEach((curve, i) => {
      const [step, value] = picked[i];
      const row = make(tip, "div", curve.look);
      const name = make(row, "span", "");
      make(name, "i", "");
      name.append(curve.name + (step === at ? "" : ` (${step.toLocaleString("en")})`));
      make(row, "b", "", text(value));
      const y = log ? Math.log10(value) : value;
      if (value === null || !Number.isFinite(y)) return;
      const point = path(`point ${curve.look}`);
      point.setAttribute("d", `M${(step - x0) / (x1 - x0) * SIZE} ${(y1 - y) / (y1 - y0) * SIZE}h0`);
      marks.push(point);
    });
    const room = area.clientWidth, place = left * room;
    const wanted = place > room / 2 ? place - tip.offsetWidth - 14 : place + 14;
    tip.style.left = `${Math.max(0, Math.min(room - tip.offsetWidth, wanted))}px`;
  };

  const follow = (event) => {
    const box = area.getBoundingClientRect();
    show(x0 + (event.clientX - box.left) / box.width * (x1 - x0));
  };
  area.addEventListener("pointermove", follow);
  area.addEventListener("pointerdown", follow);
  area.addEventListener("pointerleave", clear);
  area.addEventListener("blur", clear);
  area.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") clear();
    if (!way) return;
    event.preventDefault();
    const steps = [...new Set(curves.flatMap((curve) => curve.points.map(([step]) => step)))];
    steps.sort((a, b) => a - b);
    const place = at === null ? (way > 0 ? -1 : steps.length) : steps.indexOf(at);
    show(steps[Math.max(0, Math.min(steps.length - 1, place + way))]);
  });
  figure.querySelectorAll(".legend button").forEach((button, i) => {
    button.addEventListener("click", () => {
      const off = button.getAttribute("aria-pressed") === "true";
      button.setAttribute("aria-pressed", String(!off));
      drawn[i].style.display = off ? "none" : "";
      clear();
    });
  });
});
