// One chart: lines over iterations, with the cursor of its group, zoom by dragging, and a legend that follows the cursor.
/* global uPlot */

import { $, colour, percent, short } from "./tools.js";

const FAR = 1e15;

/** The lines of a chart as its element names them: name|kind|title|~; */
export function named(box) {
  return box.dataset.lines.split(";").filter((line) => line.trim()).map((line) => {
    const [name, kind, title, smoothed] = line.trim().split("|");
    return { name, kind, title, isSmoothed: smoothed === "~" };
  });
}

const quantile = (lines, share) => {
  const values = lines.flatMap((line) => line.points[1]).filter((v) => v != null).sort((a, b) => a - b);
  return values.length ? values[Math.min(values.length - 1, Math.floor(values.length * share))] : null;
};

// without the first test, which comes before anything is learnt
const learnt = (line) => ({ points: [line.points[0], line.points[1].length > 3 ? line.points[1].slice(1) : line.points[1]] });

function nearest(xs, x) { // the last place whose value is not beyond x
  let low = 0, high = xs.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (xs[middle] <= x) low = middle; else high = middle - 1;
  }
  return low;
}

const joined = (lines) => (lines.some((line) => line.points[0].length)
  ? uPlot.join(lines.map((line) => (line.points[0].length ? line.points : [[0], [null]])))
  : [[0], ...lines.map(() => [null])]);

/**
 * Draw `lines` ({name, kind, title, colour, dash, points}) into the element `box`.
 * `options`: group (charts with one cursor), range() -> [low, high] of what is shown, end, isLog, marks, onZoom(low, high).
 */
export function draw(box, lines, options) {
  const isShare = "share" in box.dataset, isLoss = box.dataset.chart === "loss";
  const isLog = options.isLog && isLoss;
  const told = lines.filter((line) => line.kind !== "raw");
  const legend = $(".legend", box.parentNode);
  legend.replaceChildren(...told.map((line) => {
    const item = Object.assign(document.createElement("span"), { className: line.colour });
    item.append(Object.assign(document.createElement("b"), {}));
    return item;
  }));
  box.replaceChildren();
  const axis = { stroke: colour("c-ink"), font: "12px Inter", grid: { stroke: colour("c-grid"), width: 1 }, ticks: { show: false } };
  const unit = (value) => (value == null ? "" : isShare ? `${Math.round(1000 * value) / 10} %` : short(value));
  const above = (low, high) => {
    if (isShare) return [Math.max(0, (quantile(told.map(learnt), 0.06) ?? 0.03) - 0.03), 1];
    // the first, huge losses do not squash the rest; Log shows them
    const calm = isLoss && told.some((line) => line.points[0].length >= 60) ? Math.min(high, quantile(told, 0.96) * 1.5) : high;
    return [Math.min(0, low ?? 0), (calm || 1) * 1.05];
  };
  const plot = new uPlot({
    width: box.clientWidth, height: box.parentNode.classList.contains("big") ? 300 : 190, legend: { show: false },
    padding: [12, 16, 0, 0],
    cursor: {
      sync: { key: options.group, scales: ["x", null] }, focus: { prox: 16 }, points: { size: 7 },
      drag: { x: true, y: false, setScale: false },
    },
    focus: { alpha: lines.length > 4 ? 0.3 : 1 },
    scales: {
      x: { time: false, range: (u, low, high) => {
        const [a, b] = options.range();
        return b < FAR ? [a, b] : [0, Math.max(high ?? 1, options.end || 0)];
      } },
      y: { distr: isLog ? 3 : 1, range: isLog ? undefined : (u, low, high) => above(low, high) },
    },
    axes: [
      { ...axis, size: 30, values: (u, values) => values.map((n) => (n >= 1e6 ? `${n / 1e6}M` : n >= 1e4 ? `${n / 1e3}k` : n)) },
      { ...axis, size: 56, values: (u, values) => values.map((n) => (n == null ? "" : unit(n))) },
    ],
    series: [{}, ...lines.map((line) => ({
      label: line.name, stroke: colour(line.colour), width: line.kind === "raw" ? 1 : 2, dash: line.dash, spanGaps: true,
      points: { show: line.name.startsWith("val ") && line.points[0].length < 60, size: 5, fill: colour(line.colour) },
    }))],
    hooks: {
      setSelect: [(u) => {
        if (u.select.width > 8) options.onZoom(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"));
      }],
      setLegend: [(u) => told.forEach((line, at) => {
        const item = legend.children[at], ys = line.points[1], index = u.cursor.idx;
        if (!item) return;
        const place = index == null ? ys.length - 1 : nearest(line.points[0], u.data[0][index]);
        item.firstChild.textContent = `${line.title} ${isShare ? percent(ys[place]) : short(ys[place])}`.trim();
      })],
      draw: [(u) => {
        const marks = options.marks?.() ?? [];
        const { ctx, bbox } = u;
        ctx.save();
        ctx.strokeStyle = colour("c-mark");
        ctx.setLineDash([4, 4]);
        ctx.beginPath();
        for (const at of marks) {
          if (at < u.scales.x.min || at > u.scales.x.max) continue;
          const x = Math.round(u.valToPos(at, "x", true));
          ctx.moveTo(x, bbox.top);
          ctx.lineTo(x, bbox.top + bbox.height);
        }
        ctx.stroke();
        ctx.restore();
      }],
    },
  }, joined(lines), box);
  plot.over.addEventListener("dblclick", () => options.onZoom(0, FAR));
  const describe = () => {
    const values = told.map((line) => `${line.title || line.name} ${unit(line.points[1].at(-1)) || "–"}`).join(", ");
    box.setAttribute("aria-label", `${box.dataset.chart}: ${values}`);
  };
  box.setAttribute("role", "img");
  describe();
  plot.setLegend({ idx: null });
  return {
    plot,
    lines,
    /** Draw again what the lines hold now. */
    again() {
      plot.setData(joined(lines));
      plot.setLegend({ idx: plot.cursor.idx });
      describe();
    },
    fit() { plot.setSize({ width: box.clientWidth, height: plot.height }); },
    end() { plot.destroy(); },
  };
}

export { FAR };
