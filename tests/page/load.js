// The page's scripts as page.py puts them together, with names of theirs for tests to look at.

import { readFileSync } from "node:fs";
import { browser } from "./dom.js";

const FOLDER = new URL("../../src/dovetail/report/html/", import.meta.url);
const ORDER = [
  ...readFileSync(new URL("page.py", FOLDER), "utf8").match(/^SCRIPTS = \(([^)]*)\)/m)[1].matchAll(/"(\w+\.js)"/g),
].map((found) => found[1]);

/** Run the scripts up to `last` over a source; gives the names of `shown` in their scope, and the browser. */
export const load = (source, last, shown) => {
  const around = browser(source);
  const scripts = ORDER.slice(0, ORDER.indexOf(last) + 1);
  const code = scripts.map((name) => readFileSync(new URL(name, FOLDER), "utf8")).join("\n");
  const names = Object.keys(around.globals);
  const run = new Function(...names, `"use strict";\n${code}\nreturn { ${shown.join(", ")} };`);
  return { ...run(...names.map((name) => around.globals[name])), page: around };
};
