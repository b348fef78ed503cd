"""Lint, type-check and test the JavaScript of the report's page: `make page`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.page.node import HERE, ROOT, find_node, find_npm, run, unit_tests

SCRIPTS = ROOT / "src" / "dovetail" / "report" / "html"


def main() -> int:
    """The exit code: 0 where all that can run here passes. What cannot run is named."""
    node = find_node()
    if node is None:
        print("skipped: the page's JavaScript (there is no node)")
        return 0
    steps = {"unit tests": unit_tests(node)}
    if _install(node):
        modules = HERE / "node_modules"
        rules = str(HERE / "eslint.config.js")
        folders = [str(p.relative_to(ROOT)) for p in (SCRIPTS, HERE)]
        steps["lint"] = run(
            node, str(modules / "eslint" / "bin" / "eslint.js"), "--max-warnings=0", "-c", rules, *folders
        )
        steps["types"] = run(node, str(modules / "typescript" / "bin" / "tsc"), "--project", str(HERE))
    else:
        print("skipped: lint and types of the page (npm cannot install eslint and typescript here)")
    failed = {name: done for name, done in steps.items() if done.returncode}
    for name, done in failed.items():
        print(f"{name} of the page:\n{done.stdout}{done.stderr}")
    print(f"the page: {', '.join(name for name in steps if name not in failed) or 'nothing'} passed")
    return bool(failed)


def _install(node: Path) -> bool:
    """Whether the packages of the lock file are there now."""
    if (HERE / "node_modules" / ".package-lock.json").is_file() and _newer("node_modules/.package-lock.json"):
        return True
    npm = find_npm(node)
    return npm is not None and run(node, str(npm), "--prefix", str(HERE), "ci", "--silent").returncode == 0


def _newer(name: str) -> bool:
    return (HERE / name).stat().st_mtime >= (HERE / "package-lock.json").stat().st_mtime


if __name__ == "__main__":
    sys.exit(main())
