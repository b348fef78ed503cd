"""Predicted against measured time, kernel by kernel, over the workloads of `dovetail bench`.

    python benchmarks/predicted.py [WORKLOAD …] [--threads N] [--all]

For each workload: the whole run, and the median and the worst of predicted over measured over its kernels, each kernel
counted by the time that it takes. `--all` lists kernels. Calibrate first: dovetail doctor --calibrate.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from dovetail.bench.workloads import WORKLOADS, feeds_for
from dovetail.report.measured import KernelTime, Measured
from dovetail.runtime.compile import compile


def measured_of(name: str, threads: int, runs: int) -> tuple[float, Measured]:
    """The predicted seconds of a workload, and what was measured."""
    model = WORKLOADS[name].build()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        path.write_bytes(model.SerializeToString())
        program = compile(path, threads=threads)
        # From a warm cache, the report reads the file for the first time.
        return program.report.predicted_seconds, program.profile(feeds_for(model), runs=runs)


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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", nargs="*")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--all", action="store_true")
    args = parser.parse_args()
    for name in args.workload or WORKLOADS:
        predicted, found = measured_of(name, args.threads, args.runs)
        kernels = [k for k in found.kernels if k.seconds > 0]
        notable = [k for k in kernels if k.seconds > 0.01 * found.seconds] or kernels
        low, high = min(notable, key=ratio), max(notable, key=ratio)
        print(
            f"{name:16} predicted {predicted * 1e3:8.2f} ms, measured {found.seconds * 1e3:8.2f} ms; kernels: typical "
            f"{typical(kernels):.2f}, worst of those above 1 % {ratio(low):.2f} ({low.op}) and {ratio(high):.2f} "
            f"({high.op}); calibration: {found.calibration}"
        )
        for kernel in sorted(kernels, key=lambda k: -k.seconds) if args.all else ():
            print(f"  {kernel.seconds * 1e6:10.1f} µs {ratio(kernel):6.2f}  {kernel.op} {kernel.type}")


if __name__ == "__main__":
    main()
