/** The lines of a try, as Airflow tells them: each with the rank that printed it. */

import { ask, taskPath } from "./airflow.js";

const SOURCE = /^\[(?:rank (\d+)|([\w-]+)) [^\]\s]+\] /;
// Colours and other commands to terminals, and what would turn the direction of a line around.
const CONTROL = /\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]/g;
const BATCH = 4000; // lines between two looks at the page

/** What has been read so far of one try. `ranks[i]` is the rank of `texts[i]`, -1 for none. */
export class Lines {
  constructor(id, attempt) {
    Object.assign(this, { id, attempt, texts: [], ranks: [], bad: [], complete: false, token: null, inGroup: false });
  }

  /** Read what is new; `grown` is called whenever there are more lines to see. */
  async readOn(running, grown) {
    const path = `${taskPath(this.id)}/logs/${this.attempt}`;
    const query = { map_index: this.id.map, token: this.token };
    // A log that grows is told in parts, each with a token for the next; an ended one as a stream.
    if (running || this.token) await this.readPart(path, query);
    else await this.readStream(path, query, grown);
    grown();
  }

  async readPart(path, query) {
    const { content, continuation_token: token } = await (await ask(path, query)).json();
    content.forEach((entry) => this.add(entry));
    this.token = token;
    this.complete = !token;
  }

  async readStream(path, query, grown) {
    const answer = await ask(path, query, { Accept: "application/x-ndjson" });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    let seen = 0;
    for (;;) {
      const { done, value } = await reader.read();
      const parts = (rest + (value ?? "")).split("\n");
      rest = done ? "" : parts.pop();
      parts.filter(Boolean).forEach((part) => this.add(JSON.parse(part)));
      if (done) break;
      if (this.texts.length - seen < BATCH) continue;
      seen = this.texts.length;
      grown();
    }
    this.complete = true;
  }

  add(entry) {
    const text = typeof entry === "string" ? entry : String(entry.event ?? "");
    if (this.skips(text)) return;
    const found = SOURCE.exec(text);
    const rank = found?.[1] === undefined ? -1 : Number(found[1]);
    const bad = entry.level === "error" || entry.level === "critical";
    for (const line of text.split("\n")) this.push(line, rank, bad);
    for (const { exc_type: type, exc_value: value } of entry.error_detail ?? []) {
      for (const line of `${type}: ${value}`.split("\n")) this.push(line, -1, true);
    }
  }

  /** Tell whether this is of the group at the top, where Airflow tells which files it has read. */
  skips(text) {
    if (text.startsWith("::group::Log message source details")) this.inGroup = true;
    else if (this.inGroup && text.startsWith("::endgroup::")) this.inGroup = false;
    else return this.inGroup;
    return true;
  }

  push(line, rank, bad) {
    this.texts.push(line.replace(CONTROL, ""));
    this.ranks.push(rank);
    this.bad.push(bad);
  }
}

/** Read `0,3-5` as a set of ranks; null where it says nothing, false where it cannot be read. */
export function parseRanks(text) {
  if (!text.trim()) return null;
  const ranks = new Set();
  for (const part of text.split(/[\s,]+/).filter(Boolean)) {
    const found = /^(\d{1,6})(?:-(\d{1,6}))?$/.exec(part);
    if (!found || Number(found[2] ?? found[1]) < Number(found[1])) return false;
    for (let rank = Number(found[1]); rank <= Number(found[2] ?? found[1]); rank++) ranks.add(rank);
  }
  return ranks;
}

/** Write a set of ranks as `0,3-5`. */
export function writeRanks(ranks) {
  const sorted = [...ranks].sort((a, b) => a - b);
  const parts = [];
  for (const rank of sorted) {
    const last = parts.at(-1);
    if (last && last[1] === rank - 1) last[1] = rank;
    else parts.push([rank, rank]);
  }
  return parts.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(",");
}
