"""One model that is judged: where its file is, what is fixed when it is imported, and what it is fed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Model:
    """One way to use one file: `feeds` are runs of one compilation."""

    name: str
    pin: str
    file: str
    feeds: tuple[Mapping[str, Array], ...]
    fixed: Mapping[str, Array | int] = field(default_factory=dict[str, "Array | int"])
    plausible: float = 1e-3
    """An error of onnxruntime beyond this is no rounding: then one of the two means something else by the model."""
