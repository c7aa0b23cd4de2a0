/** Elements of a page. Text goes in as text, never as HTML: much of it was printed by ranks. */

/**
 * Make an element. Properties that begin with `on` are listeners, `class` and names with a dash are
 * attributes, null leaves one out; children are elements, text, or null for none.
 */
export function h(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "class" || key === "role" || key === "for" || key.includes("-")) element.setAttribute(key, value);
    else element[key] = value;
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Put children in place of what an element holds, unless it would look the same. */
export function show(parent, ...children) {
  const next = document.createElement(parent.tagName);
  next.append(...children.flat().filter((child) => child !== null && child !== undefined));
  if (next.innerHTML === parent.innerHTML) return;
  const focused = parent.contains(document.activeElement) && document.activeElement.dataset.key;
  parent.replaceChildren(...next.childNodes);
  if (focused) parent.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

/** A table of rows; cells are text or elements. The table scrolls by itself where it is too wide. */
export function table(caption, head, rows) {
  const header = head.map((name) => h("th", { scope: "col" }, name));
  const body = rows.map((cells) => h("tr", {}, cells.map((cell) => h("td", {}, cell))));
  return h(
    "div",
    { class: "scroll", tabIndex: 0, role: "region", "aria-label": caption },
    h("table", {}, h("caption", { class: "unseen" }, caption), h("thead", {}, h("tr", {}, header)), h("tbody", {}, body)),
  );
}

/** Tabs over panels: `[title, element, opened?]`; `opened` is called whenever a tab is chosen. */
export function tabs(label, entries) {
  const choose = (index, focus) => {
    buttons.forEach((button, i) => {
      button.setAttribute("aria-selected", String(i === index));
      button.tabIndex = i === index ? 0 : -1;
      entries[i][1].hidden = i !== index;
    });
    if (focus) buttons[index].focus();
    entries[index][2]?.();
  };
  const keys = (event, index) => {
    const to = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: -1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose((to + entries.length) % entries.length, true);
  };
  const buttons = entries.map(([title, panel], i) => {
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-label", title);
    return h("button", { type: "button", role: "tab", onclick: () => choose(i), onkeydown: (event) => keys(event, i) }, title);
  });
  const bar = h("div", { class: "tabs", role: "tablist", "aria-label": label }, buttons);
  choose(0);
  return { element: h("div", {}, bar, entries.map(([, panel]) => panel)), choose };
}
