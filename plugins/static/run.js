/** The page of a DAG run: all of its trainings. */

import { each, holders, poll, read, runPath, subject, xcom } from "./airflow.js";
import { h, show } from "./dom.js";
import { card } from "./summary.js";
import "./theme.js";

const ENDED = new Set(["success", "failed"]);
const id = subject();
const page = document.getElementById("page");

async function look() {
  const [run, found] = await Promise.all([read(runPath(id)), holders("training", id)]);
  found.sort((a, b) => a.task.localeCompare(b.task) || a.map - b.map);
  const trainings = await each(found, (one) => xcom(one, "training"));
  const cards = found.flatMap((one, i) => (trainings[i] ? [card(one, trainings[i])] : []));
  page.setAttribute("aria-busy", "false");
  show(page, h("div", { class: "training" }, h("h1", {}, "Trainings of this run"), cards.length ? cards : absent(run)));
  return !ENDED.has(run.state);
}

function absent(run) {
  const words = ENDED.has(run.state) ? "No task of this run has recorded a training." : "No training has begun yet. It appears here when it does.";
  return h("p", { class: "empty" }, words);
}

poll(look, (error) => {
  page.setAttribute("aria-busy", "false");
  show(page, h("p", { class: "trouble", role: "alert" }, error.message));
});
