/** States in words, with a shape beside the colour: not everybody tells colours apart. */

import { h } from "./dom.js";

export const JOB = {
  waiting: { word: "waiting for slots", shape: "◌", tone: "wait" },
  preparing: { word: "preparing", shape: "◍", tone: "wait" },
  running: { word: "running", shape: "▶", tone: "run" },
  success: { word: "success", shape: "✔", tone: "good" },
  failed: { word: "failed", shape: "✖", tone: "bad" },
  stopped: { word: "stopped", shape: "■", tone: "off" },
};
export const RANK = {
  waiting: { word: "waiting", shape: "○", tone: "wait" },
  running: { word: "running", shape: "▶", tone: "run" },
  ended: { word: "ended well", shape: "✔", tone: "good" },
  failed_first: { word: "failed first", shape: "✖", tone: "bad" },
  failed: { word: "failed after it", shape: "✕", tone: "after" },
  stopped: { word: "ended by us", shape: "■", tone: "off" },
  lost: { word: "lost with its host", shape: "?", tone: "lost" },
};
export const HOST = {
  running: { word: "running", shape: "▶", tone: "run" },
  ok: { word: "ok", shape: "✔", tone: "good" },
  ended: { word: "ended", shape: "■", tone: "off" },
  silent: { word: "silent", shape: "…", tone: "wait" },
  lost: { word: "lost", shape: "?", tone: "lost" },
  failed: { word: "failed preflight", shape: "✖", tone: "bad" },
  unreachable: { word: "unreachable", shape: "?", tone: "lost" },
  drained: { word: "drained", shape: "⏸", tone: "off" },
  quarantined: { word: "quarantined", shape: "⚠", tone: "after" },
};
const UNKNOWN = { word: "unknown", shape: "·", tone: "off" };

/** What is known of a state; one that a newer recorder invented is shown by its name. */
export function look(known, state) {
  return known[state] ?? { ...UNKNOWN, word: state ?? UNKNOWN.word };
}

/** A state as a small label. */
export function chip(known, state) {
  const { word, shape, tone } = look(known, state);
  return h("span", { class: `chip ${tone}` }, h("span", { "aria-hidden": "true" }, shape), ` ${word}`);
}
