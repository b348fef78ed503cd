"""torch.compile with dovetail: the backend, and reports of what it compiled."""

from dovetail.torch.backend import backend
from dovetail.torch.explain import explain, reports
from dovetail.torch.report import Explained, Fallback, GraphBreak, GraphReport

__all__ = ["Explained", "Fallback", "GraphBreak", "GraphReport", "backend", "explain", "reports"]
