"""Predicted against measured time, kernel by kernel, over the workloads of `dovetail bench`.

    python benchmarks/predicted.py [WORKLOAD …] [--threads N] [--described] [--all]

For each workload: predicted over measured time of a run, and the median and the worst of the same over its kernels,
each kernel counted by the time that it takes. With one thread, processor time counts for the whole, which other
processes disturb little; kernels are timed by the clock. `--described` forgets what was calibrated: the figures are
what the processor says of itself, and a run outside a factor of 1.5 makes the exit status 1. `--all` lists kernels.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from dovetail import Program
from dovetail.bench.workloads import WORKLOADS, feeds_for
from dovetail.ir.literal import Array
from dovetail.report.measured import KernelTime, Measured
from dovetail.runtime.compile import compile

FACTOR = 1.5
"""How far a prediction may be from what is measured."""


def measured_of(name: str, threads: int, runs: int, described: bool) -> tuple[float, float, Measured]:
    """Predicted and measured seconds of a workload, and what each kernel took."""
    model = WORKLOADS[name].build()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        path.write_bytes(model.SerializeToString())
        # Calibrations are kept in the cache's folder.
        program = compile(path, threads=threads, cache=folder if described else "")
        feeds = feeds_for(model)
        # From a warm cache, the report reads the file for the first time.
        predicted, found = program.report.predicted_seconds, program.profile(feeds, runs=runs)
        return predicted, processor_seconds(program, feeds, runs) if threads == 1 else found.seconds, found


def processor_seconds(program: Program, feeds: Mapping[str, Array], runs: int) -> float:
    """The median processor time of a run on one thread."""
    times: list[float] = []
    for _ in range(runs):
        started = time.thread_time()
        program.run(feeds)
        times.append(time.thread_time() - started)
    return statistics.median(times)


def ratio(kernel: KernelTime) -> float:
    return kernel.predicted_seconds / kernel.seconds


def typical(kernels: list[KernelTime]) -> float:
    """The median ratio, weighted by time."""
    half = sum(k.seconds for k in kernels) / 2
    for kernel in sorted(kernels, key=ratio):
        half -= kernel.seconds
        if half <= 0:
            return ratio(kernel)
    return float("nan")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", nargs="*")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--described", action="store_true", help="predict by what the processor says of itself")
    parser.add_argument("--all", action="store_true")
    args = parser.parse_args()
    off: list[str] = []
    for name in args.workload or WORKLOADS:
        predicted, seconds, found = measured_of(name, args.threads, args.runs, args.described)
        share = predicted / seconds
        if not 1 / FACTOR <= share <= FACTOR:
            off.append(name)
        kernels = [k for k in found.kernels if k.seconds > 0]
        notable = [k for k in kernels if k.seconds > 0.01 * found.seconds] or kernels
        low, high = min(notable, key=ratio), max(notable, key=ratio)
        print(
            f"{name:16} predicted {predicted * 1e3:8.2f} ms, measured {seconds * 1e3:8.2f} ms: {share:.2f}; "
            f"kernels: typical {typical(kernels):.2f}, worst of those above 1 % {ratio(low):.2f} ({low.op}) and "
            f"{ratio(high):.2f} ({high.op}), nearest the roofline {max(k.roofline or 0 for k in kernels):.0%}; "
            f"calibration: {found.calibration}",
            flush=True,
        )
        for kernel in sorted(kernels, key=lambda k: -k.seconds) if args.all else ():
            print(f"  {kernel.seconds * 1e6:10.1f} µs {ratio(kernel):6.2f}  {kernel.op} {kernel.type}")
    print(f"outside a factor of {FACTOR}: {', '.join(off) or 'none'}")
    return int(args.described and bool(off))


if __name__ == "__main__":
    raise SystemExit(main())
