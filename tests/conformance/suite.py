"""ONNX's own suite, case by case, on dovetail's backend."""

from __future__ import annotations

import math
import os
import re
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import onnx.defs

from dovetail.adapters.onnx_backend import DovetailBackend
from dovetail.errors import UnsupportedError
from tests.conformance.exact import suite_of

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "build" / "onnx"
"""Where the suite may write models that it unpacks."""

LARGE_POOL = 20_000
"""Results of one channel of a pool that only `make conformance` runs."""

Verdict = Literal["passed", "wrong", "unsupported", "error"]
VERDICTS: tuple[Verdict, ...] = ("passed", "wrong", "unsupported", "error")


@dataclass(frozen=True, slots=True)
class Case:
    """One case: its kind (node, simple, …), its name, and the function that runs and judges it."""

    kind: str
    name: str
    run: Callable[..., Any]
    proto: list[Any]

    @property
    def operator(self) -> str:
        """The operator of a model of one node, which the suite shows once it ran; else the one that the name has."""
        model = self.proto[0]
        nodes = [] if model is None else [n.op_type for n in model.graph.node]
        return nodes[0] if len(nodes) == 1 else _named_operator(self.name)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a case ended."""

    kind: str
    name: str
    operator: str
    verdict: Verdict
    why: str = ""
    seconds: float = 0.0


@cache
def cases(
    home: Path = HOME, backend: type[DovetailBackend] = DovetailBackend, *, large: bool = True
) -> tuple[Case, ...]:
    """All cases of the installed version, on a backend. Without `large`, large pools expect NaN: their cases fail."""
    os.environ["ONNX_HOME"] = str(home)
    with warnings.catch_warnings(), nullcontext() if large else _small_pools():
        warnings.simplefilter("ignore")  # the suite computes its expected outputs while it is loaded
        from onnx.backend.test import BackendTest

        items: dict[str, dict[str, Any]] = suite_of(backend, BackendTest)(__name__)._test_items  # pyright: ignore[reportPrivateUsage]
    return tuple(
        Case(_kind(category), name.removesuffix("_cpu"), item.func, item.proto)
        for category, found in items.items()
        for name, item in found.items()
        if name.endswith("_cpu")
    )


@contextmanager
def _small_pools() -> Generator[None]:
    """Spare ONNX, which loads all cases, pools of three cubes of 32³ numbers (7 s) and a look at its sources (1 s)."""
    from onnx.backend.test.case import base
    from onnx.reference.ops import op_pool_common

    pool: Any = op_pool_common.pool

    def small(padded: Any, x_shape: Any, kernel: Any, strides: Any, out_shape: Sequence[int], *rest: Any, **more: Any):
        if math.prod(out_shape) > LARGE_POOL:
            return np.full((*x_shape[:2], *out_shape), np.nan, padded.dtype)
        return pool(padded, x_shape, kernel, strides, out_shape, *rest, **more)

    with patch.object(op_pool_common, "pool", small), patch.object(base, "process_snippet", return_value=("", "")):
        yield


def backend_of(target: str) -> type[DovetailBackend]:
    """The backend that compiles for a target."""
    return type("Backend", (DovetailBackend,), {"target": target}) if target != "cpu" else DovetailBackend


def _kind(category: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", category.removesuffix("Model")).lower().replace("py-torch", "pytorch")


def judge(case: Case) -> Outcome:
    """Run one case. Outputs that differ are wrong; what is refused by type is unsupported; all else is an error."""
    started = time.perf_counter()
    verdict, why = _run(case)
    return Outcome(case.kind, case.name, case.operator, verdict, why, time.perf_counter() - started)


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


@cache
def _operators() -> dict[str, str]:
    """ONNX's operators by their names in lower case, the longest first."""
    names = {str(s.name) for s in onnx.defs.get_all_schemas()}
    return {name.lower(): name for name in sorted(names, key=lambda n: (-len(n), n))}


def _named_operator(name: str) -> str:
    """The operator whose name a case begins with: test_layer_normalization_2d is about LayerNormalization."""
    plain = name.removeprefix("test_").removeprefix("operator_").replace("_", "").lower()
    return next((op for short, op in _operators().items() if plain.startswith(short)), "(several)")
