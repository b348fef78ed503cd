"""What the benchmarks on GPUs measure and print: times by events, dtypes of models, the roofline, onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

import dovetail
from dovetail.bench.workloads import feeds_for
from dovetail.declare.machine import Cost
from dovetail.frontends.onnx import import_model
from dovetail.targets.cuda.claims import MACHINE as H200
from dovetail.targets.reference.interpreter import evaluate
from tests.bench.small import SMALL
from tests.targets.cuda.benchmark import benchmark

PEERS = benchmark("peers")
MODELS = benchmark("models")
ONNX = benchmark("onnx_peers")
FLOORS = benchmark("floors")
DECODE = benchmark("decode")


class FakeDevice:
    """torch whose steps take time on a device; the clock goes on by what the host does, and by waiting."""

    def __init__(self) -> None:
        self.now, self.busy_until = 0.0, 0.0
        self.cuda = SimpleNamespace(synchronize=self.synchronize, Event=self.event)

    def synchronize(self) -> None:
        self.now = max(self.now, self.busy_until)

    def event(self, *, enable_timing: bool) -> FakeEvent:
        assert enable_timing
        return FakeEvent(self)

    def step(self, host: float, device: float) -> Callable[[], None]:
        def run() -> None:
            self.now += host
            self.busy_until = max(self.now, self.busy_until) + device

        return run

    def elsewhere(self, seconds: float) -> Callable[[], None]:
        """A step on a stream of its own: events see nothing of it, and to wait for it takes time."""
        before = self.cuda.synchronize
        left = [0.0]

        def wait() -> None:
            before()
            self.now += left[0]
            left[0] = 0.0

        def run() -> None:
            left[0] += seconds

        self.cuda.synchronize = wait
        return run


class FakeEvent:
    """A mark in the stream of the device."""

    def __init__(self, device: FakeDevice) -> None:
        self.device, self.at = device, 0.0

    def record(self) -> None:
        self.at = max(self.device.now, self.device.busy_until)

    def elapsed_time(self, end: FakeEvent) -> float:
        return (end.at - self.at) * 1e3


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    found = FakeDevice()
    monkeypatch.setattr(PEERS, "time", SimpleNamespace(perf_counter=lambda: found.now))
    return found


def test_times_are_those_between_events_of_the_device(device: FakeDevice) -> None:
    quick, slow = (PEERS.timed(device, device.step(host, 1e-3), 100) for host in (1e-5, 2e-3))
    assert quick.device == pytest.approx(1e-3, rel=1e-2) and quick.seconds == quick.device
    assert slow.device == pytest.approx(2e-3, rel=1e-2), "the host is late: the device waits between runs"


def test_only_the_clock_counts_where_events_cannot_tell(device: FakeDevice) -> None:
    escaped = PEERS.timed(device, device.elsewhere(1e-3), 10)
    assert escaped.device is None and escaped.seconds == pytest.approx(1e-3)

    def wait(result: object) -> None:
        device.synchronize()

    jax = SimpleNamespace(block_until_ready=wait)
    by_jax = PEERS.timed(device, PEERS.JaxStep(jax, device.step(1e-5, 1e-3)), 10)
    assert by_jax.device is None and by_jax.wall == pytest.approx(1e-3, rel=0.02)
    assert PEERS.timed(device, device.step(1e-5, 1e-3), 10, by_events=False).device is None


def test_contenders_are_raced_by_the_median(device: FakeDevice) -> None:
    times = PEERS.raced(device, {"dovetail": device.step(1e-5, 1e-3), "eager": device.step(1e-5, 2e-3)})
    assert times["dovetail"].seconds == pytest.approx(1e-3, rel=1e-2)
    assert PEERS.compared(times, 5e-4) == "ratio=2.00 best_peer=eager ms=1 limit=0.50 floor=0.5000 roofline=50%"


def test_a_line_tells_the_clock_where_it_differs() -> None:
    time = PEERS.Time
    times = {"dovetail": time(1.1e-3, 1e-3), "eager": time(2.02e-3, 2e-3), "jax": time(3e-3)}
    told = PEERS.told_times(times)
    assert told == "dovetail=1.0000 dovetail_wall=1.1000 eager=2.0000 jax=3.0000 by_wall=jax"
    assert PEERS.compared({"dovetail": time(2e-3)}) == "ratio=none best_peer=none ms=2"
    others = {"dovetail": time(2e-3), "resident": time(1e-3), "eager": time(3e-3)}
    assert PEERS.compared(others, own=("dovetail", "resident")).startswith("ratio=1.50 best_peer=eager ms=2")


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("name", ["encoder", "one token", "convolutions"])
def test_a_model_is_converted_to_a_dtype(name: str, dtype: str) -> None:
    written = SMALL[name].build()
    feeds = feeds_for(written)
    graph = import_model(written)
    (wanted,) = evaluate(graph, feeds, lift=True).values()
    made = MODELS.converted(written, dtype)
    kinds = {x.dtype for x in MODELS.weights_of(made).values()}
    assert np.dtype(MODELS.DTYPES[dtype]) in kinds and (dtype == "f32" or np.dtype(np.float32) not in kinds)
    assert made.graph.output[0].type.tensor_type.elem_type == benchmark("converted").ELEMENTS[dtype]
    narrow = import_model(made)
    assert {v.dtype.name for v in narrow.outputs.values()} == {dtype}
    (got,) = evaluate(narrow, MODELS.narrowed(feeds, dtype), lift=True).values()
    error = np.linalg.norm(np.asarray(got, np.float64) - wanted) / np.linalg.norm(wanted)
    assert error < {"f16": 1e-2, "bf16": 6e-2, "f32": 1e-9}[dtype]


def test_numbers_are_widened_without_a_loss() -> None:
    arrays = {"x": np.array([1.0, 3.0], ml_dtypes.bfloat16), "ids": np.array([1, 2])}
    wide = MODELS.widened(arrays, np.float64)
    assert wide["x"].dtype == np.float64 and wide["ids"].dtype == np.int64


def _program(name: str, dtype: str) -> tuple[Any, Mapping[str, Any]]:
    made: onnx.ModelProto = SMALL[name].build()
    feeds = MODELS.narrowed(feeds_for(made), dtype)
    return _compiled(import_model(MODELS.converted(made, dtype))), feeds


def _compiled(graph: dovetail.Graph) -> Any:
    return dovetail.compile(graph, target="cuda", cache="off")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["encoder", "resnet"])
def test_the_roofline_is_that_of_the_report(name: str) -> None:
    program, feeds = _program(name, "f16")
    assert FLOORS.floor_of(program, feeds, H200) == pytest.approx(program.report.floor_seconds)


@pytest.mark.slow
def test_the_roofline_of_a_token_reads_the_filled_part_of_the_cache() -> None:
    of = DECODE.Gpt2Shape(layers=1, hidden=32, heads=4, inner=48, vocabulary=64, positions=32)
    graph = DECODE.step_graph(of)
    weights, feeds = DECODE.weights_of(graph), DECODE.feeds_of(of, 12)
    program = _compiled(graph)
    moved = DECODE.traffic(of, weights, 12)
    assert FLOORS.floor_of(program, feeds, H200, moved) == pytest.approx(H200.floor(Cost(0, moved, moved)))
    assert FLOORS.floor_of(program, feeds, H200) > FLOORS.floor_of(program, feeds, H200, moved)


class FakeRuntime:
    """onnxruntime with some execution providers, of which some do not start."""

    def __init__(self, available: Sequence[str], starts: bool = True) -> None:
        self.available, self.starts = available, starts
        self.bound: list[tuple[Any, ...]] = []
        self.asked: list[Any] = []

    def get_available_providers(self) -> Sequence[str]:
        return self.available

    def InferenceSession(self, model: bytes, providers: Sequence[tuple[str, Mapping[str, str]]]) -> Any:
        self.asked.append(providers)
        names = [name for name, _ in providers] if self.starts else ["CPUExecutionProvider"]

        def bind(*given: Any) -> None:
            self.bound.append(given)

        def run(binding: object) -> None:
            """It computes nothing."""

        bound = SimpleNamespace(bind_input=bind, bind_output=bind)
        return SimpleNamespace(get_providers=lambda: names, io_binding=lambda: bound, run_with_iobinding=run)


class FakeTorch:
    """The parts of torch that bind tensors."""

    int64, float16, bfloat16, float32 = "int64", "float16", "bfloat16", "float32"
    cuda = SimpleNamespace(synchronize=lambda: None)

    def empty(self, shape: Sequence[int], dtype: str, device: str = "cuda") -> Any:
        return SimpleNamespace(shape=shape, dtype=dtype, data_ptr=lambda: 64)


def _runtime(monkeypatch: pytest.MonkeyPatch, found: FakeRuntime) -> FakeRuntime:
    def imported(name: str) -> FakeRuntime:
        return found

    monkeypatch.setattr(ONNX.importlib, "import_module", imported)
    return found


def test_onnxruntime_without_a_gpu_is_no_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    _runtime(monkeypatch, FakeRuntime(["CPUExecutionProvider"]))
    assert ONNX.available() == {}

    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(ONNX.importlib, "import_module", absent)
    assert ONNX.available() == {}


def test_onnxruntime_runs_on_tensors_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _runtime(monkeypatch, FakeRuntime([ONNX.CUDA, ONNX.TENSORRT, "CPUExecutionProvider"]))
    assert list(ONNX.available()) == ["ort", "ort_graph", "tensorrt"]
    torch = FakeTorch()
    given = {"ids": torch.empty((1, 4), torch.int64), "past": torch.empty((1, 2), torch.bfloat16)}
    step = ONNX.step_of(torch, "ort_graph", b"model", "bf16", given, {"y": (1, 8)})
    step()
    kinds = {name: kind for name, _, _, kind, *_ in found.bound}
    types = onnx.TensorProto
    assert kinds == {"ids": types.INT64, "past": types.BFLOAT16, "y": types.BFLOAT16}
    assert found.asked == [[(ONNX.CUDA, {"enable_cuda_graph": "1"})]] and step.result.shape == (1, 8)


def test_onnxruntime_multiplies_f32_exactly_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _runtime(monkeypatch, FakeRuntime([ONNX.CUDA, ONNX.TENSORRT]))
    ONNX.step_of(FakeTorch(), "ort", b"model", "f32", {}, {"y": (1,)})
    assert found.asked == [[(ONNX.CUDA, {"use_tf32": "0"})]]
    peers = PEERS.Peers()
    peers.add("tensorrt", lambda: ONNX.step_of(FakeTorch(), "tensorrt", b"model", "f32", {}, {"y": (1,)}))
    assert peers.told == " tensorrt=failed(RuntimeError: it multiplies f32 in tf32)"


def test_an_execution_provider_that_does_not_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _runtime(monkeypatch, FakeRuntime([ONNX.CUDA], starts=False))
    peers = PEERS.Peers()
    peers.add("ort", lambda: ONNX.step_of(FakeTorch(), "ort", b"model", "f16", {}, {"y": (1,)}))
    assert "ort=failed(RuntimeError: onnxruntime could not start CUDAExecutionProvider)" in peers.told
