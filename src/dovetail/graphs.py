"""Graphs: what they are made of, how they are written as text, and functions of whole graphs."""

from dovetail.grad.gradient import gradient
from dovetail.ir.graph import Builder, Graph
from dovetail.ir.leaf import constant, input, param
from dovetail.ir.origin import scope
from dovetail.ir.text import print_graph
from dovetail.ir.type import TensorType, TupleType
from dovetail.ir.value import Value
from dovetail.ir.verify import verify
from dovetail.passes.canonicalize import canonicalize
from dovetail.passes.specialize import specialize
from dovetail.runtime.gradients import value_and_grad
from dovetail.runtime.load import parse

__all__ = [
    "Builder",
    "Graph",
    "TensorType",
    "TupleType",
    "Value",
    "canonicalize",
    "constant",
    "gradient",
    "input",
    "param",
    "parse",
    "print_graph",
    "scope",
    "specialize",
    "value_and_grad",
    "verify",
]
