/** The log viewer: only the lines that are seen are in the page, however many there are. */

import { h, show } from "./dom.js";
import { parseRanks, writeRanks } from "./lines.js";

const ROW = 19; // pixels, as in the style sheet
const SPARE = 10; // lines above and below what is seen
const LONGEST = 5000; // characters of a line that are shown; all of them are downloaded

export class LogView {
  constructor(ranksChosen) {
    this.lines = null;
    this.shown = null; // indices of lines, null for all
    this.ranksChosen = ranksChosen;
    this.search = h("input", { type: "search", placeholder: "Search", "aria-label": "Search in the lines", oninput: () => this.later() });
    this.ranks = h("input", { class: "ranks", placeholder: "All ranks", "aria-label": "Ranks to show, as in 0,3-5", oninput: () => this.chooseRanks() });
    this.follow = h("input", { type: "checkbox", checked: true, onchange: () => this.toEnd() });
    this.tries = h("select", { "aria-label": "Try" });
    this.told = h("span", { class: "quiet", role: "status" });
    this.rows = h("div", { class: "rows" });
    this.space = h("div", { class: "space" }, this.rows);
    this.window = h("div", { class: "log", role: "log", "aria-label": "Lines of the ranks", "aria-live": "off", tabIndex: 0, onscroll: () => this.scrolled() }, this.space);
    const save = h("button", { type: "button", onclick: () => this.download() }, "Download");
    const bar = h("div", { class: "bar" }, this.search, this.ranks, this.tries, h("label", {}, this.follow, " follow"), save, this.told);
    this.element = h("div", {}, bar, this.window);
    new ResizeObserver(() => this.draw()).observe(this.window);
  }

  /** Show other lines. */
  open(lines) {
    this.lines = lines;
    this.filtered = 0;
    this.filter();
  }

  /** Take in that there are more lines. */
  grown() {
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = 0;
      this.filter(this.filtered);
      this.toEnd();
    });
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.filter(), 150);
  }

  chooseRanks() {
    const wanted = parseRanks(this.ranks.value);
    this.ranks.setAttribute("aria-invalid", String(wanted === false));
    if (wanted === false) return;
    this.wanted = wanted;
    this.ranksChosen(wanted ?? new Set());
    this.later();
  }

  /** Show the lines of these ranks alone; an empty set is all. */
  only(ranks) {
    this.wanted = ranks.size ? ranks : null;
    this.ranks.value = writeRanks(ranks);
    this.filter();
  }

  /** Find the lines to show, from one on that was not looked at before. */
  filter(from = 0) {
    if (!this.lines) return;
    const { texts, ranks } = this.lines;
    const words = this.search.value.toLowerCase();
    if (!words && !this.wanted) this.shown = null;
    else {
      if (!from || !this.shown) this.shown = [];
      for (let i = this.shown.length || from ? from : 0; i < texts.length; i++) {
        if (this.wanted && !this.wanted.has(ranks[i])) continue;
        if (words && !texts[i].toLowerCase().includes(words)) continue;
        this.shown.push(i);
      }
    }
    this.filtered = texts.length;
    this.tell();
    this.space.style.height = `${this.number * ROW}px`;
    this.drawn = null;
    this.draw();
  }

  get number() {
    return this.shown ? this.shown.length : (this.lines?.texts.length ?? 0);
  }

  tell() {
    const all = this.lines.texts.length.toLocaleString();
    const end = this.lines.complete ? "" : " so far";
    this.told.textContent = this.shown ? `${this.number.toLocaleString()} of ${all} lines${end}` : `${all} lines${end}`;
  }

  /** Go to the end of what a rank printed: its traceback. */
  jump(rank) {
    this.search.value = "";
    this.only(new Set([rank]));
    this.follow.checked = false;
    const last = this.find(/Traceback|Error/) ?? this.number - 1;
    this.window.scrollTop = Math.max(0, last * ROW - this.window.clientHeight / 3);
    this.draw();
    this.window.scrollIntoView({ block: "nearest" });
    this.window.focus({ preventScroll: true });
  }

  /** Return the place of the last traceback, else of the last line that matches. */
  find(pattern) {
    let found = null;
    for (let row = this.number - 1; row >= 0 && row > this.number - 2000; row--) {
      const text = this.lines.texts[this.shown ? this.shown[row] : row];
      if (text.includes("Traceback (most recent call last)")) return row;
      if (found === null && pattern.test(text)) found = row;
    }
    return found;
  }

  /** Show a line among its neighbours. */
  among(index) {
    this.search.value = "";
    this.only(new Set());
    this.ranksChosen(new Set());
    this.follow.checked = false;
    this.window.scrollTop = Math.max(0, index * ROW - this.window.clientHeight / 2);
    this.marked = index;
    this.draw();
  }

  scrolled() {
    const rest = this.space.clientHeight - this.window.scrollTop - this.window.clientHeight;
    if (rest > ROW * 3 && this.number === this.drawnOf) this.follow.checked = false;
    this.draw();
  }

  toEnd() {
    if (!this.follow.checked || this.lines?.complete === undefined) return;
    this.window.scrollTop = this.space.clientHeight;
    this.draw();
  }

  draw() {
    if (!this.lines || !this.window.clientHeight) return;
    const from = Math.max(0, Math.floor(this.window.scrollTop / ROW) - SPARE);
    const to = Math.min(this.number, from + Math.ceil(this.window.clientHeight / ROW) + 2 * SPARE);
    const seen = `${from}-${to}-${this.number}-${this.marked}`;
    if (seen === this.drawn) return;
    this.drawn = seen;
    this.drawnOf = this.number;
    this.rows.style.transform = `translateY(${from * ROW}px)`;
    const rows = [];
    for (let row = from; row < to; row++) rows.push(this.row(this.shown ? this.shown[row] : row));
    show(this.rows, this.number ? rows : h("p", { class: "quiet" }, this.lines.complete ? "No line to show." : "No line yet."));
  }

  row(index) {
    const text = this.lines.texts[index];
    const cut = text.length > LONGEST ? `${text.slice(0, LONGEST)} … ${(text.length - LONGEST).toLocaleString()} more characters` : text;
    const tone = [this.lines.bad[index] ? "bad" : "", index === this.marked ? "marked" : ""].filter(Boolean).join(" ");
    const number = this.shown
      ? h("button", { type: "button", tabIndex: -1, title: "Show it among its neighbours", onclick: () => this.among(index) }, String(index + 1))
      : h("i", {}, String(index + 1));
    return h("div", { class: `line ${tone}` }, number, h("code", {}, marked(cut, this.search.value)));
  }

  /** Save the lines that are shown. */
  download() {
    if (!this.lines) return;
    const { texts } = this.lines;
    const chosen = this.shown ? this.shown.map((i) => texts[i]) : texts;
    const url = URL.createObjectURL(new Blob([chosen.join("\n"), "\n"], { type: "text/plain" }));
    const { id, attempt } = this.lines;
    h("a", { href: url, download: `${id.dag}-${id.task}-try-${attempt}.log` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }
}

/** A line with what was searched for marked. */
function marked(text, words) {
  if (!words) return text;
  const low = text.toLowerCase();
  const wanted = words.toLowerCase();
  const parts = [];
  let from = 0;
  for (let at = low.indexOf(wanted); at >= 0; at = low.indexOf(wanted, from)) {
    parts.push(text.slice(from, at), h("mark", {}, text.slice(at, at + wanted.length)));
    from = at + wanted.length;
  }
  return [...parts, text.slice(from)];
}
