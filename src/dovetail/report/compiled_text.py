"""The kernels that the compiler of a target made, as lines of the report."""

from __future__ import annotations

from dovetail.errors import DovetailError
from dovetail.report.fold_names import fold_names
from dovetail.report.paint import Line, Piece, line
from dovetail.report.record import CompiledKernel, Record
from dovetail.report.units import bytes_text

MARK = "COMPILED"
_PLACES = 3


def compiled_lines(report: Record) -> list[Line]:
    """A line for each kind of kernel in the order in which they run; compiles the plan."""
    if report.compiled is None:
        return []
    try:
        kernels = report.compiled()
    except DovetailError as error:
        return [line(Piece(MARK, "note"), f" unknown: {error.message}", hang=len(MARK) + 2)]
    groups: dict[tuple[str, str], list[CompiledKernel]] = {}
    for kernel in kernels:
        groups.setdefault((_work(kernel), kernel.type), []).append(kernel)
    steps = len({name for kernel in kernels for name in kernel.steps})
    count = f"{len(kernels)} {'kernel' if len(kernels) == 1 else 'kernels'}"
    lines = [line(Piece(MARK, "note"), f" {report.target} made {count} of {steps} steps", hang=len(MARK) + 2)]
    lines += [_line(work, type, some) for (work, type), some in groups.items()]
    return lines


def _work(kernel: CompiledKernel) -> str:
    """What a kernel computes: the ops of the user's nodes, and how it runs."""
    ops = ", ".join(n.op for n in kernel.nodes)
    fused = "fused " if len(kernel.nodes) > 1 else ""
    return f"{fused}{ops} ({kernel.form})" if ops else kernel.form


def _line(work: str, type: str, kernels: list[CompiledKernel]) -> Line:
    head = (Piece(MARK, "note"), f"{len(kernels):4} × ", Piece(f"{work:<22} ", "strong"))
    known = [k.bytes for k in kernels if k.bytes is not None]
    moved = f"moves {bytes_text(sum(known)):>9}   " if len(known) == len(kernels) else ""
    places = fold_names(dict.fromkeys(where for kernel in kernels for where in kernel.where))
    at = f"   at {', '.join(places[:_PLACES])}" if places else ""
    more = f" and {len(places) - _PLACES} more" if len(places) > _PLACES else ""
    return line(*head, f"{moved}{type}", f"{at}{more}", hang=len(MARK) + 2)


__all__ = ["MARK", "compiled_lines"]
