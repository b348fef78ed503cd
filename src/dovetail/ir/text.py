"""The text form of graphs: `parse_graph(print_graph(graph), ops)` is the identical graph."""

from __future__ import annotations

from dovetail.ir.text_parse import parse_graph
from dovetail.ir.text_print import local_names, print_graph

__all__ = ["local_names", "parse_graph", "print_graph"]
