"""For people who look inside: compilations with their history, single passes, rules, what-ifs, reports as JSON."""

from dovetail.derive.catalogue import page
from dovetail.derive.fuse import Fused, fuse
from dovetail.derive.rules import Rule, rules
from dovetail.derive.unfuse import unfuse
from dovetail.report.json_form import as_json
from dovetail.runtime.assume import assume
from dovetail.runtime.compile import Compilation, Request, compilation, make_request
from dovetail.runtime.verify import verify_compilation
from dovetail.runtime.verify_gradients import verify_gradients

__all__ = [
    "Compilation",
    "Fused",
    "Request",
    "Rule",
    "as_json",
    "assume",
    "compilation",
    "fuse",
    "make_request",
    "page",
    "rules",
    "unfuse",
    "verify_compilation",
    "verify_gradients",
]
