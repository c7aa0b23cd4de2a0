/** The page of a task instance: one training, from waiting for slots to its end. */

import { instance, poll, subject, xcom } from "./airflow.js";
import { Curves } from "./curves.js";
import { h, show, tabs } from "./dom.js";
import { duration, moment } from "./format.js";
import { Lines } from "./lines.js";
import { link } from "./links.js";
import { LogView } from "./log.js";
import { Plan } from "./plan.js";
import { RankGrid } from "./ranks.js";
import { JOB, chip } from "./states.js";
import "./theme.js";
import { Usage } from "./usage.js";
import { verdictBox } from "./verdict.js";

const ENDED = new Set(["success", "failed", "skipped", "upstream_failed", "removed"]);
const OVER = new Set(["success", "failed", "stopped"]);
const id = subject();
const page = document.getElementById("page");
const trouble = h("p", { class: "trouble", role: "alert", hidden: true });

/** All of the page, once there is a training. */
class TrainingPage {
  constructor() {
    this.head = h("header", { class: "head" });
    this.verdict = h("div", {});
    this.grid = new RankGrid((ranks) => this.chosen(ranks));
    this.log = new LogView((ranks) => this.grid.mark(ranks));
    this.curves = new Curves();
    this.usage = new Usage();
    this.plan = new Plan();
    this.log.tries.onchange = () => this.openTry(Number(this.log.tries.value));
    this.tabs = tabs("Details", [
      ["Log", this.log.element, () => this.log.draw()],
      ["Utilisation", this.usage.element],
      ["Environment", this.plan.environment],
      ["Preflight and plan", this.plan.preflight],
    ]);
    const ranks = h("section", { class: "card", "aria-label": "Ranks" }, h("h2", {}, "Ranks"), this.grid.element);
    const curves = h("section", { class: "card", "aria-label": "Metrics" }, h("h2", {}, "Metrics"), this.curves.element);
    const details = h("section", { class: "card", "aria-label": "Details" }, this.tabs.element);
    this.element = h("div", { class: "training" }, this.head, this.verdict, ranks, curves, details);
  }

  update(training, task, plan) {
    show(this.head, heading(training, task));
    show(this.verdict, training.verdict ? verdictBox(training.verdict, (rank) => this.jump(rank)) : null);
    this.grid.update(training);
    this.curves.update(training);
    this.usage.update(training);
    this.plan.update(plan);
    this.tell(task);
  }

  tell(task) {
    const latest = Math.max(1, task.try_number);
    if (this.latest === latest) return;
    this.latest = latest;
    show(this.log.tries, Array.from({ length: latest }, (_, i) => h("option", { value: i + 1 }, `try ${i + 1}`)));
    this.log.tries.value = String(latest);
    this.log.tries.hidden = latest < 2;
    this.openTry(latest);
  }

  openTry(attempt) {
    this.lines = new Lines(id, attempt);
    this.log.open(this.lines);
    this.readOn();
  }

  /** Read on in the log; one reading at a time. */
  async readOn() {
    const { lines } = this;
    if (!lines || lines.complete || lines.reading) return;
    lines.reading = true;
    try {
      const running = lines.attempt === this.latest && !this.over;
      await lines.readOn(running, () => lines === this.lines && this.log.grown());
    } finally {
      lines.reading = false;
    }
    if (lines === this.lines && this.jumpTo !== undefined && lines.complete) this.jump(this.jumpTo);
  }

  chosen(ranks) {
    this.log.only(ranks);
    if (ranks.size === 1) this.plan.choose([...ranks][0]);
  }

  jump(rank) {
    this.jumpTo = this.lines?.complete ? undefined : rank; // again, when all of it is there
    this.tabs.choose(0);
    this.grid.mark(new Set([rank]));
    this.log.jump(rank);
  }
}

function heading(training, task) {
  const began = training.started ?? training.since;
  const end = training.ended ?? (ENDED.has(task.state) ? training.updated : Date.now() / 1000);
  const silent = !OVER.has(training.state) && !ENDED.has(task.state) && training.updated && Date.now() / 1000 - training.updated > 60;
  const facts = [
    ["elapsed", began ? duration(end - began) : "–"],
    ["started", moment(began)],
    ["ranks", String(training.world_size ?? training.ranks?.length ?? "–")],
    ["hosts", String(training.hosts?.length ?? "–")],
    ["attempt", String((training.attempt ?? 0) + 1)],
    ["restarts", String(training.restarts ?? 0)],
  ];
  // A task that ended without a last word of its job: Airflow's own state is the newer one.
  const state = ENDED.has(task.state) && !OVER.has(training.state) ? (task.state === "success" ? "success" : "failed") : training.state;
  return [
    h("div", { class: "title" }, h("h1", {}, id.task, id.map >= 0 ? ` [${id.map}]` : ""), chip(JOB, state)),
    h("dl", { class: "facts" }, facts.map(([name, fact]) => h("div", {}, h("dt", {}, name), h("dd", {}, fact)))),
    training.message && !OVER.has(state) ? h("p", { class: "message" }, training.message) : null,
    silent ? h("p", { class: "reason" }, `Last heard of ${duration(Date.now() / 1000 - training.updated)} ago.`) : null,
    state === training.state ? null : h("p", { class: "reason" }, `The task has ended without a last word of its job: what is shown here was so at ${moment(training.updated)}.`),
    links(training.links),
  ];
}

function links(given) {
  const known = Object.entries(given ?? {});
  if (!known.length) return null;
  return h("p", { class: "links" }, known.flatMap(([name, href]) => [link(href, name, { fresh: true }), " "]));
}

function absent(task) {
  const begun = task.state && !["scheduled", "queued", "none"].includes(task.state);
  const words = begun
    ? ["No training here", `The task ${id.task} has recorded no training: it is of another kind, or it ended before its job began. Its log is under Logs.`]
    : ["Not begun yet", `The task ${id.task} has not started. If it is a training, its ranks appear here when it does.`];
  return h("div", { class: "empty" }, h("h1", {}, words[0]), h("p", {}, words[1]));
}

let shown = null;
let planned = { attempt: null, plan: null };

async function planOf(training, task) {
  const key = `${task.try_number}-${training.attempt}`;
  if (planned.key !== key || !planned.plan) planned = { key, plan: await xcom(id, "training_plan") };
  return planned.plan;
}

async function look() {
  const [task, training] = await Promise.all([instance(id), xcom(id, "training")]);
  trouble.hidden = true;
  page.setAttribute("aria-busy", "false");
  const over = ENDED.has(task.state);
  if (!training) {
    shown = null;
    show(page, trouble, absent(task));
    return !over;
  }
  const plan = await planOf(training, task);
  if (!shown) {
    shown = new TrainingPage();
    page.replaceChildren(trouble, shown.element);
  }
  shown.over = over;
  shown.update(training, task, plan);
  await shown.readOn();
  return !over || !shown.lines.complete;
}

function failed(error) {
  page.setAttribute("aria-busy", "false");
  trouble.textContent = error.message;
  trouble.hidden = false;
  if (!shown) page.replaceChildren(trouble);
}

document.title = `Training ${id.task ?? ""}`;
poll(look, failed);
