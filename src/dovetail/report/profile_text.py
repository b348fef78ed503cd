"""A measured program as text for people: where the time goes, by kernel and by place in the model."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.report.fold_names import NUMBER
from dovetail.report.measured import KernelTime, Measured
from dovetail.report.text import BEYOND, WINOGRAD, of_roofline, percent, served, time_text


def as_text(name: str, measured: Measured, top: int) -> str:
    """The kernels that take longest, then the places in the model."""
    threads = f"{measured.threads} thread{'s' if measured.threads > 1 else ''}"
    host = f", {percent(measured.host_share)} on the host" if measured.host_seconds else ""
    over = measured.overhead_seconds
    lines = [
        f"{name}: {time_text(measured.seconds)} (median of {measured.runs}, ±{time_text(measured.spread)}), {threads}, "
        f"{of_roofline(measured.roofline, ops=[k.op for k in measured.kernels])}{host}",
        f"{time_text(over)} ({percent(over / measured.seconds)}) beside kernels",
        "",
        f"{'time':>10} {'share':>6} {'roofline':>9}  kernel",
    ]
    slowest = sorted(measured.kernels, key=lambda k: -k.seconds)
    lines += [_kernel(kernel, measured.seconds) for kernel in slowest[:top]]
    rest = slowest[top:]
    if rest:
        seconds = sum(k.seconds for k in rest)
        lines.append(f"{time_text(seconds):>10} {percent(seconds / measured.seconds):>6} {'':>9}  {len(rest)} others")
    lines += ["", f"{'time':>10} {'share':>6} {'kernels':>9}  place in the model"]
    places = sorted(by_place(measured.kernels).items(), key=lambda item: -item[1][1])
    for place, (count, seconds) in places[:top]:
        lines.append(f"{time_text(seconds):>10} {percent(seconds / measured.seconds):>6} {count:>9}  {place}")
    lines.append(f"calibration: {measured.calibration}")
    return "\n".join(lines)


def _kernel(kernel: KernelTime, whole: float) -> str:
    reached = "host" if kernel.on_host else share_text(kernel.roofline, kernel.op)
    where = f"  at {kernel.where[-1]}" if kernel.where else ""
    return (
        f"{time_text(kernel.seconds):>10} {percent(kernel.seconds / whole):>6} {reached:>9}  "
        f"{kernel.kernel} {served(kernel.op, kernel.form)} {kernel.type}{where}"
    )


def share_text(share: float, op: str) -> str:
    """The share of the roofline for a column; only a convolution, by Winograd, can be above all of it."""
    return percent(share) if share <= (WINOGRAD if "conv" in op else BEYOND) else "beyond"


def by_place(kernels: Iterable[KernelTime]) -> dict[str, tuple[int, float]]:
    """Kernels and seconds of each place in the model; numbers count as one, so that layers add up."""
    found: dict[str, tuple[int, float]] = {}
    for kernel in kernels:
        place = NUMBER.sub("*", kernel.where[-1]) if kernel.where else f"({kernel.op})"
        count, seconds = found.get(place, (0, 0.0))
        found[place] = (count + 1, seconds + kernel.seconds)
    return found


__all__ = ["as_text", "by_place", "share_text"]
