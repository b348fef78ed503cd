"""Where a resident kernel spends its time on an NVIDIA GPU: microseconds between the moments of a pass.

    PYTHONPATH=src python3 benchmarks/cuda/trace.py [--shape NAME] [--cached N ...] [--layers N]

Each line is a part of a pass: blocks that run it, then the time between its moments, for the median block and pass. A
moment follows each barrier of a block and each wait for other blocks (`got`); `gap` is the time since the part before.
Cycles of the multiprocessor are told as the time that they took: the last line has the clock that both give, which is
lower than the device tells where tensor cores are in use.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

import dovetail
from dovetail.kernels.loops.persistent.trace import moments

sys.path.insert(0, str(Path(__file__).parent))

_HALF = (1 << 32) - 1


def times_of(frame: Any) -> tuple[list[Any], Any]:
    """The moments of the resident kernel of a frame, and both clocks of each by pass and block, 0 without any."""
    at, one = next((i, k) for i, k in enumerate(frame.bound.loaded) if k.kernel.counters)
    kernel = one.kernel.kernel
    found = moments(kernel)
    count = len(found) * kernel.passes * kernel.launch.grid
    counter = frame.counter
    whole = np.empty(counter.nbytes, np.uint8)
    counter.download(whole, 0)
    start = frame.counters[at] + one.kernel.counter_bytes - 8 * count
    return found, whole[start : start + 8 * count].view(np.int64).reshape(len(found), kernel.passes, -1)


def table(found: list[Any], clocks: Any) -> list[str]:
    """A line for each part, and one for the median pass."""
    cycles, moments_ns = clocks & _HALF, clocks >> 32 & _HALF
    is_known = clocks != 0
    whole = is_known[0].all(axis=0)
    of_pass = _apart(cycles[0][:, whole])
    hertz = 1e9 * of_pass.mean() / _apart(moments_ns[0][:, whole]).mean() if of_pass.size else 0.0
    if not hertz:
        return ["  one pass: its clock is not known"]
    lines: list[str] = []
    last = None
    for part, group in groupby(range(len(found)), key=lambda i: found[i].part):
        own = [*group]
        ran = is_known[own].all(axis=0)
        if not ran.any():
            continue
        steps = _apart(cycles[own])[:, ran] / hertz * 1e6
        names = [{"Receive": "got"}.get(found[i].after, found[i].after.lower()) for i in own[1:]]
        texts = [f"{n} {np.median(s):.2f}" for n, s in zip(names, steps, strict=True)]
        total = _apart(cycles[[own[0], own[-1]]])[0][ran] / hertz * 1e6
        tail = f"= {np.median(total):.2f} (most {np.percentile(total, 95):.2f})"
        if last is not None and (known := ran & is_known[last]).any():
            gap = _apart(cycles[[last, own[0]]])[0][known]
            texts = [f"gap {np.median(gap) / hertz * 1e6:.2f}", *texts]
        last = own[-1]
        lines.append(f"  {part:2d} x{int(ran.any(axis=0).sum()):3d} {' '.join(texts)} {tail}")
    return [*lines, f"  pass {np.median(of_pass) / hertz * 1e6:.2f} at {hertz / 1e9:.2f} GHz"]


def _apart(clock: Any) -> Any:
    """What a clock of 32 bits has gone on between neighbours, and it may have started again from 0."""
    return np.diff(clock, axis=0) & _HALF


def main() -> None:
    import decode
    from peers import raced, torch_here  # pyright: ignore

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=[*decode.SHAPES], default="qwen3_0.6b")
    parser.add_argument("--cached", nargs="*", type=int, default=[512, 4096])
    parser.add_argument("--layers", type=int, default=6)
    args = parser.parse_args()
    torch: Any = torch_here()
    from dovetail.targets.cuda.driver.driver import driver as drivers
    from dovetail.targets.cuda.runs import runner as runners

    driver = drivers()
    was = driver.description
    frames: list[Any] = []
    made = runners.DeviceFrame

    def kept(*given: Any, **named: Any) -> Any:
        frames.append(made(*given, **named))
        return frames[-1]

    setattr(runners, "DeviceFrame", kept)  # noqa: B010
    of: Any = replace(decode.SHAPES[args.shape], layers=args.layers, vocabulary=4096)
    graph = decode.step_graph(of)
    weights = decode.weights_of(graph)
    for cached in args.cached:
        feeds = decode.feeds_of(of, cached)
        contenders: dict[str, Any] = {}
        for is_traced in (False, True):
            driver.description, driver.traced = replace(was, cooperative="on"), is_traced
            program = dovetail.compile(graph, target="cuda").bind(weights)
            there: Any = program.to_device(feeds)
            name = "traced" if is_traced else "plain"
            contenders[name] = lambda program=program, there=there: program.run(there, outputs="device")
            contenders[name]()
        times: Mapping[str, Any] = raced(torch, contenders)
        torch.cuda.synchronize()
        print(
            f"{args.shape} {cached} " + " ".join(f"{n}={t.seconds * 1e3:.4f}ms" for n, t in times.items()), flush=True
        )
        print("\n".join(table(*times_of(frames[-1]))), flush=True)


if __name__ == "__main__":
    main()
