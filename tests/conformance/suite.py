"""ONNX's own suite, case by case, on dovetail's backend."""

from __future__ import annotations

import os
import re
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from dovetail.adapters.onnx_backend import DovetailBackend
from dovetail.errors import UnsupportedError

Verdict = Literal["passed", "wrong", "unsupported", "error"]


@dataclass(frozen=True, slots=True)
class Case:
    """One case: its kind (node, simple, …), its name, and the function that runs and judges it."""

    kind: str
    name: str
    run: Callable[..., Any]
    proto: list[Any]

    @property
    def operator(self) -> str:
        """The operator that a case is about, by its name: test_add_bcast is about Add."""
        model = self.proto[0]
        nodes = [] if model is None else [n.op_type for n in model.graph.node]
        return nodes[0] if len(nodes) == 1 else self.name.removeprefix("test_").split("_")[0]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a case ended."""

    kind: str
    name: str
    operator: str
    verdict: Verdict
    why: str = ""


@cache
def cases(home: Path) -> tuple[Case, ...]:
    """All cases of the installed version. `home` is where the suite may write models that it unpacks."""
    os.environ["ONNX_HOME"] = str(home)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite computes its expected outputs while it is loaded
        from onnx.backend.test import BackendTest

        items = BackendTest(DovetailBackend, __name__)._test_items
    return tuple(
        Case(_kind(category), name.removesuffix("_cpu"), item.func, item.proto)
        for category, found in items.items()
        for name, item in found.items()
        if name.endswith("_cpu")
    )


def _kind(category: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", category.removesuffix("Model")).lower().replace("py-torch", "pytorch")


def judge(case: Case) -> Outcome:
    """Run one case. Outputs that differ are wrong; what is refused by type is unsupported; all else is an error."""
    verdict, why = _run(case)
    return Outcome(case.kind, case.name, case.operator, verdict, why)


def _run(case: Case) -> tuple[Verdict, str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case.run(None)
    except UnsupportedError as error:
        return "unsupported", str(error)
    except AssertionError as error:
        return "wrong", str(error)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return "error", f"{type(error).__name__}: {error} [{Path(where.filename).name}:{where.lineno}]"
    return "passed", ""
