/** How busy hosts, GPUs and ranks have been. */

import { BYTES, Chart } from "./chart.js";
import { h } from "./dom.js";
import { size, slot, value } from "./format.js";

const percent = (share) => `${Math.round(share * 100)} %`;
const whole = { say: percent, range: [0, 1] };
const upward = (_, lowest, highest) => [0, highest ? highest * 1.1 : 1];

/** How memory is drawn: up to what there is, so that one sees what is left. */
const bytes = (total) => ({ say: size, steps: BYTES, range: total ? [0, total] : upward });

export class Usage {
  constructor() {
    this.hosts = new Map();
    this.none = h("p", { class: "quiet" }, "Nothing measured yet.");
    this.element = h("div", {}, this.none);
  }

  update(training) {
    const start = training.started ?? training.since ?? 0;
    const usage = Object.entries(training.usage ?? {});
    this.none.hidden = usage.length > 0;
    for (const [name, told] of usage) {
      if (!this.hosts.has(name)) {
        this.hosts.set(name, new HostUsage(name));
        this.element.append(this.hosts.get(name).element);
      }
      this.hosts.get(name).update(told, start);
    }
  }
}

class HostUsage {
  constructor(name) {
    this.charts = {};
    this.box = h("div", { class: "charts" });
    this.element = h("section", { "aria-label": `Utilisation of ${name}` }, h("h3", {}, name), this.box);
  }

  update(told, start) {
    const gpus = Object.entries(told.gpus ?? {}).map(([uuid, gpu]) => [slot(`gpu-${uuid}`), gpu]);
    const ranks = Object.entries(told.ranks ?? {}).map(([rank, used]) => [`rank ${rank}`, used]);
    this.draw("GPU busy", gpus, "busy", start, whole);
    const card = gpus[0]?.[1].memory_total;
    this.draw(of("GPU memory", card), gpus, "memory", start, bytes(card));
    this.draw("CPU of the host", [["host", told]], "cpu", start, whole);
    this.draw(of("Memory of the host", told.memory_total), [["host", told]], "memory", start, bytes(told.memory_total));
    this.draw("CPU cores of ranks", ranks, "cpu", start, { say: value, range: upward });
    this.draw("Memory of ranks", ranks, "memory", start, bytes(null));
  }

  draw(title, sources, kind, start, options) {
    const series = sources
      .filter(([, source]) => source?.[kind]?.length)
      .map(([name, source], color) => ({ name, color, points: source[kind].map(([time, y]) => [time - start, y]) }));
    if (!series.length) return;
    if (!this.charts[title]) {
      this.charts[title] = new Chart(title, options);
      this.box.append(this.charts[title].element);
    }
    this.charts[title].update(series, true);
  }
}

const of = (title, total) => (total ? `${title}, of ${size(total)}` : title);
