"""`dovetail doctor`: packages, the machine, targets."""

from __future__ import annotations

import os
import sys
from importlib import metadata

import numpy as np

from dovetail.cli.doctor import Package, packages
from tests.cli.commands import Shell


def test_what_is_installed_is_told(shell: Shell) -> None:
    said = shell("doctor", "--json")
    assert said.code == 0 and not said.err
    found = said.data
    assert found["schema_version"] == 1
    versions = {p["name"].replace("_", "-"): p["version"] for p in found["packages"]}
    assert versions["numpy"] == np.__version__ and versions["ml-dtypes"] == metadata.version("ml_dtypes")
    assert found["python"]["executable"] == sys.executable
    assert found["machine"]["cores"] == len(os.sched_getaffinity(0))


def test_targets_are_tried_and_not_believed(shell: Shell) -> None:
    targets = {t["target"]: t for t in shell("doctor", "--json").data["targets"]}
    assert targets["reference"]["runs"] and targets["cpu"]["runs"]
    assert not targets["cuda"]["runs"] and targets["cuda"]["note"].startswith("plans only")


def test_text_has_the_same(shell: Shell) -> None:
    said = shell("doctor").out
    assert f"numpy            {np.__version__}" in said
    assert "cpu              runs here" in said and "cuda             does not run here: plans only" in said


def test_a_package_that_is_missing_comes_with_its_command() -> None:
    wanted = ["numpy>=1.26", "no-such-package[x]>=2,<3 ; extra == 'rare'", "@@"]
    present, absent = packages(wanted)
    assert present.version == np.__version__ and present.extra == ""
    command = f"{sys.executable} -m pip install 'no-such-package[x]>=2,<3'"
    assert absent == Package("no-such-package", None, "rare", command)
