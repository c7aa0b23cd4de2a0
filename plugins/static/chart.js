/** A chart over time or steps, drawn by uPlot. */

import { h } from "./dom.js";
import { duration, tick, value } from "./format.js";
import { color, onTheme } from "./theme.js";

const COLORS = 8; // of the style sheet: --series-0 …
const HEIGHT = 190;
// Steps of a scale that people like: of seconds, and of bytes.
const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000];
export const BYTES = Array.from({ length: 40 }, (_, n) => 2 ** (10 + n));
const charts = new Set();

export class Chart {
  /**
   * @param title what it shows
   * @param say how a value is written
   * @param range `[lowest, highest]` of the scale; null: as the values are
   * @param steps that the scale may have; null: decimal ones
   */
  constructor(title, { say = value, range = null, steps = null } = {}) {
    Object.assign(this, { title, say, range, steps });
    this.box = h("div", { class: "plot" });
    this.element = h("figure", { class: "chart" }, h("figcaption", {}, title), this.box);
    new ResizeObserver(() => this.resize()).observe(this.box);
    charts.add(this);
  }

  /**
   * Show series: `[{name, points: [[x, y], …], faint?}]`.
   *
   * @param byTime x is seconds since the start; else it is a step
   */
  update(series, byTime) {
    this.given = [series, byTime];
    const data = joined(series);
    const same = this.plot && this.names === names(series, byTime);
    if (same) this.plot.setData(data);
    else this.make(series, byTime, data);
    if (same) this.tellNewest();
    const last = series.filter((each) => !each.faint && each.points.length).map((each) => `${each.name} ${this.say(each.points.at(-1)[1])}`);
    this.element.setAttribute("aria-label", `${this.title}: ${last.slice(0, 8).join(", ")}`);
    this.element.setAttribute("role", "img");
  }

  make(series, byTime, data) {
    this.plot?.destroy();
    this.plot = null;
    this.names = names(series, byTime);
    if (!this.width) return;
    const axis = { stroke: color("quiet"), grid: { stroke: color("grid"), width: 1 }, ticks: { stroke: color("grid"), width: 1 }, font: "11px system-ui, sans-serif" };
    const sayX = byTime ? duration : (x) => x.toLocaleString();
    const options = {
      width: this.width,
      height: HEIGHT,
      scales: { x: { time: false }, y: this.range ? { range: this.range } : {} },
      axes: [
        { ...axis, values: (_, ticks) => ticks.map(byTime ? tick : sayX), space: 80, ...(byTime ? { incrs: SECONDS } : {}) },
        { ...axis, values: (_, ticks) => ticks.map(this.say), size: 70, ...(this.steps ? { incrs: this.steps } : {}) },
      ],
      series: [{ label: byTime ? "time" : "step", value: (_, x) => (x === null ? "–" : sayX(x)) }, ...series.map((each) => this.line(each))],
      legend: { live: true },
      cursor: { focus: { prox: 24 } },
      hooks: { ready: [(plot) => this.tellNewest(plot)] },
    };
    this.plot = new globalThis.uPlot(options, data, this.box);
  }

  /** Let the legend tell the newest values, until a mouse points elsewhere. */
  tellNewest(plot = this.plot) {
    if (!this.box.matches(":hover")) plot.setLegend({ idx: plot.data[0].length - 1 }, false);
  }

  line({ name, faint, color: index }) {
    const stroke = color(`series-${index % COLORS}`);
    return {
      label: name,
      stroke: faint ? `color-mix(in srgb, ${stroke} 30%, transparent)` : stroke,
      width: faint ? 1 : 2,
      spanGaps: true,
      points: { show: false },
      value: (_, y) => (y === null || y === undefined ? "–" : this.say(y)),
    };
  }

  resize() {
    const width = this.box.clientWidth;
    if (!width || width === this.width) return;
    this.width = width;
    if (this.plot) this.plot.setSize({ width, height: HEIGHT });
    else if (this.given) this.redraw();
  }

  redraw() {
    this.names = null;
    if (this.given) this.update(...this.given);
  }
}

onTheme(() => charts.forEach((chart) => chart.redraw()));

const names = (series, byTime) => `${byTime} ${series.map((each) => each.name).join("\0")}`;

/** Series as columns over all x that any of them has. */
function joined(series) {
  const xs = [...new Set(series.flatMap(({ points }) => points.map(([x]) => x)))].sort((a, b) => a - b);
  const place = new Map(xs.map((x, i) => [x, i]));
  const columns = series.map(({ points }) => {
    const column = new Array(xs.length).fill(null);
    for (const [x, y] of points) column[place.get(x)] = y;
    return column;
  });
  return [xs, ...columns];
}
