/** The ranks of a job as a grid, host by host. */

import { h, show } from "./dom.js";
import { count, duration, exit, slot } from "./format.js";
import { HOST, RANK, chip, look } from "./states.js";

/** The grid; `chosen(ranks)` is called with a set when the user picks ranks, empty for all. */
export class RankGrid {
  constructor(chosen) {
    this.chosen = chosen;
    this.picked = new Set();
    this.legend = h("ul", { class: "legend", "aria-label": "States of ranks" });
    this.hosts = h("div", { class: "hosts" });
    this.detail = h("div", { class: "detail", "aria-live": "polite" });
    this.element = h("div", {}, this.legend, this.hosts, this.detail);
    this.hosts.addEventListener("keydown", (event) => this.move(event));
  }

  update(training) {
    this.training = training;
    const ranks = training.ranks ?? [];
    show(this.legend, legend(ranks));
    const names = new Map((training.hosts ?? []).map((host) => [host.name, host]));
    for (const { host } of ranks) if (!names.has(host)) names.set(host, { name: host });
    const first = ranks[0]?.rank;
    show(this.hosts, [...names.values()].map((host) => this.host(host, ranks.filter((rank) => rank.host === host.name), first)));
    this.describe();
    const more = (training.world_size ?? 0) - ranks.length;
    if (ranks.length && more > 0) this.detail.append(h("p", { class: "quiet" }, `${count(more, "more rank")} not shown here.`));
  }

  host(host, ranks, first) {
    return h(
      "section",
      { class: "host", "aria-label": `Host ${host.name}` },
      h("h3", {}, host.name, host.address ? h("span", { class: "quiet" }, ` ${host.address}`) : null, host.state ? chip(HOST, host.state) : null),
      host.reason ? h("p", { class: "reason" }, host.reason) : null,
      h("div", { class: "cells" }, ranks.map((rank) => this.cell(rank, rank.rank === first))),
    );
  }

  cell(rank, first) {
    const { word, shape, tone } = look(RANK, rank.state);
    const words = [`rank ${rank.rank}`, rank.role, `on ${rank.host}`, word, exit(rank)].filter(Boolean).join(", ");
    return h(
      "button",
      {
        type: "button",
        class: `cell ${tone}`,
        title: words,
        "aria-label": words,
        "aria-pressed": String(this.picked.has(rank.rank)),
        "data-key": `rank-${rank.rank}`,
        "data-state": rank.state,
        // One stop for the tab key; arrows lead from rank to rank.
        tabIndex: (this.current === undefined ? first : this.current === rank.rank) ? 0 : -1,
        onclick: (event) => this.pick(rank.rank, event.ctrlKey || event.metaKey || event.shiftKey),
      },
      h("span", { "aria-hidden": "true" }, shape),
      h("b", {}, String(rank.rank)),
    );
  }

  pick(rank, also) {
    const had = this.picked.has(rank);
    if (!also) this.picked.clear();
    if (had) this.picked.delete(rank);
    else this.picked.add(rank);
    this.current = rank;
    this.refresh();
    this.chosen(new Set(this.picked));
  }

  /** Show what was chosen elsewhere. */
  mark(ranks) {
    this.picked = new Set(ranks);
    this.refresh();
  }

  refresh() {
    if (this.training) this.update(this.training);
  }

  move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const cells = [...this.hosts.querySelectorAll(".cell")];
    const at = cells.indexOf(document.activeElement);
    if (step === undefined || at < 0) return;
    event.preventDefault();
    const next = cells[(at + step + cells.length) % cells.length];
    cells[at].tabIndex = -1;
    next.tabIndex = 0;
    this.current = Number(next.dataset.key.slice(5));
    next.focus();
  }

  describe() {
    const ranks = this.training.ranks ?? [];
    if (!ranks.length) {
      show(this.detail, h("p", { class: "quiet" }, "No rank yet: they start on all hosts or on none."));
      return;
    }
    const rank = ranks.find((each) => this.picked.has(each.rank));
    if (!rank || this.picked.size > 1) {
      show(this.detail, h("p", { class: "quiet" }, this.picked.size > 1 ? `${count(this.picked.size, "rank")} chosen` : "Choose a rank to see its lines alone; Ctrl adds more."));
      return;
    }
    const took = rank.started && (rank.ended ?? this.training.updated) - rank.started;
    const facts = [`Rank ${rank.rank}`, rank.role, rank.host, slot(rank.slot), look(RANK, rank.state).word, exit(rank), took ? duration(took) : null];
    show(this.detail, h("p", { title: rank.slot ?? "" }, facts.filter(Boolean).join(" · ")));
  }
}

function legend(ranks) {
  return Object.entries(RANK).flatMap(([state, { word, shape, tone }]) => {
    const number = ranks.filter((rank) => rank.state === state).length;
    return number ? [h("li", {}, h("span", { class: `dot ${tone}`, "aria-hidden": "true" }, shape), ` ${number} ${word}`)] : [];
  });
}
