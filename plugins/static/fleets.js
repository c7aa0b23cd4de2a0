/** The page of the fleets: hosts and slots, who holds them, who waits, what trainings there were. */

import { each, find, holders, pageOf, poll, read, xcom } from "./airflow.js";
import { h, show, table } from "./dom.js";
import { count, duration, moment, slot } from "./format.js";
import { link } from "./links.js";
import { HOST, JOB, chip } from "./states.js";
import "./theme.js";

const HEALTH = "fleet_health"; // the DAG, and what its task leaves
const RECENT = 25; // trainings that are listed
const HOLDING = new Set(["preparing", "running"]);
const OVER = new Set(["success", "failed", "stopped"]);
const page = document.getElementById("page");

async function look() {
  const [found, health, alive] = await Promise.all([holders("training"), healthOf(), living()]);
  const told = await each(found, (id) => xcom(id, "training"));
  const jobs = found.flatMap((id, i) => (told[i] ? [{ id, training: told[i] }] : []));
  const live = jobs.filter(({ id, training }) => alive.has(key(id)) && !OVER.has(training.state));
  page.setAttribute("aria-busy", "false");
  show(
    page,
    h(
      "div",
      { class: "training" },
      h("h1", {}, "Fleets"),
      fleets(health, live),
      section("In use", use(live)),
      section("Waiting", queue(live)),
      section("Recent trainings", history(jobs)),
    ),
  );
  return true;
}

const key = (id) => JSON.stringify([id.dag, id.run, id.task, id.map]);

/** The task instances that have not ended, as keys. */
async function living() {
  const query = { state: ["running", "deferred", "queued", "scheduled"], limit: 500 };
  const { task_instances: found } = await read("dags/~/dagRuns/~/taskInstances", query);
  return new Set(found.map((one) => key({ dag: one.dag_id, run: one.dag_run_id, task: one.task_id, map: one.map_index })));
}

/** What the newest run of the DAG `fleet_health` recorded, or null. */
async function healthOf() {
  if (!(await find(`dags/${HEALTH}`).catch(() => null))) return null;
  const [newest] = await holders(HEALTH, { dag: HEALTH }, 1);
  return newest ? xcom(newest, HEALTH) : null;
}

function section(title, content) {
  return h("section", { class: "card", "aria-label": title }, h("h2", {}, title), content);
}

const none = (words) => h("p", { class: "quiet" }, words);
const toTask = (id) => link(pageOf(id), `${id.dag} · ${id.task}${id.map >= 0 ? ` [${id.map}]` : ""}`, { "data-key": key(id) });

function fleets(health, live) {
  if (!health) {
    const words = "No preflight is recorded. Copy the DAG fleet_health into your DAG folder: it looks at all hosts on a schedule.";
    return section("Hosts", none(words));
  }
  const held = holding(live);
  return health.fleets.map((fleet) => {
    const hosts = fleet.hosts ?? [];
    const bad = hosts.filter((host) => host.state !== "ok").length;
    const told = [count(hosts.length, "host"), bad ? `${bad} not available` : null, `checked ${duration(Date.now() / 1000 - health.checked)} ago`];
    const columns = [...new Set(hosts.flatMap((host) => Object.keys(host.columns ?? {})))];
    return h(
      "section",
      { class: "card", "aria-label": `Fleet ${fleet.conn_id}` },
      h("h2", {}, fleet.conn_id, h("span", { class: "quiet" }, ` ${told.filter(Boolean).join(" · ")}`)),
      fleet.reason ? h("p", { class: "reason" }, fleet.reason) : null,
      h("div", { class: "hosts" }, hosts.map((host) => hostCard(host, held))),
      columns.length ? h("details", {}, h("summary", {}, "Preflight"), table(`Preflight of ${fleet.conn_id}`, ["host", ...columns], hosts.map((host) => [host.name, ...columns.map((name) => host.columns?.[name] ?? "–")]))) : null,
    );
  });
}

/** Who holds a slot, by host and slot, as the trainings tell. */
function holding(live) {
  const held = new Map();
  for (const { id, training } of live) {
    if (!HOLDING.has(training.state)) continue;
    for (const rank of training.ranks ?? []) held.set(`${rank.host} ${rank.slot}`, { id, rank, training });
  }
  return held;
}

function hostCard(host, held) {
  const names = Array.isArray(host.slots) ? host.slots : Object.keys(host.busy ?? {});
  const slots = names.map((name) => {
    const holder = held.get(`${host.name} ${name}`);
    const label = holder ? `${holder.id.dag} · ${holder.id.task}` : host.busy?.[name];
    return h(
      "li",
      { class: label ? "taken" : "free", title: name },
      h("span", { class: `dot ${label ? "run" : "off"}`, "aria-hidden": "true" }, label ? "▶" : "○"),
      h("span", {}, slot(name)),
      h("span", { class: "quiet" }, holder ? duration(Date.now() / 1000 - (holder.rank.started ?? holder.training.since)) : label ? "" : "free"),
      label ? h("span", { class: "holder" }, holder ? link(pageOf(holder.id), label) : label) : null,
    );
  });
  return h(
    "section",
    { class: "host", "aria-label": `Host ${host.name}` },
    h("h3", {}, host.name, chip(HOST, host.state)),
    host.reason ? h("p", { class: "reason" }, host.reason) : null,
    slots.length ? h("ul", { class: "slots" }, slots) : null,
  );
}

function use(live) {
  const rows = live
    .filter(({ training }) => HOLDING.has(training.state))
    .map(({ id, training }) => {
      const hosts = Object.entries(Object.groupBy(training.ranks ?? [], (rank) => rank.host));
      const slots = hosts.map(([host, ranks]) => `${host}: ${new Set(ranks.map((rank) => rank.slot)).size}`);
      const since = training.started ?? training.since;
      return [toTask(id), chip(JOB, training.state), slots.join(", ") || "–", `${moment(since)} (${duration(Date.now() / 1000 - since)})`];
    });
  return rows.length ? table("Trainings that hold slots", ["training", "state", "slots by host", "since"], rows) : none("No training holds a slot.");
}

function queue(live) {
  const rows = live
    .filter(({ training }) => training.state === "waiting")
    .sort((a, b) => a.training.since - b.training.since)
    .map(({ id, training }, i) => [String(i + 1), toTask(id), duration(Date.now() / 1000 - training.since), training.message ?? "–"]);
  return rows.length ? table("Trainings that wait for slots", ["", "training", "has waited", "who is in the way"], rows) : none("No training waits for slots.");
}

function history(jobs) {
  const rows = jobs
    .filter(({ training }) => OVER.has(training.state))
    .slice(0, RECENT)
    .map(({ id, training }) => {
      const began = training.started ?? training.since;
      const took = (training.ended ?? training.updated) - began;
      const slots = training.world_size ?? training.ranks?.length ?? 0;
      return [toTask(id), chip(JOB, training.state), moment(training.ended ?? training.updated), duration(took), `${((slots * took) / 3600).toFixed(1)} h`];
    });
  return rows.length ? table("Trainings that have ended", ["training", "state", "ended", "took", "slot hours"], rows) : none("No training has ended yet.");
}

poll(
  look,
  (error) => {
    page.setAttribute("aria-busy", "false");
    show(page, h("p", { class: "trouble", role: "alert" }, error.message));
  },
  5000,
);
