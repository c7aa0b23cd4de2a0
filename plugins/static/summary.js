/** A training in a few lines, for pages that list several. */

import { pageOf } from "./airflow.js";
import { h } from "./dom.js";
import { count, duration } from "./format.js";
import { link } from "./links.js";
import { JOB, RANK, chip, look } from "./states.js";
import { verdictBox } from "./verdict.js";

/** A training as a card that leads to its page. */
export function card(id, training) {
  const mapped = id.map >= 0 ? ` [${id.map}]` : "";
  const ranks = training.ranks ?? [];
  const began = training.started ?? training.since;
  const end = training.ended ?? (training.state === "running" ? Date.now() / 1000 : training.updated);
  const hosts = training.hosts?.length ?? new Set(ranks.map((rank) => rank.host)).size;
  const facts = [
    began ? duration(end - began) : null,
    `${count(training.world_size ?? ranks.length, "rank")} on ${count(hosts, "host")}`,
    training.restarts ? count(training.restarts, "restart") : null,
  ];
  return h(
    "section",
    { class: "card", "aria-label": `Training ${id.task}${mapped}` },
    h("div", { class: "title" }, h("h2", {}, link(pageOf(id), `${id.task}${mapped}`, { "data-key": `${id.task}-${id.map}` })), chip(JOB, training.state)),
    h("p", { class: "quiet" }, facts.filter(Boolean).join(" · ")),
    strip(ranks),
    training.message && !training.ended ? h("p", { class: "message" }, training.message) : null,
    training.verdict ? verdictBox(training.verdict) : null,
  );
}

/** All ranks as a strip of dots. */
function strip(ranks) {
  const states = Object.groupBy(ranks, (rank) => rank.state);
  const words = Object.entries(states).map(([state, found]) => `${found.length} ${look(RANK, state).word}`);
  const dots = ranks.map((rank) => {
    const { shape, tone } = look(RANK, rank.state);
    return h("span", { class: `dot ${tone}`, title: `rank ${rank.rank} on ${rank.host}: ${look(RANK, rank.state).word}` }, shape);
  });
  return h("div", { class: "strip", role: "img", "aria-label": words.join(", ") }, dots);
}
