"""The quick tier."""

from __future__ import annotations

import pytest


def quick_ones(items: list[pytest.Item]) -> list[pytest.Item]:
    return items
