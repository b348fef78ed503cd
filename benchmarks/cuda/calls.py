"""What a call takes of the host on an NVIDIA GPU, beside torch.compile and replays of CUDA graphs by torch.

    PYTHONPATH=src:. python3 benchmarks/cuda/calls.py [name ...] [--stub] [--alone]

Microseconds of a call: 20 are made in a row, and the device is waited for after them, which is not counted. Rounds of
all contenders take turns, and the median counts. `same` has the arrays of the call before and drops its results,
`held` keeps them until the next ones come, `fresh` has other arrays of the same sizes in each call, `foreign` has
arrays of another library, the same ones, and `fresh_foreign` others. `numpy` goes from and to the host: it waits for
its results, and is time by the clock. `driver` is the launch of the graph alone. Without a GPU, or with --stub, the
driver is one that does nothing, and the times are of the processor.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dovetail
from dovetail.bench.peers import definitions
from dovetail.bench.workloads import feeds_for
from dovetail.errors import UnsupportedError
from dovetail.targets.cuda.driver.driver import Driver, driver
from dovetail.targets.cuda.runs.launch_code import launch_code
from dovetail.targets.cuda.target import target_for
from dovetail.targets.runtime.arrays.device_array import DeviceArray

sys.path.insert(0, str(Path(__file__).parent))

NAMES = ("minilm_1x16", "bert_1x128")
ROUNDS, IN_A_ROW = 40, 20
FRESH = 24
"""Sets of arrays that take turns: more than are remembered."""
Step = Callable[[], object]


class Interface:
    """An array of another library, which has the CUDA array interface."""

    def __init__(self, array: DeviceArray) -> None:
        self.array = array
        self.__cuda_array_interface__ = array.__cuda_array_interface__


def device(stub: bool) -> tuple[Driver, Callable[[], float]]:
    """The driver, and the clock for it."""
    if not stub:
        try:
            return driver(), time.perf_counter
        except UnsupportedError as error:
            print(f"{error.message}: the driver does nothing here")
    from stub_driver import StubDriver  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

    return StubDriver(), time.process_time  # pyright: ignore[reportUnknownVariableType]


def raced(contenders: Mapping[str, Step], wait: Step, clock: Callable[[], float]) -> dict[str, float]:
    """The median microseconds of a call of each."""
    rounds: dict[str, list[float]] = {name: [] for name in contenders}
    for step in contenders.values():
        for _ in range(2 * FRESH):
            step()
    for _ in range(ROUNDS):
        for name, step in contenders.items():
            for _ in range(3):
                step()
            wait()
            begun = clock()
            for _ in range(IN_A_ROW):
                step()
            rounds[name].append((clock() - begun) / IN_A_ROW)
            wait()
    return {name: 1e6 * statistics.median(times) for name, times in rounds.items()}


def ours(program: Any, feeds: Mapping[str, Any], wrap: Callable[[DeviceArray], Any]) -> dict[str, Step]:
    """Calls of a program."""

    def called(given: Mapping[str, Any]) -> object:
        return program.run(given, outputs="device")

    def taking_turns(sets: Sequence[Mapping[str, Any]]) -> Step:
        turns = itertools.cycle(sets)
        return lambda: called(next(turns))

    held: list[object] = [None]

    def holding() -> None:
        held[0] = called(there)

    there = program.to_device(feeds)
    fresh = [program.to_device(feeds) for _ in range(FRESH)]
    foreign = [{name: wrap(array) for name, array in arrays.items()} for arrays in fresh]
    return {
        "same": lambda: called(there),
        "held": holding,
        "fresh": taking_turns(fresh),
        "foreign": lambda: called(foreign[0]),
        "fresh_foreign": taking_turns(foreign),
        "numpy": lambda: program.run(feeds),
    }


def graph_launch(program: Any) -> dict[str, Step]:
    """The launch of the program's graph, as the runner has it."""
    try:
        sets = program._binding.runner._again[0]._sets
        return {"driver": sets[0].replay.launch}
    except (AttributeError, IndexError):  # the run has no graph
        return {}


def theirs(torch: Any, name: str, made: Any, feeds: Mapping[str, Any]) -> dict[str, Step]:
    """Calls of torch; what fails is named and left out."""

    from models import MODELS, Peers, graphed  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
    from onnx import numpy_helper

    torch_models: Any = definitions("torch_models")
    weights = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    network = torch_models.module(MODELS[name][0], weights).cuda().half()
    there = [torch.from_numpy(x).cuda() for x in feeds.values()]
    peers: Any = Peers()

    def compiled() -> Step:
        other = torch.compile(network, fullgraph=True, dynamic=False, mode="reduce-overhead")

        def step() -> object:
            with torch.inference_mode():
                return other(*there)

        return step

    peers.add("torch_reduce_overhead", compiled)
    with torch.inference_mode():
        peers.add("torch_graph_replay", lambda: graphed(torch, lambda: network(*there)))
    for failed, why in peers.failed.items():
        print(f"{failed}: {why}")
    return peers.steps


def row(name: str, found: Driver, clock: Callable[[], float], torch: Any) -> None:
    """One line for a model."""
    from converted import half  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
    from models import MODELS  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

    made: Any = half(MODELS[name][1]())  # pyright: ignore[reportUnknownVariableType]
    feeds = feeds_for(made)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(made.SerializeToString())
        program: Any = dovetail.compile(path, target=target_for(lambda: found), cache="off")
    steps = ours(program, feeds, Interface if torch is None else torch.from_dlpack)
    for _ in range(4):
        steps["same"]()
    launch_code.wait()
    steps["same"]()
    steps |= graph_launch(program)
    if torch is not None:
        steps |= theirs(torch, name, made, feeds)
    times = raced(steps, found.synchronize, clock)
    told = " ".join(f"{n}={t:.2f}" for n, t in times.items())
    where = "cuda" if clock is time.perf_counter else "stub"
    launches = len(program._binding.runner.bound.loaded)
    print(f"calls {name} target={where} unit=us {told} launches={launches}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", nargs="*", help="models of benchmarks/cuda/models.py")
    parser.add_argument("--stub", action="store_true", help="a driver that does nothing, also where there is a GPU")
    parser.add_argument("--alone", action="store_true", help="without torch")
    args = parser.parse_args()
    found, clock = device(args.stub)
    torch: Any = None
    if clock is time.perf_counter and not args.alone:
        from peers import torch_here  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

        torch = torch_here()
    for name in args.name or NAMES:
        row(name, found, clock, torch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
