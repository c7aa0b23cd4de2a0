/** Airflow's REST interface, asked with the rights of whoever looks at the page. */

const API = new URL("../api/v2/", document.baseURI);
const PAGE = new URL("..", document.baseURI); // of Airflow itself

/** Raised where Airflow does not answer a question; tells what to do in `message`. */
export class Refused extends Error {
  constructor(status) {
    super(MEANING[status] ?? `Airflow answered with status ${status}. The page tries again.`);
    this.status = status;
  }
}
const MEANING = {
  0: "Airflow does not answer. The page tries again.",
  401: "You are logged out. Log in to Airflow, and open this page again.",
  403: "You may not read this DAG. Ask whoever runs this Airflow for the right to.",
  404: "Airflow knows no such task instance. It may have been cleared or removed.",
};

/** Return the answer to a GET, not read yet. */
export async function ask(path, query = {}, headers = {}) {
  const url = new URL(path, API);
  for (const [name, given] of Object.entries(query)) {
    for (const each of [given].flat()) if (each !== null && each !== undefined) url.searchParams.append(name, each);
  }
  let answer;
  try {
    answer = await fetch(url, { headers: { Accept: "application/json", ...headers } });
  } catch {
    throw new Refused(0);
  }
  if (!answer.ok) throw new Refused(answer.status);
  return answer;
}

export const read = async (path, query) => (await ask(path, query)).json();

/** Read, or null where there is no such thing. */
export async function find(path, query) {
  try {
    return await read(path, query);
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}

/** What this page is about. Airflow leaves a word such as `{MAP_INDEX}` in where there is none. */
export function subject() {
  const given = new URLSearchParams(location.search);
  const get = (name) => (/^\{\w+\}$/.test(given.get(name) ?? "") ? null : given.get(name));
  return { dag: get("dag_id"), run: get("run_id"), task: get("task_id"), map: Number(get("map_index") ?? -1) };
}

const run = ({ dag, run }) => `dags/${encodeURIComponent(dag)}/dagRuns/${encodeURIComponent(run)}`;
export const runPath = run;
export const taskPath = (id) => `${run(id)}/taskInstances/${encodeURIComponent(id.task)}`;

/** Return a task instance as Airflow tells it. */
export const instance = (id) => read(id.map >= 0 ? `${taskPath(id)}/${id.map}` : taskPath(id));

/** Return what a task instance has left under a key, or null. */
export async function xcom(id, key) {
  const found = await find(`${taskPath(id)}/xcomEntries/${key}`, { map_index: id.map });
  return found && plain(found.value);
}

const plain = (value) => (typeof value === "string" ? JSON.parse(value) : value);

/** The task instances, newest first, that have left something under a key. */
export async function holders(key, { dag = "~", run = "~" } = {}, limit = 100) {
  const path = `dags/${encodeURIComponent(dag)}/dagRuns/${encodeURIComponent(run)}/taskInstances/~/xcomEntries`;
  const { xcom_entries: found } = await read(path, { xcom_key: key, order_by: "-timestamp", limit });
  return found.map((entry) => ({ dag: entry.dag_id, run: entry.run_id, task: entry.task_id, map: entry.map_index }));
}

/** Where Airflow shows a task instance: its tab of ours, or another. */
export function pageOf(id, tab = "plugin/training") {
  const mapped = id.map >= 0 ? `/mapped/${id.map}` : "";
  const words = ["dags", id.dag, "runs", id.run, "tasks", id.task].map(encodeURIComponent).join("/");
  return new URL(`${words}${mapped}/${tab}`, PAGE).href;
}

/** Read many things, a few at a time; null where one cannot be read. */
export async function each(items, work, at = 6) {
  const results = new Array(items.length).fill(null);
  let next = 0;
  const worker = async () => {
    while (next < items.length) {
      const mine = next++;
      results[mine] = await work(items[mine]).catch(() => null);
    }
  };
  await Promise.all(Array.from({ length: at }, worker));
  return results;
}

/** Call `work` now and again while the page is seen and `work` returns true; tell what fails. */
export async function poll(work, failed, pause = 3000) {
  for (;;) {
    let more = true;
    if (!document.hidden) {
      try {
        more = await work();
      } catch (error) {
        failed(error);
        more = error.status === 0 || error.status >= 500 || error.status === 404;
        if (!(error instanceof Refused)) throw error;
      }
    }
    if (!more) return;
    await new Promise((done) => setTimeout(done, pause));
  }
}
