"""Code from loops is compiled anew by LLVM in each test: a fault of kept object code does not hide."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _compiled_anew(compiled_anew: None) -> None:  # pyright: ignore[reportUnusedFunction]
    """LLVM compiles what each test here asks for."""
