"""Programs in files: what they compute, where they load, and what is said of files that do not fit."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import Builder, Graph, Program, compile, input, library, load, ops, param
from dovetail.dtypes import f32, i64
from dovetail.errors import BindError, LoadError, OptionError, UnsupportedError
from dovetail.ir.serial_table import digest
from dovetail.runtime import saved
from dovetail.runtime.random_inputs import random_inputs
from dovetail.targets.cpu import cores

EXPORTED = Path(__file__).parents[1] / "data" / "exporters"
HEAD = struct.Struct("<8sIQ16s")
pytestmark = pytest.mark.skipif(
    cores.is_arm() or not sys.platform.startswith("linux"), reason="this system saves no programs: x86-64 Linux does"
)


def layers() -> Graph:
    """Two layers over rows of any number, with weights."""
    made, rng = Builder("layers"), np.random.default_rng(0)
    with made.recording():
        x = made.input("x", f32["rows", 48])
        w = made.param("w", f32[48, 64], rng.normal(size=(48, 64)).astype(np.float32))
        v = made.param("v", f32[64, 24], rng.normal(size=(64, 24)).astype(np.float32))
        b = made.param("b", f32[24], rng.normal(size=24).astype(np.float32))
        made.output("y", library.softmax(ops.relu(x @ w) @ v + b, axis=-1))
    return made.graph()


def rows(count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(count).normal(size=(count, 48)).astype(np.float32)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved program with code of this machine, and of others."""
    path = tmp_path_factory.mktemp("saved") / "layers.dovetail"
    compile(layers()).save(path, isa="native+avx2+sse")
    return path


def test_a_loaded_program_computes_the_same_bits_at_any_size(file: Path) -> None:
    program, loaded = compile(layers()), Program.load(file)
    assert loaded.inputs == program.inputs and loaded.outputs == program.outputs
    for count in (1, 3, 64, 200):
        np.testing.assert_array_equal(loaded.run({"x": rows(count)})["y"], program.run({"x": rows(count)})["y"])
    alone = Program.load(file, threads=1)
    np.testing.assert_array_equal(alone(rows(33))["y"], program(rows(33))["y"])


ALONE = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("llvmlite", "onnx", "onnxruntime"):
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, Blocked())
import numpy as np
from dovetail import Program

program = Program.load(sys.argv[1])
feeds = dict(np.load(sys.argv[2]))
np.savez(sys.argv[3], **program.run(feeds))
assert not {"llvmlite", "onnx", "onnxruntime"} & sys.modules.keys()
"""


def run_alone(path: Path, feeds: dict[str, Any]) -> dict[str, Any]:
    """The outputs of a saved program in a process without LLVM and onnx."""
    given, found = path.with_suffix(".in.npz"), path.with_suffix(".out.npz")
    np.savez(given, **feeds)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(ALONE), str(path), str(given), str(found)],
        capture_output=True,
        text=True,
        env={**os.environ, "DOVETAIL_CACHE": "off"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    with np.load(found) as held:
        return dict(held)


@pytest.mark.slow
def test_it_runs_where_llvm_and_onnx_are_not_installed(file: Path) -> None:
    expected = compile(layers()).run({"x": rows(17)})
    np.testing.assert_array_equal(run_alone(file, {"x": rows(17)})["y"], expected["y"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "lstm__ts17__static",
        "mobilenet__ts14__dynamic",
        "llama_fp16__ts17__eager__dynamic",
        "gpt2-hf4__ts14__eager__dynamic",
    ],
)
def test_models_of_many_kinds_run_alone(name: str, tmp_path: Path) -> None:
    """A loop, convolutions, 16-bit floats, and attention over sizes that are open."""
    graph = load(EXPORTED / f"{name}.onnx")
    drawn = random_inputs(graph)
    program = compile(graph)
    expected = program.run(program.undonated(drawn.feeds))
    program.save(tmp_path / "model.dovetail")
    found = run_alone(tmp_path / "model.dovetail", dict(drawn.feeds))
    for output, array in expected.items():
        np.testing.assert_array_equal(found[output], array)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["sse", "avx2"])
def test_code_of_other_instructions_is_right(isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not cores.x86_features().issuperset(["avx2", "fma"]):
        pytest.skip("this processor has no AVX2")
    path = tmp_path / "model.dovetail"
    compile(layers()).save(path, isa=isa)
    x = rows(40).astype(np.float64)
    w, v, b = (np.asarray(layers().params[name], np.float64) for name in "wvb")
    z = np.maximum(x @ w, 0) @ v + b
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    expected = e / e.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(Program.load(path)(rows(40))["y"], expected, rtol=2e-4, atol=1e-6)


def test_the_processor_chooses_and_what_it_lacks_is_said(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[str] = []
    part = saved.SavedFile.part

    def noted(self: saved.SavedFile, name: str) -> Any:
        chosen.append(name)
        return part(self, name)

    monkeypatch.setattr(saved.SavedFile, "part", noted)
    Program.load(file)
    every = cores.x86_features()
    old = frozenset(every - {word for word in every if word.startswith(("avx", "amx", "fma"))})
    monkeypatch.setattr("dovetail.targets.cpu.shipped.x86_features", lambda: old)
    Program.load(file)
    assert chosen == ["native", "sse"]
    path = file.with_name("new.dovetail")
    compile(layers()).save(path, isa=["avx512", "avx2"])
    with pytest.raises(LoadError, match="this processor cannot run") as said:
        Program.load(path)
    assert "avx2 needs avx2, fma; avx512 needs avx512bw" in said.value.message and "--isa sse" in said.value.hint
    monkeypatch.setattr("dovetail.targets.cpu.shipped.is_arm", lambda: True)
    with pytest.raises(LoadError, match="is for x86-64 Linux"):
        Program.load(file)


def rewritten(content: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """A file with another head; where pieces begin does not move."""
    magic, version, length, _ = HEAD.unpack_from(content)
    said = json.loads(content[HEAD.size : HEAD.size + length])
    change(said)
    words = json.dumps(said).encode()
    start = -(-(HEAD.size + length) // 4096) * 4096
    head = HEAD.pack(magic, version, len(words), digest(words)) + words
    return head + bytes(-len(head) % 4096) + content[start:]


def test_files_that_do_not_fit_end_in_one_error(file: Path, tmp_path: Path) -> None:
    content = file.read_bytes()
    at = content.index(b"plan cpu {")
    damaged: list[tuple[bytes, str]] = [
        (b"", "is no saved program"),
        (b"GGUF" + content[4:], "is no saved program"),
        (content[:20], "is cut off in its head"),
        (content[:200], "is cut off or changed in its head"),
        (content[:-64], "is cut off"),
        (content[:60] + b"?" + content[61:], "is cut off or changed in its head"),
        (content[:at] + b"?" + content[at + 1 :], "does not match its checksums"),
        (content[:8] + b"\x07" + content[9:], "saved by format 7 of saved programs, and this is format 1"),
        (rewritten(content, lambda said: said.update(dovetail="9.9")), "saved by dovetail 9.9, and this is dovetail"),
        (rewritten(content, lambda said: said.update(target="cuda")), "does not hold together"),
        (rewritten(content, lambda said: said.pop("params")), "does not hold together"),
        (rewritten(content, lambda said: said.pop("parts")), "does not hold together"),
        (rewritten(content, lambda said: said.pop("pieces")), "does not hold together"),
        (rewritten(content, lambda said: said["pieces"][0].__setitem__(1, -5)), "does not"),
    ]
    path = tmp_path / "bad.dovetail"
    for raw, message in damaged:
        path.write_bytes(raw)
        with pytest.raises(LoadError, match=message) as said:
            Program.load(path)
        assert "bad.dovetail" in str(said.value) and said.value.hint
    with pytest.raises(LoadError, match="does not exist"):
        Program.load(tmp_path / "none.dovetail")
    with pytest.raises(LoadError, match="is not a file"):
        Program.load(tmp_path)


def test_weights_that_were_changed_are_found_by_a_check(file: Path, tmp_path: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-5] ^= 255
    path = tmp_path / "changed.dovetail"
    path.write_bytes(content)
    saved.SavedFile(file).check()
    with pytest.raises(LoadError, match="does not match its checksums"):
        saved.SavedFile(path).check()


def test_what_a_file_does_not_have_is_refused(file: Path, tmp_path: Path) -> None:
    loaded = Program.load(file)
    asked: list[Callable[[], object]] = [
        lambda: loaded.params,
        lambda: loaded.report,
        lambda: loaded.bind({}),
        lambda: loaded.save(tmp_path / "again.dovetail"),
        lambda: loaded.specialize({"rows": 3}),
    ]
    for ask in asked:
        with pytest.raises(BindError) as said:
            ask()
        assert said.value.hint
    with pytest.raises(BindError, match="x"):
        loaded.run({"x": np.zeros((3, 47), np.float32)})


def test_what_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "no.dovetail"
    y = input("x", f32[4]) * param("w", f32[4])
    with pytest.raises(BindError, match="w"):
        compile(Graph.of(y)).save(path)
    program = compile(Graph.of(y), params={"w": np.ones(4, np.float32)})
    with pytest.raises(OptionError, match="no set of instructions 'avx3'") as said:
        program.save(path, isa="avx3")
    assert "avx2" in said.value.hint
    with pytest.raises(OptionError, match="no set of instructions"):
        program.save(path, isa=[])
    with pytest.raises(UnsupportedError, match="reference"):
        compile(Graph.of(input("x", f32[4]) + 1.0), target="reference").save(path)
    with pytest.raises(LoadError, match="cannot be written"):
        program.save(tmp_path / "nowhere" / "x.dovetail")
    assert not path.exists()


def test_a_graph_is_not_loaded_from_it(file: Path) -> None:
    with pytest.raises(LoadError, match="is a saved program and no graph") as said:
        load(file)
    assert "Program.load" in said.value.hint


def test_equal_weights_of_two_parts_are_written_once(tmp_path: Path) -> None:
    table = np.random.default_rng(0).normal(size=(4096, 64)).astype(np.float32)
    graph = Graph.of(ops.gather(param("table", f32[4096, 64]), input("ids", i64["n"]), axis=0))
    program = compile(graph, params={"table": table})
    program.save(tmp_path / "one.dovetail", isa="sse")
    program.save(tmp_path / "two.dovetail", isa="sse+avx2")
    one, two = ((tmp_path / name).stat().st_size for name in ("one.dovetail", "two.dovetail"))
    assert table.nbytes < one < two < one + table.nbytes // 4
