"""What `import dovetail` loads: packages by name, and no room that compiling and running a graph do not need."""

from __future__ import annotations

import subprocess
import sys

import pytest

import dovetail
from tests.golden import Golden

LATER = (
    "dovetail.bench",
    "dovetail.cli",
    "dovetail.codegen.llvm.ptx",
    "dovetail.egraph.egglog",
    "dovetail.models",
    "dovetail.report",
    "dovetail.targets.cpu",
    "dovetail.targets.cuda",
    "egglog",
    "llvmlite",
    "onnx",
    "onnxruntime",
    "safetensors",
    "scipy",
)
"""Rooms and packages that are imported on first use."""


def loaded_by(statement: str) -> list[str]:
    """The modules that a fresh process has loaded after a statement."""
    program = f"import sys\n{statement}\nprint(*sorted(sys.modules))"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()


def package_of(module: str) -> str:
    """A package of ours; of others, their top-level name."""
    return module.rpartition(".")[0] if module.startswith("dovetail.") else module.partition(".")[0]


def test_a_plain_import_loads_these_packages_and_no_others(golden: Golden) -> None:
    theirs = {module for module in loaded_by("pass") if "." not in module}
    found = {package_of(module) for module in loaded_by("import dovetail")} - theirs - sys.stdlib_module_names
    ours = sorted(name for name in found if not name.startswith("_") and "__mypyc" not in name)
    golden.file("tests/golden/imports.txt", "\n".join(ours) + "\n")


@pytest.mark.parametrize("statement", ["import dovetail", "import dovetail; dovetail.compile; dovetail.Program"])
def test_rooms_that_few_need_are_imported_on_first_use(statement: str) -> None:
    loaded = loaded_by(statement)
    assert not [module for module in loaded if any(f"{module}.".startswith(f"{room}.") for room in LATER)]


def test_names_of_such_rooms_are_offered_all_the_same() -> None:
    names = {"Analysis", "Report", "analyze", "models", "write_report"}
    assert names <= set(dir(dovetail))
    assert {getattr(dovetail, name).__name__.rpartition(".")[2] for name in names} == names
    with pytest.raises(AttributeError, match="analyse"):
        getattr(dovetail, "analyse")  # noqa: B009
