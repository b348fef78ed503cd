// Scripts of the page share one scope, so that tsc, not eslint, says which names are unknown or unused.

import js from "@eslint/js";

const rules = {
  ...js.configs.recommended.rules,
  "no-undef": "off",
  "no-unused-vars": "off",
  "no-control-regex": "off",
  eqeqeq: "error",
  "no-var": "error",
  "no-shadow-restricted-names": "error",
  "no-implicit-coercion": ["error", { boolean: false }],
  "no-throw-literal": "error",
  "no-eval": "error",
};

export default [
  { files: ["src/dovetail/report/html/*.js"], languageOptions: { sourceType: "script" }, rules },
  { files: ["tests/page/*.js"], rules },
];
