/** Light or dark, as the page around this one is; else as the browser prefers. */

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const listeners = [];

function around() {
  try {
    return parent.document.documentElement; // itself, where there is no page around it
  } catch {
    return document.documentElement; // of another site
  }
}

function apply() {
  const classes = around().classList;
  const chosen = classes.contains("dark") || (!classes.contains("light") && prefersDark.matches);
  const theme = chosen ? "dark" : "light";
  if (document.documentElement.dataset.theme === theme) return;
  document.documentElement.dataset.theme = theme;
  listeners.forEach((listener) => listener());
}

/** Call this when the theme has changed. */
export function onTheme(listener) {
  listeners.push(listener);
}

/** A colour of the style sheet, for what is drawn. */
export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

apply();
prefersDark.addEventListener("change", apply);
new MutationObserver(apply).observe(around(), { attributes: true, attributeFilter: ["class"] });
