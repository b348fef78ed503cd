"""Programs that come from the cache are the programs that were put there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import dovetail
from dovetail import models, ops
from dovetail.bench.transformers import Encoder, encoder
from dovetail.dtypes import f32
from dovetail.ir.dtype import DType, bf16, f16
from dovetail.ir.graph import Graph
from dovetail.ir.leaf import input, param
from dovetail.ir.literal import Array
from dovetail.models import BertShape, LlamaShape, ResnetShape
from dovetail.progress import listening
from dovetail.runtime import build_id, cached
from dovetail.runtime.cached import KIND, program_key, why_not
from dovetail.runtime.request import make_request
from dovetail.runtime.source import graph_of, of_graph
from dovetail.settings import Settings
from dovetail.targets.cpu import jit
from dovetail.targets.runtime.building.store import CodeStore, store_of
from dovetail.targets.target import Executable

BERT = BertShape(layers=2, hidden=32, heads=4, inner=64, vocabulary=50, positions=16)
LLAMA = LlamaShape(layers=2, hidden=64, heads=4, kv_heads=2, inner=96, vocabulary=100)


def layer(name: str = "layer") -> Graph:
    x = input("x", f32["rows", 8])
    return Graph.of(ops.relu(x @ param("w", f32[8, 5]) + param("b", f32[5])), name=name)


def recurrence() -> Graph:
    """A loop, whose body is a compiled plan of its own."""
    x, h, w = input("x", f32["n", "b", 8]), input("h", f32["b", 8]), param("w", f32[8, 8])
    found = ops.scan(lambda h, x, w: (ops.tanh(x + h @ w), ops.reduce_sum(h * x, axes=(-1,))), [h], [x], [w])
    return Graph.of({"h": found.carries[0], "y": found.outputs[0]}, name="recurrence")


def halves(dtype: DType) -> Graph:
    """Weights that stay in two bytes."""
    w = ops.cast(param("w", dtype[24, 32]), dtype=f32)
    return Graph.of(input("x", f32["rows", 32]) @ ops.permute(w, order=(-1, -2)), name="halves")


GRAPHS: Mapping[str, Callable[[], Graph]] = {
    "layer": layer,
    "f16": lambda: halves(f16),
    "bf16": lambda: halves(bf16),
    "recurrence": recurrence,
    "bert": lambda: models.bert(BERT, batch=1, seq=8),
    "bert of any size": lambda: models.bert(BERT),
    "llama": lambda: models.llama(LLAMA, batch=1, seq=8),
    "llama step": lambda: models.llama_step(LLAMA, batch=1),
    "resnet": lambda: models.resnet(ResnetShape(blocks=(1, 1), width=8, classes=10), batch=1, image=16),
    "unet": lambda: models.unet(8, groups=4, batch=1, image=8),
}


def arrays(graph: Graph, seed: int = 0) -> tuple[dict[str, Array], dict[str, Array]]:
    """Parameters and inputs; a size that is not known is 3."""
    rng = np.random.default_rng(seed)

    def one(value: dovetail.Value) -> Array:
        shape = [s if isinstance(s, int) else 3 for s in value.shape]
        if value.dtype.kind in ("int", "uint"):
            return rng.integers(0, 2, shape).astype(value.dtype.numpy)
        return (rng.standard_normal(shape) * 0.1).astype(value.dtype.numpy)

    return (
        {str(v.attrs["name"]): one(v) for v in graph.parameters},
        {str(v.attrs["name"]): one(v) for v in graph.inputs},
    )


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "cache")


def store(folder: str) -> CodeStore:
    found = store_of(Settings(cache=folder))
    assert found is not None and not found.problem
    return found


def programs(folder: str) -> int:
    return store(folder).status().entries.get(KIND, 0)


@pytest.fixture
def never_lowers(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From when it is called on, to lower a graph is an error."""

    def forbid() -> None:
        def refuse(*_: Any) -> Any:
            raise AssertionError("it was to come from the cache")

        monkeypatch.setattr("dovetail.runtime.compile.lower", refuse)

    return forbid


@pytest.mark.parametrize("name", GRAPHS)
def test_a_program_comes_back(name: str, folder: str, never_lowers: Callable[[], None]) -> None:
    graph = GRAPHS[name]()
    params, feeds = arrays(graph)
    first = dovetail.compile(graph, params=params, cache=folder)
    expected = first.run(feeds)
    assert programs(folder) == 1
    never_lowers()
    again = dovetail.compile(GRAPHS[name](), params=params, cache=folder)
    assert again.plan == first.plan and again.graph.name == first.graph.name
    found = again.run(feeds)
    assert list(found) == list(expected)
    for output in found:
        np.testing.assert_array_equal(found[output], expected[output])


PROCESS = """
import sys
import numpy as np
import dovetail
from dovetail.runtime import build_id
build_id._FILES = "these"  # somebody may be editing them
path, folder, result = sys.argv[1:]
program = dovetail.compile(path, cache=folder)
feeds = {"input_ids": np.arange(8)[None] % 7, "attention_mask": np.ones((1, 8), np.int64)}
np.savez(result, **program.run(feeds))
from dovetail.targets.runtime.building.store import store_of
status = store_of(dovetail.programs.Settings(cache=folder)).status()
# The file and the program; the loop that runs tables may have been compiled before there was this folder.
assert status.hits >= 2 and status.misses <= 1, status
assert "onnx" not in sys.modules, "reading a file that is known needs no onnx"
print(program.report)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(encoder(Encoder(2, 32, 4, 64, vocabulary=500, positions=16), 1, 8).SerializeToString())
    return path


@pytest.mark.heavy
def test_another_process_gives_the_same_bits_without_reading_the_model(
    model: Path, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_id, "_FILES", "these")
    program = dovetail.compile(model, cache=folder)
    feeds = {"input_ids": np.arange(8)[None] % 7, "attention_mask": np.ones((1, 8), np.int64)}
    expected = program.run(feeds)
    CodeStore(Path(folder), 1 << 30).path.joinpath("counts").unlink(missing_ok=True)
    command = [sys.executable, "-c", PROCESS, str(model), folder, str(tmp_path / "found.npz")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    with np.load(tmp_path / "found.npz") as found:
        for output, array in expected.items():
            np.testing.assert_array_equal(found[output], array)
    assert done.stdout.strip() == str(program.report).strip()


@pytest.mark.heavy
def test_other_weights_are_other_results_of_the_same_program(
    model: Path, folder: str, never_lowers: Callable[[], None]
) -> None:
    feeds = {"input_ids": np.arange(8)[None] % 7, "attention_mask": np.ones((1, 8), np.int64)}
    before = dovetail.compile(model, cache=folder).run(feeds)["last_hidden_state"]
    proto = onnx.ModelProto.FromString(model.read_bytes())
    table = max(proto.graph.initializer, key=lambda t: len(t.raw_data))
    table.raw_data = (np.frombuffer(table.raw_data, np.float32) * 1.5).tobytes()
    model.write_bytes(proto.SerializeToString())
    fresh = dovetail.compile(model, cache="off").run(feeds)["last_hidden_state"]
    never_lowers()
    after = dovetail.compile(model, cache=folder).run(feeds)["last_hidden_state"]
    assert not np.array_equal(before, after)
    np.testing.assert_array_equal(fresh, after)


@pytest.mark.slow
def test_a_file_that_changed_has_no_report(model: Path, folder: str) -> None:
    dovetail.compile(model, cache=folder)
    program = dovetail.compile(model, cache=folder)
    model.write_bytes(encoder(Encoder(1, 32, 4, 64, vocabulary=50, positions=16), 1, 8).SerializeToString())
    with pytest.raises(dovetail.errors.LoadError, match="has changed since"):
        program.report  # noqa: B018


@pytest.mark.slow
def test_a_file_that_is_gone_has_no_report(model: Path, folder: str) -> None:
    dovetail.compile(model, cache=folder)
    program = dovetail.compile(model, cache=folder)
    model.unlink()
    with pytest.raises(dovetail.errors.LoadError, match="is gone since it was compiled"):
        program.report  # noqa: B018


def test_specialised_programs_come_back_too(folder: str, never_lowers: Callable[[], None]) -> None:
    params, _ = arrays(layer())
    first = dovetail.compile(layer(), params=params, cache=folder).specialize({"rows": 4})
    x = np.ones((4, 8), np.float32)
    expected = first(x=x)["y"]
    assert programs(folder) == 2
    never_lowers()
    again = dovetail.compile(layer(), params=params, cache=folder).specialize({"rows": 4})
    np.testing.assert_array_equal(again(x=x)["y"], expected)


@pytest.mark.slow
def test_a_report_of_a_program_from_the_cache_is_the_same(folder: str) -> None:
    first = dovetail.compile(layer(), cache=folder)
    again = dovetail.compile(layer(), cache=folder)
    assert str(again.report) == str(first.report) and again.report.fused == first.report.fused


@pytest.mark.slow
def test_gates_look_at_the_graph_every_time(folder: str) -> None:
    dovetail.compile(layer(), cache=folder)
    assert dovetail.compile(layer(), cache=folder, require=["linear"]).report.count("linear") == 1
    with pytest.raises(dovetail.errors.GateError):
        dovetail.compile(layer(), cache=folder, require=["attention"])


CHANGES: Mapping[str, dict[str, Any]] = {
    "option strict": {"strict": True},
    "option without": {"without": ["join"]},
    "option dispatch": {"dispatch": {"linear": "prefer_native"}},
    "option assume_sizes": {"assume_sizes": {"rows": 7}},
}


@pytest.mark.parametrize("part", CHANGES)
def test_an_option_that_decides_code_is_part_of_the_key(part: str, folder: str) -> None:
    source = of_graph(layer(), store(folder))
    base = program_key(source, make_request(cache=folder))
    other = program_key(source, make_request(cache=folder, **CHANGES[part]))
    assert {name for name in base.parts if base.parts[name] != other.parts[name]} == {part}
    assert base.name != other.name


def test_what_does_not_decide_code_is_not(folder: str) -> None:
    source = of_graph(layer(), store(folder))
    base = program_key(source, make_request(cache=folder))
    changes: list[dict[str, Any]] = [{"memory_limit": 1 << 30}, {"print_report": True}, {"verify_each_pass": True}]
    for free in changes:
        assert program_key(source, make_request(cache=folder, **free)) == base


def test_another_structure_or_name_is_another_program(folder: str) -> None:
    request = make_request(cache=folder)
    keys = {program_key(of_graph(g, store(folder)), request).name for g in (layer(), layer("other"), recurrence())}
    assert len(keys) == 3


def test_another_version_or_host_misses(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dovetail.compile(layer(), cache=folder)
    assert programs(folder) == 1
    monkeypatch.setattr(cached, "build_id", lambda: {**build_id.build_id(), "dovetail": "0.0.0"})
    dovetail.compile(layer(), cache=folder)
    assert programs(folder) == 2
    monkeypatch.undo()
    here = jit.toolchain()
    target = make_request().target
    assert target.serializer is not None
    elsewhere = replace(target.serializer, key_parts=lambda: {**here, "host": "another"})
    request = make_request(cache=folder)
    request = replace(request, target=replace(target, serializer=elsewhere))
    assert not store(folder).has(program_key(of_graph(layer(), store(folder)), request))
    assert store(folder).has(program_key(of_graph(layer(), store(folder)), make_request(cache=folder)))


@pytest.mark.slow
def test_an_entry_that_cannot_be_read_is_compiled_again(folder: str) -> None:
    params, feeds = arrays(layer())
    expected = dovetail.compile(layer(), params=params, cache=folder).run(feeds)["y"]
    key = program_key(of_graph(layer(), store(folder)), make_request(cache=folder))
    for broken in (b"", b"\x05", b"\x03" + bytes(7) + b"abc", bytes(64)):
        store(folder).put(key, broken)
        found = dovetail.compile(layer(), params=params, cache=folder).run(feeds)["y"]
        np.testing.assert_array_equal(found, expected)
    content = store(folder).get(key)
    assert content is not None and len(content) > 64


def test_what_is_not_kept_says_why(folder: str) -> None:
    @dovetail.fused_op
    def doubled(x: dovetail.Value) -> dovetail.Value:
        """Twice x."""
        return x + x

    assert why_not(make_request(cache=folder)) == ""
    assert why_not(make_request(cache="off")) == "the cache is switched off"
    assert "doubled" in why_not(make_request(cache=folder, ops=[doubled]))
    assert "reference stores nothing" in why_not(make_request(cache=folder, target="reference"))
    dovetail.compile(layer(), cache=folder, ops=[doubled])
    assert programs(folder) == 0


def test_without_a_folder_everything_works(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    params, feeds = arrays(layer())
    found = dovetail.compile(layer(), params=params, cache=str(tmp_path / "file" / "cache")).run(feeds)["y"]
    expected = dovetail.compile(layer(), params=params, cache="off").run(feeds)["y"]
    np.testing.assert_array_equal(found, expected)


def test_keys_are_words(folder: str) -> None:
    key = program_key(of_graph(layer(), store(folder)), make_request(cache=folder))
    assert json.loads(key.words) == {"kind": KIND, **key.parts}
    assert all(isinstance(part, str) for part in key.parts.values())


def of_open_images(name: str, nodes: list[onnx.NodeProto], weights: Mapping[str, Array]) -> onnx.ModelProto:
    """A network over images of any number, height and width; the last node's result is the output."""
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3, "height", "width"])
    y = onnx.helper.make_tensor_value_info(nodes[-1].output[0], onnx.TensorProto.FLOAT, None)
    initializers = [onnx.numpy_helper.from_array(array, key) for key, array in weights.items()]
    graph = onnx.helper.make_graph(nodes, name, [x], [y], initializers)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def filters(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32) * np.float32(0.1)


def detector() -> onnx.ModelProto:
    """Strides, gates by channel, depthwise filters, a map that is enlarged and joined, a transposed convolution."""
    node = onnx.helper.make_node
    nodes = [
        node("Conv", ["x", "stem"], ["a"], pads=[1] * 4, strides=[2, 2]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "deep"], ["c"], pads=[1] * 4, strides=[2, 2], group=16),
        node("Conv", ["c", "point"], ["d"]),
        node("HardSwish", ["d"], ["e"]),
        node("GlobalAveragePool", ["e"], ["mean"]),
        node("Sigmoid", ["mean"], ["gate"]),
        node("Mul", ["e", "gate"], ["f"]),
        node("Conv", ["f", "narrow"], ["g"], pads=[1] * 4),
        node("ConvTranspose", ["g", "up"], ["h"], strides=[2, 2]),
        node("Resize", ["f", "", "twice"], ["i"], mode="nearest"),
        node("Concat", ["h", "i"], ["j"], axis=1),
        node("Conv", ["j", "last"], ["k"], pads=[1] * 4),
        node("Sigmoid", ["k"], ["y"]),
    ]
    weights = {"stem": filters(16, 3, 3, 3), "deep": filters(16, 1, 3, 3), "point": filters(24, 16, 1, 1)}
    weights |= {"narrow": filters(8, 24, 3, 3), "up": filters(8, 8, 2, 2), "last": filters(1, 32, 3, 3)}
    return of_open_images("detector", nodes, weights | {"twice": np.array([1, 1, 2, 2], np.float32)})


def recognizer() -> onnx.ModelProto:
    """Strides that differ by axis, pools, and a sequence along the width."""
    node = onnx.helper.make_node
    nodes = [
        node("Conv", ["x", "stem"], ["a"], pads=[1] * 4, strides=[2, 1]),
        node("Relu", ["a"], ["b"]),
        node("MaxPool", ["b"], ["c"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
        node("Conv", ["c", "wide"], ["d"], pads=[2] * 4, strides=[2, 1]),
        node("Relu", ["d"], ["e"]),
        node("AveragePool", ["e"], ["f"], kernel_shape=[1, 2], strides=[1, 2]),
        node("ReduceMean", ["f"], ["g"], axes=[2], keepdims=0),
        node("Transpose", ["g"], ["h"], perm=[0, 2, 1]),
        node("MatMul", ["h", "head"], ["i"]),
        node("Softmax", ["i"], ["y"], axis=-1),
    ]
    weights = {"stem": filters(12, 3, 3, 3), "wide": filters(20, 12, 5, 5), "head": filters(20, 30)}
    return of_open_images("recognizer", nodes, weights)


def pyramid() -> onnx.ModelProto:
    """Halved again and again: each layer's size is a division of the one before."""
    node = onnx.helper.make_node
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, Array] = {}
    channels, last = 3, "x"
    for depth in range(5):
        weights[f"w{depth}"] = filters(16, channels, 3, 3)
        nodes += [
            node("Conv", [last, f"w{depth}"], [f"c{depth}"], pads=[1] * 4, strides=[2, 2]),
            node("Sigmoid", [f"c{depth}"], [f"s{depth}"]),
            node("GlobalAveragePool", [f"s{depth}"], [f"g{depth}"]),
            node("Mul", [f"s{depth}", f"g{depth}"], [f"m{depth}"]),
        ]
        channels, last = 16, f"m{depth}"
    return of_open_images("pyramid", nodes, weights)


EXPORTED = Path(__file__).parents[1] / "data" / "exporters"
NETWORKS: Mapping[str, Callable[[], bytes]] = {
    "detector": lambda: detector().SerializeToString(),
    "recognizer": lambda: recognizer().SerializeToString(),
    "pyramid": lambda: pyramid().SerializeToString(),
    **{
        name: (EXPORTED / f"{name}.onnx").read_bytes
        for name in ("lstm__dynamo18__dynamic", "unet__ts14__dynamic", "qwen3__dynamo18__sdpa__dynamic")
    },
}
"""Models as in the zoo, with open sizes."""

IN_A_PROCESS = """
import sys
from pathlib import Path
import numpy as np
import dovetail
from dovetail.runtime import build_id, compile
from dovetail.targets.runtime.building.store import store_of
build_id._FILES = "these"  # somebody may be editing them
def refuse(*_, **__):
    raise AssertionError("it was to come from the cache")
files, folder, turn = sys.argv[1:]
if turn == "second":
    compile.lower = refuse
for path in sorted(Path(files).glob("*.onnx")):
    program = dovetail.compile(path, cache=folder)
    with np.load(path.with_suffix(".npz")) as feeds:
        results = program.run(dict(feeds))
    if turn == "first":
        np.savez(path.with_suffix(".results.npz"), **results)
    with np.load(path.with_suffix(".results.npz")) as expected:
        for output, array in results.items():
            np.testing.assert_array_equal(array, expected[output], err_msg=path.name)
status = store_of(dovetail.programs.Settings(cache=folder)).status()
assert not status.unread, status
assert turn == "first" or not status.misses, status
"""


@pytest.mark.slow
def test_what_is_kept_is_read_by_a_second_process(folder: str, tmp_path: Path) -> None:
    """Of models with open sizes, nothing is compiled again: plans, tiles with long sizes, and all code come back."""
    for name, content in NETWORKS.items():
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(content())
        arrays: dict[str, Any] = arrays_of_inputs(graph_of(path))
        np.savez(path.with_suffix(".npz"), **arrays)
    for turn in ("first", "second"):
        command = [sys.executable, "-c", IN_A_PROCESS, str(tmp_path), folder, turn]
        done = subprocess.run(command, capture_output=True, text=True)
        assert not done.returncode, f"the {turn} process: {done.stderr}"
        assert programs(folder) == len(NETWORKS)
        CodeStore(Path(folder), 1 << 30).path.joinpath("counts").unlink(missing_ok=True)


def arrays_of_inputs(graph: Graph) -> dict[str, Array]:
    """Inputs of a model with open sizes, which are 40 for images and 3 elsewhere."""
    rng = np.random.default_rng(1)
    sizes = {"height": 40, "width": 56}
    found: dict[str, Array] = {}
    for value in graph.inputs:
        shape = [s if isinstance(s, int) else sizes.get(str(s), 3) for s in value.shape]
        integral = value.dtype.kind in ("int", "uint", "bool")
        array = rng.integers(0, 2, shape) if integral else rng.standard_normal(shape)
        found[str(value.attrs["name"])] = array.astype(value.dtype.numpy)
    return found


def test_a_program_that_cannot_be_read_is_told(folder: str) -> None:
    """Nobody has to measure that every process compiles: the store says so, and whoever listens hears it."""
    heard: list[str] = []

    class Listener:
        def began(self, phase: str, *, still: bool) -> None: ...
        def reached(self, item: str, number: int, of: int, done: float) -> None: ...
        def ended(self) -> None: ...
        def noticed(self, words: str) -> None:
            heard.append(words)

    dovetail.compile(layer(), cache=folder)
    key = program_key(of_graph(layer(), store(folder)), make_request(cache=folder))
    whole = store(folder).get(key)
    assert whole is not None
    store(folder).put(key, whole[:-9] + b"x" * 9 if len(whole) < 64 else whole[:64])
    with listening(Listener()):
        dovetail.compile(layer(), cache=folder)
    assert len(heard) == 1 and "cannot be read back" in heard[0]
    assert list(store(folder).status().unread) == [key.name]
    with listening(Listener()):
        dovetail.compile(layer(), cache=folder)
    assert len(heard) == 1 and not store(folder).status().unread, "it was written again, and read"


def test_a_program_that_cannot_be_kept_is_told(folder: str) -> None:
    small = CodeStore(Path(folder), 2048)
    request, source = make_request(cache=folder), of_graph(layer(), small)
    key = program_key(source, request)
    plan = dovetail.compile(layer(), cache="off").plan
    made = cached.CachedProgram(plan, request.target.compile(plan, request.settings))
    cached.keep(made, key, request, small)
    assert not small.has(key) and "bytes" in small.refusal(key)
    serializer = request.target.serializer
    assert serializer is not None

    def no_bytes(_: Executable) -> None:
        return None

    nothing = replace(request, target=replace(request.target, serializer=replace(serializer, to_bytes=no_bytes)))
    cached.keep(made, key, nothing, small)
    assert "cannot be stored" in small.refusal(key)
