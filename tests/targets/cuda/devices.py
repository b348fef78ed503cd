"""Whether there is a CUDA device, for tests that need one and for those that need none."""

from __future__ import annotations

import pytest

from dovetail.errors import UnsupportedError
from dovetail.targets.cuda.driver.driver import driver


def missing() -> str:
    """Why there is no device; "" where there is one."""
    try:
        driver()
    except UnsupportedError as error:
        return str(error)
    return ""


on_device = pytest.mark.skipif(bool(missing()), reason=f"no CUDA device: {missing()}")

__all__ = ["missing", "on_device"]
