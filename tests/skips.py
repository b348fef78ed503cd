"""Reasons for which CI may skip a test. Where CI=true, any other skip is a failure."""

from __future__ import annotations

import re
from typing import Any, cast

ALLOWED = {
    # These run in another step of .ci/run, which installs what they need.
    r"could not import '(torch|jax|transformers|sympy|expecttest)": "make test-torch and make test-xla run them",
    # These need hardware, or software that CI does not install.
    r"no CUDA device": "make test-cuda runs them",
    r"cuBLASLt is not installed|blocks of the device do not wait": "make test-cuda runs them",
    r"ptxas is neither": "part of NVIDIA's toolkit",
    r"^(zsh|fish) is not installed": "a shell reads its completions where it is; bash does in CI",
    r"egglog is not installed|could not import 'egglog": "280 MB; an oracle for the engine that ships",
    r"(openvino|onnxruntime|torch|jax)[\w, ]* is not installed": "peers of dovetail bench: make bench runs them",
    r"(this|the) (machine|processor|system|LLVM|device) ": "depends on the processor and the system",
    r"^(no dot product of bytes|needs dot products and smaps|wider than the vectors here|tests use no wider vectors)": (
        "depends on the processor"
    ),
    r"products of copies are as fast on this device": "depends on the processor",
    r"LLVM makes no code for AMD GPUs": "the oldest LLVM that is supported",
    r"this torch tells compiled code no addresses": "depends on the release of torch",
    r"only root may give files away|reserves more address space than the limit": "depends on the user and the shell",
    # Combinations of parameters that do not exist.
    r"^no symbols$|where float32 decides$": "no such case",
}
"""Patterns of reasons, and why each is none of a test's business or where the test runs."""


def unexpected(report: Any) -> str:
    """Return why a report of a skip is not allowed, or nothing."""
    if report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return ""
    # A skip is told as its file, its line and its reason.
    told: object = report.longrepr
    reason = cast(tuple[str, int, str], told)[2] if isinstance(told, tuple) else str(told)
    reason = reason.removeprefix("Skipped: ")
    if any(re.search(pattern, reason) for pattern in ALLOWED):
        return ""
    return f"skipped in CI for a reason that tests/skips.py does not list: {reason}"
