// Light and dark: as the system has it, unless the switch says otherwise. Colours stand in page.css alone.

const themes = ["auto", "light", "dark"];
/** @type {Record<string, string>} */
const themeSigns = { auto: "◐", light: "☀", dark: "☾" };
let theme = "auto";
let palette = /** @type {Palette} */ ({});
/** @type {(() => void)[]} */
const themeWatchers = [];

const remembered = () => {
  try {
    return localStorage.getItem("dovetail-theme") ?? "auto";
  } catch {
    return "auto";
  }
};

const readPalette = () => {
  const probe = el("span");
  document.body.append(probe);
  /** @type {(name: string) => string} */
  const read = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const names = ["paper", "card", "ink", "soft", "faint", "line", "wire", "accent", "warn"];
  palette = /** @type {any} */ (Object.fromEntries(names.map((n) => [n, read(n)])));
  palette.families = families.map((f) => read(`family-${f}`));
  palette.tints = families.map((f) => read(`tint-${f}`));
  probe.remove();
};

/** @type {(name: string) => void} */
const setTheme = (name) => {
  theme = themes.includes(name) ? name : "auto";
  document.documentElement.style.colorScheme = theme === "auto" ? "" : theme;
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("dovetail-theme", theme);
  } catch {
    /* a file that is opened by hand may have no storage */
  }
  clear($("theme"), themeSigns[theme]);
  $("theme").setAttribute("aria-label", `Colours: ${theme}`);
  $("theme").title = `Colours: ${theme} (T)`;
  refreshTheme();
};

const refreshTheme = () => {
  readPalette();
  for (const watcher of themeWatchers) watcher();
};

const nextTheme = () => setTheme(themes[(themes.indexOf(theme) + 1) % themes.length]);
const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
