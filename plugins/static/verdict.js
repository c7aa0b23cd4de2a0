/** Why a job failed, and the way to the failing rank's lines. */

import { h } from "./dom.js";

/** The verdict as a box; `jump` is called with the rank, if there is one. */
export function verdictBox(verdict, jump) {
  const [first, ...rest] = (verdict.message ?? "").split("\n");
  const known = verdict.rank !== null && verdict.rank !== undefined;
  const where = [verdict.kind, known ? `rank ${verdict.rank}` : null, verdict.host].filter(Boolean).join(" · ");
  return h(
    "section",
    { class: "verdict", role: "alert", "aria-label": "Verdict" },
    h("p", { class: "where" }, where),
    h("h2", {}, h("span", { "aria-hidden": "true" }, "✖ "), first || "The job failed"),
    rest.length ? h("pre", { tabIndex: 0, "aria-label": "Evidence" }, rest.join("\n")) : null,
    jump && known
      ? h("button", { type: "button", class: "strong", "data-key": "jump", onclick: () => jump(verdict.rank) }, `Go to the lines of rank ${verdict.rank}`)
      : null,
  );
}
