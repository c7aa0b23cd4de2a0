/** What was planned: the environment of ranks, what preflight found, and the plan as text. */

import { h, show, table } from "./dom.js";

export class Plan {
  constructor() {
    this.rank = h("select", { "aria-label": "Rank", onchange: () => this.showVariables() });
    this.search = h("input", { type: "search", placeholder: "Search", "aria-label": "Search in the variables", oninput: () => this.showVariables() });
    this.variables = h("div", {});
    this.environment = h("div", {}, h("div", { class: "bar" }, h("label", {}, "rank ", this.rank), this.search), this.variables);
    this.preflight = h("div", {});
    this.update(null);
  }

  update(plan) {
    this.plan = plan ?? {};
    const ranks = Object.keys(this.plan.environment ?? {});
    if (this.rank.options.length !== ranks.length) show(this.rank, ranks.map((rank) => h("option", { value: rank }, rank)));
    this.showVariables();
    this.showPreflight();
  }

  choose(rank) {
    if (!this.plan.environment?.[rank]) return;
    this.rank.value = String(rank);
    this.showVariables();
  }

  showVariables() {
    const all = Object.entries(this.plan.environment?.[this.rank.value] ?? {});
    const words = this.search.value.toLowerCase();
    const found = all.filter(([name, value]) => `${name}=${value}`.toLowerCase().includes(words));
    const rows = found.map(([name, value]) => [h("code", {}, name), h("code", {}, String(value))]);
    show(
      this.variables,
      all.length ? table("Environment of the rank", ["variable", "value"], rows) : h("p", { class: "quiet" }, "Not known yet: it is recorded when the ranks start."),
      all.length ? h("p", { class: "quiet" }, "Secrets are masked.") : null,
    );
  }

  showPreflight() {
    const hosts = this.plan.preflight ?? [];
    const columns = [...new Set(hosts.flatMap((host) => Object.keys(host.columns ?? {})))];
    const rows = hosts.map((host) => [host.host, ...columns.map((name) => host.columns?.[name] ?? "–")]);
    const notes = (this.plan.preflight_notes ?? []).map((note) => h("li", {}, note));
    const lines = this.plan.lines ?? [];
    show(
      this.preflight,
      rows.length ? table("Preflight of the hosts", ["host", ...columns], rows) : h("p", { class: "quiet" }, "Not known yet: hosts are asked before any rank starts."),
      notes.length ? h("ul", { class: "notes" }, notes) : null,
      lines.length ? h("h3", {}, this.plan.launcher ? `Plan for ${this.plan.launcher}` : "Plan") : null,
      lines.length ? h("pre", { tabIndex: 0, "aria-label": "Plan" }, lines.join("\n")) : null,
    );
  }
}
