"""The benchmarks of GPUs as modules: their shapes at tiny sizes run on the simulated device."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[3] / "benchmarks" / "cuda"


def benchmark(name: str) -> Any:
    """A benchmark by the name of its file."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[name] = found
    spec.loader.exec_module(found)
    return found


__all__ = ["benchmark"]
