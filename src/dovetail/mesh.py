"""Models on a mesh of devices: the placement of their tensors, and the collectives that it causes."""

from typing import TYPE_CHECKING, Any

from dovetail.runtime.explain_placement import choose_placement, explain_placement
from dovetail.targets.xla import Placement, target

if TYPE_CHECKING:
    from dovetail.targets.xla.explain.auto import Chosen
    from dovetail.targets.xla.explain.explained import Explained

__all__ = ["Chosen", "Explained", "Placement", "choose_placement", "explain_placement", "target"]


def __getattr__(name: str) -> Any:
    # JAX is imported with them.
    if name == "Chosen":
        from dovetail.targets.xla.explain.auto import Chosen

        return Chosen
    if name == "Explained":
        from dovetail.targets.xla.explain.explained import Explained

        return Explained
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
