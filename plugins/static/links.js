/** Links out of this page, which Airflow shows in a frame that may not lead its page elsewhere. */

import { h } from "./dom.js";

/** A link that opens in Airflow's own window, or in a new one. */
export function link(href, text, { fresh = false, ...more } = {}) {
  const safe = /^https?:$/.test(protocol(href));
  if (!safe) return h("span", more, text);
  const follow = (event) => {
    if (parent === window || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    // The frame is sandboxed; the page around it, which is of the same site, is not.
    const outer = parent.document.createElement("a");
    outer.href = href;
    if (fresh) Object.assign(outer, { target: "_blank", rel: "noreferrer noopener" });
    parent.document.body.append(outer);
    outer.click();
    outer.remove();
  };
  const rest = fresh ? { target: "_blank", rel: "noreferrer noopener" } : {};
  return h("a", { href, onclick: follow, ...rest, ...more }, text, fresh ? h("span", { "aria-hidden": "true" }, " ↗") : null);
}

function protocol(href) {
  try {
    return new URL(href, document.baseURI).protocol;
  } catch {
    return "";
  }
}
