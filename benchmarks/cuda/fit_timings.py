"""Fit the timings of an architecture on the card that is here, and print the figures that changed.

    PYTHONPATH=src:. python3 -m benchmarks.cuda.fit_timings [card gemm fma attention] [--rounds 5]

Kernels with one tile each are timed on the device; the figures of a table then move, one after the other, to where the
estimates of these tiles differ least from the times. What is printed goes into the file of the architecture
(`src/dovetail/kernels/timings`). Tables `launches` and `gemv`, and figures of split-K, need whole models: they are set
by hand, by the runs that their comments name.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from unittest.mock import patch

from dovetail import Graph, Value, library
from dovetail.errors import DovetailError
from dovetail.ir.dtype import DType, bf16, f32
from dovetail.ir.leaf import input
from dovetail.kernels.choice import Refused, StepProblem
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.attention.choice import cycles_of, group_tile, warp_tile
from dovetail.kernels.gpu.attention.sources import narrow_sources_of
from dovetail.kernels.gpu.gemm import fma_tile_choice, tile
from dovetail.kernels.gpu.gemm.tile_cost import Work
from dovetail.kernels.timings.record import GpuTimings
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.driver.calibration import measured, seconds_of
from dovetail.targets.cuda.driver.driver import Driver, driver
from dovetail.targets.cuda.runs.run import locations_of

GEMMS = (
    (4096, 4096, 4096), (4096, 768, 3072), (4096, 3072, 768), (4096, 384, 1536), (512, 1024, 4096), (512, 3072, 1024),
    (128, 768, 2304), (128, 3072, 768),
)  # fmt: skip
"""Rows, depth and columns."""
ATTENTIONS = ((192, 128, 64), (96, 512, 64), (32, 1500, 64), (16, 2048, 128), (64, 80, 64))
"""Heads, queries and keys, and features."""
FIGURES: Mapping[str, Sequence[str]] = {
    "gemm": (
        "warpgroup_products", "lone_tma_bytes", "far_tma_bytes", "k_step", "start", "narrow_results", "wide_results",
    ),
    "fma": ("pace", "shared_read", "stage", "lone"),
    "attention": (
        "warp_block", "warpgroup_block", "warp_factor", "warpgroup_latency", "warpgroup_start", "warpgroup_work",
        "shared_keys",
    ),
}  # fmt: skip
"""What the kernels of a table tell."""
STEPS = (1.3, 1.1, 1.03, 1.01)
"""Factors by which a figure moves, from coarse to fine."""


@dataclass(frozen=True)
class Sample:
    """A kernel with one tile: what it took, and what estimates say of it."""

    name: str
    cycles: float
    estimate: Callable[[GpuDevice], float]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="*", default=["card", *FIGURES])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args(arguments)
    here = driver()
    print(f'# {here.architecture}\nfitted = "{here.name}"')
    if "card" in args.table:
        print_card(here)
    for table in [name for name in FIGURES if name in args.table]:
        samples = [*SAMPLES[table](here, args.rounds)]
        figures = fitted(samples, here.description, table)
        was, now = (
            error_of(samples, one) for one in (here.description, with_figures(here.description, table, figures))
        )
        print(f"\n[{table}] # {len(samples)} kernels, estimates off by {was:.1%} before and {now:.1%} now")
        known = asdict(here.description.timings)[table]
        for name, figure in figures.items():
            print(f"{name} = {figure:.4g} # was {known[name]:g}")


def print_card(here: Driver) -> None:
    """What the card does in a second."""
    found = measured(here)
    print(f'\n[card]\nname = "{here.name}"\nmultiprocessors = {here.description.multiprocessors}')
    print(f"hertz = {here.description.hertz:.3g}\ntensor_flops = {found.flops['bf16']:.2g}")
    print(f"f32_flops = {found.flops['f32']:.2g}\nf64_flops = {found.flops['f64']:.2g}")
    print(f"bytes_per_second = {found.bytes_per_second:.2g}\nlaunch_seconds = {found.launch_seconds:.2g}")


def gemm_samples(here: Driver, rounds: int) -> Iterator[Sample]:
    """GEMMs with a producer, by each tile."""
    for m, k, n in GEMMS:
        for one in tile.PIPELINED_TILES:
            value = _matrix(bf16, "x", m, k) @ _matrix(bf16, "w", k, n)

            def estimate(device: GpuDevice, one: tile.BlockTile = one, m: int = m, k: int = k, n: int = n) -> float:
                return Work.of(1, m, n, 1, device).product_cycles(one, k)

            with ExitStack() as forced:
                forced.enter_context(patch.object(tile, "PIPELINED_TILES", (one,)))
                yield from _timed(here, rounds, f"{m}x{k}x{n} {one.rows}x{one.columns}", value, estimate)


def fma_samples(here: Driver, rounds: int) -> Iterator[Sample]:
    """GEMMs of f32, by each tile."""
    for m, k, n in GEMMS[1:]:
        for shape in fma_tile_choice.SHAPES:

            def estimate(
                device: GpuDevice, shape: fma_tile_choice.FmaShape = shape, m: int = m, k: int = k, n: int = n
            ) -> float:
                whole = replace(device, sum_cycles=math.inf)
                with patch.object(fma_tile_choice, "SHAPES", (shape,)):
                    return fma_tile_choice.fma_tile_of(1, m, n, k, 1, f32, whole).cycles

            value = _matrix(f32, "x", m, k) @ _matrix(f32, "w", k, n)
            with patch.object(fma_tile_choice, "SHAPES", (shape,)):
                yield from _timed(here, rounds, f"{m}x{k}x{n} {shape.rows}x{shape.columns}", value, estimate)


def attention_samples(here: Driver, rounds: int) -> Iterator[Sample]:
    """Attentions by the tile that is chosen."""
    for heads, tokens, width in ATTENTIONS:
        q, k, v = (_matrix(bf16, name, heads, tokens, width) for name in "qkv")
        value = library.attention(q, k, v, scale=0.125)
        plan = make_plan(Graph.of({"y": value}), target=CLAIMS)
        (step,) = plan.phase("run")
        sources = narrow_sources_of(StepProblem(step, locations_of(plan), here.description))
        if isinstance(sources, Refused):
            continue
        by_groups = group_tile(sources)
        chosen = warp_tile(sources) if isinstance(by_groups, Refused) else by_groups
        yield from _timed(
            here, rounds, f"{heads}x{tokens}x{width}", value, lambda device, chosen=chosen: cycles_of(chosen, device)
        )


SAMPLES: Mapping[str, Callable[[Driver, int], Iterator[Sample]]] = {
    "gemm": gemm_samples,
    "fma": fma_samples,
    "attention": attention_samples,
}


def _matrix(dtype: DType, name: str, *shape: int) -> Value:
    return input(name, dtype[shape])


def _timed(
    here: Driver, rounds: int, name: str, value: Value, estimate: Callable[[GpuDevice], float]
) -> Iterator[Sample]:
    try:
        seconds = seconds_of(here, value, rounds)
    except DovetailError as error:
        print(f"# {name}: {error}", file=sys.stderr)
        return
    yield Sample(name, seconds * here.description.hertz, estimate)


def with_figures(device: GpuDevice, table: str, figures: Mapping[str, float]) -> GpuDevice:
    """A device with other figures in a table."""
    timings: GpuTimings = device.timings
    return replace(device, measured=replace(timings, **{table: replace(getattr(timings, table), **figures)}))


def error_of(samples: Sequence[Sample], device: GpuDevice) -> float:
    """The root of the mean square of the logarithms of estimates over times."""
    logs = [math.log(sample.estimate(device) / sample.cycles) for sample in samples]
    return math.sqrt(sum([x * x for x in logs]) / max(1, len(logs)))


def fitted(samples: Sequence[Sample], device: GpuDevice, table: str) -> Mapping[str, float]:
    """The figures of a table with the least error: each moves by factors while that gains, from coarse to fine."""
    known = asdict(device.timings)[table]
    figures: dict[str, float] = {name: float(known[name]) for name in FIGURES[table]}
    least = error_of(samples, with_figures(device, table, figures))
    for step in STEPS:
        gains = True
        while gains:
            gains = False
            for name in figures:
                for factor in (step, 1 / step):
                    moved: dict[str, float] = {**figures, name: figures[name] * factor}
                    error = error_of(samples, with_figures(device, table, moved))
                    if error < least * (1 - 1e-6):
                        figures, least, gains = moved, error, True
    return figures


if __name__ == "__main__":
    main()
