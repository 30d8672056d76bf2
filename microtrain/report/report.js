// Shows the values of a chart's curves under the pointer, hides a curve at a click, smooths curves and
// draws them over steps, epochs or time. The charts stand in the page without this; their numbers are
// in data attributes.
"use strict";
const SIZE = 1000;
const SVG = "http://www.w3.org/2000/svg";
const AXES = ["step", "epoch", "time"];
const rows = JSON.parse(document.querySelector("main").dataset.axes); // by run: [step, epoch, seconds]
const view = { axis: "step", weight: 0 }; // of all charts whose curves go on with the steps
const longest = Math.max(0, ...rows.flat().map((row) => row[2]));
const [unit, seconds] = longest > 7200 ? ["h", 3600] : longest > 120 ? ["min", 60] : ["s", 1];

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

// Where a step of a run stands on the axis: as its row says, else on a line through two of them.
const place = (run, step) => {
  const column = AXES.indexOf(view.axis), known = rows[run];
  if (column === 0 || !known.length) return step;
  const at = Math.max(1, Math.min(known.length - 1, known.findIndex((row) => row[0] >= step)));
  const [a, b] = [known[at - 1], known[at] ?? known[at - 1]];
  const share = b[0] === a[0] ? 1 : (step - a[0]) / (b[0] - a[0]);
  return (a[column] + (b[column] - a[column]) * share) / (column === 2 ? seconds : 1);
};

// TensorBoard's exponential moving average, which is not drawn towards the 0 that it begins with.
const smoothed = (values) => {
  let mean = 0, count = 0;
  return values.map((value) => {
    if (value === null || view.weight === 0) return value;
    mean = mean * view.weight + (1 - view.weight) * value;
    count += 1;
    return mean / (1 - view.weight ** count);
  });
};

// As the ticks of report/chart.py.
const ticks = (low, high, whole) => {
  const rough = (high - low) / 6, scale = 10 ** Math.floor(Math.log10(rough));
  const fine = [1, 2, 5, 10].map((m) => m * scale).find((size) => size >= rough * 0.999);
  const step = whole ? Math.max(fine, 1) : fine;
  const digits = Math.max(0, -Math.floor(Math.log10(step)));
  const shown = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  const first = Math.ceil(low / step), count = Math.floor(high / step) - first + 1;
  return Array.from({ length: count }, (_, i) => (first + i) * step)
    .map((value) => [value, value.toLocaleString("en", shown)]);
};

const charts = [...document.querySelectorAll("figure.chart")].map((figure) => {
  const { range, log, unit: named } = JSON.parse(figure.dataset.scale);
  const [, , y0, y1] = range;
  const series = figure.closest(".series") !== null;
  const area = figure.querySelector(".area"), svg = area.querySelector("svg");
  const axis = figure.querySelector(".x-ticks"), name = figure.querySelector(".x-name");
  const plain = { name: name.textContent, ticks: axis.innerHTML };
  const drawn = svg.querySelectorAll(".line, .dots");
  const curves = [...svg.querySelectorAll(".line")].map((line) => {
    const given = JSON.parse(line.dataset.points);
    return { line, run: +line.dataset.run, name: line.dataset.name, look: line.classList[1], given, points: given, raw: null };
  });
  const path = (className) => {
    const node = document.createElementNS(SVG, "path");
    node.setAttribute("class", className);
    return node;
  };
  let tip = null, marks = [], at = null, [x0, x1] = range;

  const height = (value) => (y1 - (log ? Math.log10(value) : value)) / (y1 - y0) * SIZE;
  const left = (x) => (x - x0) / (x1 - x0) * SIZE;
  const outline = (points) => {
    let pen = "M";
    const steps = points.map(([x, value]) => {
      const y = value === null ? NaN : height(value), stroke = pen;
      pen = Number.isFinite(y) ? "L" : "M";
      return pen === "L" ? `${stroke}${left(x).toFixed(1)} ${y.toFixed(1)}` : "";
    });
    return steps.join("") + (points.length === 1 ? "h0" : "");
  };

  const draw = () => {
    if (!series) return;
    clear();
    at = null;
    const moved = [...svg.querySelectorAll("[data-x]")].map((node) => [node, place(+node.dataset.run, +node.dataset.x)]);
    curves.forEach((curve) => {
      const means = smoothed(curve.given.map(([, value]) => value));
      curve.points = curve.given.map(([step], i) => [place(curve.run, step), means[i]]);
    });
    const all = [...curves.flatMap(({ points }) => points.map(([x]) => x)), ...moved.map(([, x]) => x)];
    const low = Math.min(...all), high = Math.max(...all);
    const room = (high - low) * 0.015 || Math.abs(high) * 0.1 || 0.5;
    [x0, x1] = view.axis === "step" ? range : [low - room, high + room];
    moved.forEach(([node, x]) => node.setAttribute("d", node.getAttribute("d").replace(/^M\S+/, `M${left(x).toFixed(1)}`)));
    curves.forEach((curve) => {
      curve.line.setAttribute("d", outline(curve.points));
      if (view.weight > 0 && curve.raw === null) {
        curve.raw = path(`raw ${curve.line.getAttribute("class").replace("line", "")}`);
        curve.raw.setAttribute("style", curve.line.getAttribute("style") ?? "");
        curve.line.before(curve.raw);
      }
      const values = view.weight > 0 ? curve.given.map(([, value], i) => [curve.points[i][0], value]) : [];
      if (curve.raw) curve.raw.setAttribute("d", outline(values));
    });
    name.textContent = { step: plain.name, epoch: "epoch", time: `time, ${unit}` }[view.axis];
    if (view.axis === "step") axis.innerHTML = plain.ticks;
    else {
      axis.replaceChildren();
      ticks(x0, x1, false).forEach(([value, label]) => {
        make(axis, "span", "", label).style.left = `${left(value) / SIZE * 100}%`;
      });
    }
  };

  const clear = () => {
    marks.forEach((mark) => mark.remove());
    marks = [];
    if (tip) tip.remove();
    tip = null;
  };

  const label = (x) => {
    if (!series || view.axis === "step") return `${named} ${x.toLocaleString("en")}`;
    return view.axis === "epoch" ? `epoch ${+x.toPrecision(5)}` : `${x.toPrecision(3)} ${unit}`;
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
    make(tip, "b", "", label(at));
    shown.forEach((curve, i) => {
      const [where, value] = curve.points[picked[i]], classes = curve.line.getAttribute("class").replace("line", "");
      const row = make(tip, "div", classes), style = curve.line.style.cssText;
      row.style.cssText = style;
      const about = make(row, "span", "");
      make(about, "i", "");
      about.append(curve.name + (where === at ? "" : ` (${label(where).replace(/^step /, "")})`));
      const figures = make(row, "b", "", text(value));
      if (series && view.weight > 0) make(figures, "small", "", text(curve.given[picked[i]][1]));
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
      const off = pressed(button), { raw } = curves.find(({ line }) => line === drawn[i]) ?? {};
      hide(raw ? [drawn[i], raw] : [drawn[i]], off);
    });
  });
  return { draw, hideRun: (run, off) => hide(svg.querySelectorAll(`[data-run="${run}"]`), off) };
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

document.querySelectorAll(".controls").forEach((controls) => {
  const slider = controls.querySelector("input"), choices = controls.querySelectorAll("[data-axis]");
  controls.hidden = false;
  slider.addEventListener("input", () => {
    view.weight = +slider.value;
    controls.querySelector("output").textContent = slider.value;
    charts.forEach((chart) => chart.draw());
  });
  choices.forEach((choice) => {
    choice.addEventListener("click", () => {
      view.axis = choice.dataset.axis;
      choices.forEach((each) => each.setAttribute("aria-pressed", String(each === choice)));
      charts.forEach((chart) => chart.draw());
    });
  });
});
