// Numbers and texts as people read them, and the one way in which elements are made.

/**
 * A text from a model, safe to look at: no control characters, nothing that turns the direction of writing.
 *
 * @param {unknown} text
 */
const clean = (text, most = 400) => {
  const plain = String(text).replace(
    /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]/gu,
    (c) => "\\u" + (c.codePointAt(0) ?? 0).toString(16).padStart(4, "0"),
  );
  return plain.length > most ? plain.slice(0, most - 1) + "…" : plain;
};

/** @type {(value: number, digits: number) => string} */
const pretty = (value, digits) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

/** @type {(value: number, units: [number, string][]) => string} */
const scaled = (value, units) => {
  for (const [size, unit] of units) {
    if (Math.abs(value) >= size) {
      const shown = value / size;
      return `${pretty(shown, shown >= 100 ? 0 : shown >= 10 ? 1 : 2)} ${unit}`;
    }
  }
  const [size, unit] = units[units.length - 1];
  return `${value === 0 ? "0" : pretty(value / size, 2)} ${unit}`;
};

/** @type {Record<Kind, (value: number) => string>} */
const format = {
  seconds: (s) =>
    scaled(s, [
      [1, "s"],
      [1e-3, "ms"],
      [1e-6, "µs"],
      [1e-9, "ns"],
    ]),
  bytes: (b) =>
    scaled(b, [
      [1e9, "GB"],
      [1e6, "MB"],
      [1e3, "kB"],
      [1, "B"],
    ]).replace(/\.00 B$/, " B"),
  flops: (f) =>
    scaled(f, [
      [1e12, "Tflop"],
      [1e9, "Gflop"],
      [1e6, "Mflop"],
      [1e3, "kflop"],
      [1, "flop"],
    ]).replace(/\.00 flop$/, " flop"),
  rate: (r) =>
    scaled(r, [
      [1e12, "Tflop/s"],
      [1e9, "Gflop/s"],
      [1e6, "Mflop/s"],
      [1e3, "kflop/s"],
      [1, "flop/s"],
    ]),
  flow: (r) =>
    scaled(r, [
      [1e12, "TB/s"],
      [1e9, "GB/s"],
      [1e6, "MB/s"],
      [1e3, "kB/s"],
      [1, "B/s"],
    ]),
  count: (n) => n.toLocaleString("en"),
  percent: (p) => `${pretty(p * 100, p >= 0.0995 || p === 0 ? 0 : p >= 0.00995 ? 1 : 2)} %`,
  intensity: (i) => `${pretty(i, i >= 100 ? 0 : i >= 10 ? 1 : 2)} flop/B`,
};

/**
 * A number that carries its exact value: what is shown is rounded, `value` is what the report says.
 *
 * @type {(value: number | null | undefined, kind: Kind) => HTMLElement}
 */
const number = (value, kind) => {
  if (value === null || value === undefined) return el("span", { class: "none" }, "–");
  return el("data", { value: String(value), title: String(value) }, format[kind](value));
};

/**
 * Children in order, without those that are absent.
 *
 * @type {(children: Children[]) => (Node | string | number)[]}
 */
const present = (children) =>
  children.flatMap((child) =>
    Array.isArray(child) ? present(child) : child === null || child === undefined || child === false ? [] : [child],
  );

/**
 * @template {Element} E
 * @param {E} node
 * @param {Props} props
 * @param {Children[]} children
 */
const fill = (node, props, children) => {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of present(children)) {
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
};

/**
 * An element. Texts become text nodes, so that no name can be markup.
 *
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Props} props
 * @param {Children[]} children
 */
const el = (tag, props = {}, ...children) => fill(document.createElement(tag), props, children);
/**
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} tag
 * @param {Props} props
 * @param {Children[]} children
 */
const svg = (tag, props = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
/** The element of page.html with this id. */
const $ = /** @type {Find} */ ((/** @type {string} */ id) => document.getElementById(id));

/**
 * @template {Element} E
 * @param {E} node
 * @param {Children[]} children
 */
const clear = (node, ...children) => {
  node.replaceChildren(...present(children).map((c) => (c instanceof Node ? c : String(c))));
  return node;
};

/**
 * A table with a caption for readers of the screen; the first column of a row is its head.
 *
 * @type {(caption: string, heads: string[], rows: Children[][], props?: Props) => HTMLElement}
 */
const table = (caption, heads, rows, props = {}) =>
  el(
    "table",
    props,
    el("caption", {}, caption),
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        heads.map((h) => el("th", { scope: "col", class: h.startsWith("#") ? "n" : null }, h.replace(/^#/, ""))),
      ),
    ),
    el(
      "tbody",
      {},
      rows.map((cells) =>
        el(
          "tr",
          {},
          cells.map((cell, i) =>
            el(i ? "td" : "th", { scope: i ? null : "row", class: heads[i].startsWith("#") ? "n" : null }, cell),
          ),
        ),
      ),
    ),
  );
