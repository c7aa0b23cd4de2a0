/** What rank 0 measured, as curves. Series whose names end alike share a chart: train/loss, eval/loss. */

import { Chart } from "./chart.js";
import { h, show } from "./dom.js";

const COUNTERS = new Set(["epoch", "global_step"]); // they only tell how far a training is

export class Curves {
  constructor() {
    this.charts = new Map();
    this.over = h("select", { "aria-label": "Over what", onchange: () => this.draw() }, h("option", { value: "step" }, "by step"), h("option", { value: "time" }, "by time"));
    this.smoothing = h("input", { type: "range", min: 0, max: 0.95, step: 0.05, value: 0, "aria-label": "Smoothing", oninput: () => this.draw() });
    this.bar = h("div", { class: "bar" }, this.over, h("label", {}, "smoothing ", this.smoothing));
    this.box = h("div", { class: "charts" });
    this.none = h("p", { class: "quiet" }, "No metric yet: rank 0 appends lines of JSON to the file that $DT_METRICS_FILE names.");
    this.element = h("div", {}, this.bar, this.none, this.box);
  }

  update(training) {
    this.series = training.series ?? {};
    this.start = training.started ?? training.since ?? 0;
    this.draw();
  }

  draw() {
    const families = grouped(Object.keys(this.series ?? {}).filter((name) => !COUNTERS.has(name)));
    const any = families.size > 0;
    this.bar.hidden = !any;
    this.none.hidden = any;
    for (const [family, names] of families) {
      if (!this.charts.has(family)) {
        this.charts.set(family, new Chart(family));
        this.box.append(this.charts.get(family).element);
      }
      this.charts.get(family).update(this.lines(names), this.over.value === "time");
    }
    for (const [family, chart] of this.charts) chart.element.hidden = !families.has(family);
  }

  lines(names) {
    const rate = Number(this.smoothing.value);
    return names.flatMap((name, color) => {
      const raw = this.points(this.series[name]);
      if (!rate) return [{ name, color, points: raw }];
      return [{ name: `${name} (raw)`, color, points: raw, faint: true }, { name, color, points: smoothed(raw, rate) }];
    });
  }

  points(series) {
    const byTime = this.over.value === "time";
    return series.flatMap(([time, step, y], i) => (y === null ? [] : [[byTime ? time - this.start : (step ?? i), y]]));
  }
}

function grouped(names) {
  const families = new Map();
  for (const name of names) {
    const family = name.split("/").at(-1);
    families.set(family, [...(families.get(family) ?? []), name]);
  }
  return families;
}

/** An exponential mean, corrected for its beginning. */
function smoothed(points, rate) {
  let sum = 0;
  let weight = 0;
  return points.map(([x, y]) => {
    sum = sum * rate + y * (1 - rate);
    weight = weight * rate + (1 - rate);
    return [x, sum / weight];
  });
}
