"""`dovetail.graphs.value_and_grad`: gradients of graphs, with the library's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import library
from dovetail.grad.gradient import Unreached
from dovetail.ir.graph import Graph
from dovetail.passes.differentiate import differentiate


def value_and_grad(
    graph: Graph, wrt: str | Sequence[str] = "*", *, loss: str = "", unreached: Unreached = "error"
) -> Graph:
    """The graph with one more output, `d.<name>`, for each parameter that `wrt` names: the gradient of the loss by it.

    `wrt` are names or patterns such as "layers.*", and "!layers.0.*" leaves out what those before it chose. They
    choose among the parameters; one that fits no parameter chooses among the inputs. Integers, and what the model does
    not train (buffers, `requires_grad=False`), are left out unless they are named. `loss` is the output with one
    element, and need not be given where there is one output, or one of that name. A parameter that the loss does not
    reach is a `GradientError` that names it, or has a gradient of zeros.
    """
    return differentiate(graph, wrt, loss=loss, unreached=unreached, recognise=library.ALL)


__all__ = ["value_and_grad"]
