// Shows the values of a chart's curves under the pointer, and hides a curve at a click. The charts stand
// in the page without this; their numbers are in data attributes.
"use strict";
const SIZE = 1000;
const SVG = "http://www.w3.org/2000/svg";

const text = (value) => {
  if (value === null) return "not finite";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 9999.5 && size < 1e9) return Math.round(value).toLocaleString("en");
  return size >= 1e-4 && size < 1e9 ? value.toPrecision(5) : value.toExponential(4).replace("e+", "e");
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

const charts = [...document.querySelectorAll("figure.chart")].map((figure) => {
  const { range: [x0, x1, y0, y1], log, unit } = JSON.parse(figure.dataset.scale);
  const area = figure.querySelector(".area"), svg = area.querySelector("svg");
  const drawn = svg.querySelectorAll(".line, .dots");
  const curves = [...svg.querySelectorAll(".line")].map((line) => {
    return { line, name: line.dataset.name, points: JSON.parse(line.dataset.points) };
  });
  const path = (className) => {
    const node = document.createElementNS(SVG, "path");
    node.setAttribute("class", className);
    return node;
  };
  let tip = null, marks = [], at = null;

  const height = (value) => (y1 - (log ? Math.log10(value) : value)) / (y1 - y0) * SIZE;
  const left = (x) => (x - x0) / (x1 - x0) * SIZE;

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
    const picked = shown.map((curve) => nearest(curve.points, x));
    const places = shown.map((curve, i) => curve.points[picked[i]][0]);
    at = places.reduce((a, b) => (Math.abs(b - x) < Math.abs(a - x) ? b : a), places[0]);
    const mark = (className, style, d) => {
      const node = svg.appendChild(path(className));
      node.setAttribute("style", style);
      node.setAttribute("d", d);
      marks.push(node);
    };
    mark("cross", "", `M${left(at)} 0V${SIZE}`);
    tip = make(area, "div", "tip");
    make(tip, "b", "", `${unit} ${at.toLocaleString("en")}`);
    shown.forEach((curve, i) => {
      const [where, value] = curve.points[picked[i]], classes = curve.line.getAttribute("class").replace("line", "");
      const row = make(tip, "div", classes), style = curve.line.style.cssText;
      row.style.cssText = style;
      const about = make(row, "span", "");
      make(about, "i", "");
      const other = where === at ? "" : ` (${unit === "step" ? "" : `${unit} `}${where.toLocaleString("en")})`;
      about.append(curve.name + other);
      make(row, "b", "", text(value));
      if (value !== null && Number.isFinite(height(value))) mark(`point ${classes}`, style, `M${left(where)} ${height(value)}h0`);
    });
    const room = area.clientWidth, middle = left(at) / SIZE * room;
    const wanted = middle > room / 2 ? middle - tip.offsetWidth - 14 : middle + 14;
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
    const steps = [...new Set(curves.flatMap((curve) => curve.points.map(([x]) => x)))];
    steps.sort((a, b) => a - b);
    const here = at === null ? (way > 0 ? -1 : steps.length) : steps.indexOf(at);
    show(steps[Math.max(0, Math.min(steps.length - 1, here + way))]);
  });
  const hide = (nodes, off) => {
    nodes.forEach((node) => (node.style.display = off ? "none" : ""));
    clear();
  };
  figure.querySelectorAll(".legend button").forEach((button, i) => {
    button.addEventListener("click", () => {
      hide([drawn[i]], pressed(button));
    });
  });
  return { hideRun: (run, off) => hide(svg.querySelectorAll(`[data-run="${run}"]`), off) };
});

// Turns a button over; returns whether it was pressed.
function pressed(button) {
  const off = button.getAttribute("aria-pressed") === "true";
  button.setAttribute("aria-pressed", String(!off));
  return off;
}

document.querySelectorAll(".legend.every button").forEach((button) => {
  button.addEventListener("click", () => {
    const off = pressed(button);
    charts.forEach((chart) => chart.hideRun(button.dataset.run, off));
  });
});
