"""`dovetail run`: arrays in, outputs out, beside onnxruntime; and what is said of arguments that do not fit."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from dovetail import Program
from dovetail.cli import run as command
from dovetail.cli.arrays import named_arrays, read_array, save_arrays
from dovetail.cli.run import difference
from dovetail.dtypes import f32, i64
from dovetail.errors import LoadError
from tests.cli.commands import LAYER, SMALL, Shell
from tests.frontends.onnx.build import model


@pytest.fixture
def sums(tmp_path: Path) -> str:
    """A model that adds a row to each row."""
    path = tmp_path / "sums.onnx"
    path.write_bytes(model(["Add x b -> y"], {"x": f32["n", 3], "b": f32[3]}, ["y"]).SerializeToString())
    return str(path)


@pytest.fixture
def reshaped(tmp_path: Path) -> str:
    """A model whose second input decides a shape."""
    path = tmp_path / "reshaped.onnx"
    made = model(["Reshape x s -> y"], {"x": f32["n", 4], "s": i64[2]}, ["y"])
    path.write_bytes(made.SerializeToString())
    return str(path)


def saved(path: Path, array: object) -> str:
    np.save(path, np.asarray(array))
    return f"@{path}"


def test_outputs_are_printed_compared_and_written(shell: Shell, sums: str, tmp_path: Path) -> None:
    x = saved(tmp_path / "x.npy", np.arange(6, dtype=np.float32).reshape(2, 3))
    out = tmp_path / "out" / "deep"
    said = shell("run", sums, "--input", f"x={x}", "--input", "b=1,2,3", "--check", "onnxruntime", "--output", str(out))
    assert said.code == 0, said.err
    assert "y: f32[2, 3] from 1 to 8" in said.out and "y: as onnxruntime: 0 apart" in said.out
    np.testing.assert_array_equal(np.load(out / "y.npy"), [[1, 3, 5], [4, 6, 8]])


def test_outputs_as_data_and_in_an_archive(shell: Shell, sums: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((1, 3), np.float32), b=np.ones(3, np.float32))
    inputs = [f"{name}=@{tmp_path / 'in.npz'}:{name}" for name in "xb"]
    path = tmp_path / "out.npz"
    said = shell("run", sums, "--input", inputs[0], "--input", inputs[1], "--json", "--output", str(path))
    assert said.data["outputs"] == [{"name": "y", "type": "f32[1, 3]", "shape": [1, 3], "first": [2.0, 2.0, 2.0]}]
    with np.load(path) as held:
        np.testing.assert_array_equal(held["y"], [[2, 2, 2]])


@pytest.mark.slow
def test_inputs_are_made_up_only_if_asked_for(shell: Shell, sums: str) -> None:
    assert "--random" in shell.fails(1, "run", sums)
    assert "--size n=1" in shell.fails(1, "run", sums, "--random", "0")
    first, again, other = (shell("run", sums, "--random", seed, "--size", "n=2").out for seed in "001")
    drop = "run in"
    assert first.split(drop)[0] == again.split(drop)[0] != other.split(drop)[0]


@pytest.mark.slow
def test_built_in_models_and_text_run_with_made_up_weights(shell: Shell, tmp_path: Path) -> None:
    assert "logits: f32[1, 8, 100]" in shell("run", SMALL["llama"], "--random", "0").out
    path = tmp_path / "layer.txt"
    path.write_text(LAYER)
    assert "y: f32[5, 3]" in shell("run", str(path), "--random", "0", "--size", "rows=5").out


def test_an_input_that_decides_the_structure_is_fixed(shell: Shell, reshaped: str) -> None:
    said = shell.fails(2, "run", reshaped, "--random", "0", "--size", "n=2")
    assert "--fixed s=@file.npy" in said
    fixed = ["--fixed", "s=-1,2", "--size", "n=2"]
    ran = shell("run", reshaped, "--random", "0", *fixed, "--check", "onnxruntime")
    assert ran.code == 0 and "y: f32[4, 2]" in ran.out, ran.err
    assert "f32[4, 2]" in shell("show", reshaped, "--stage", "hir", *fixed).out


class Wrong:
    """A peer whose results are off."""

    def __init__(self, path: str) -> None:
        self.dtypes: dict[str, np.dtype[np.float32]] = {}

    def run(self, feeds: object) -> dict[str, object]:
        return {"y": np.full((2, 3), 1e3, np.float32)}


CHECKED = ["--random", "0", "--size", "n=2", "--check", "onnxruntime"]


def test_a_peer_that_is_off_is_named_and_does_not_fail_us(
    shell: Shell, sums: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "Peer", Wrong)
    said = shell("run", sums, *CHECKED)
    assert said.code == 0, said.err
    assert "y: NOT as onnxruntime:" in said.out and "onnxruntime is off" in said.out
    assert "from float64: dovetail" in said.out and "the model amplifies rounding" in said.out
    (entry,) = shell("run", sums, *CHECKED, "--json").data["check"]
    judge = entry["judged"]
    assert entry["holds"] and judge["right"] == ["dovetail"]
    assert judge["distances"]["dovetail"] < 1e-6 < 1 < judge["distances"]["onnxruntime"]


def test_results_that_are_off_have_their_own_code(shell: Shell, sums: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Program.run

    def off(self: Program, inputs: Any) -> dict[str, Any]:
        return {name: array * np.float32(1.01) for name, array in right(self, inputs).items()}

    monkeypatch.setattr(Program, "run", off)
    said = shell("run", sums, *CHECKED)
    assert said.code == 5 and "; dovetail is off" in said.out and "outputs differ from onnxruntime:" in said.err
    assert "from float64: dovetail 0.01, onnxruntime" in said.err
    assert shell("run", sums, *CHECKED, "--tolerance", "0.1").code == 0
    monkeypatch.setattr(command, "Peer", Wrong)
    said = shell("run", sums, *CHECKED)
    assert said.code == 5 and "dovetail and onnxruntime are off" in said.out


def test_a_tolerance_of_the_users_own_is_not_widened(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A difference of nearly equal numbers amplifies rounding; both runtimes are right, unless bits are asked for."""
    path = tmp_path / "cancels.onnx"
    nodes = ["MatMul x w -> p", "Exp p -> e", "Add e b -> s", "Sub s b -> y"]
    w = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    made = model(nodes, {"x": f32[4, 64], "b": f32[3]}, ["y"], initializers={"w": w / np.float32(64)})
    path.write_bytes(made.SerializeToString())
    b = saved(tmp_path / "b.npy", np.full(3, 3e5, np.float32))

    class Exact(Wrong):
        def run(self, feeds: Any) -> dict[str, object]:
            return {"y": np.exp(np.asarray(feeds["x"], np.float64) @ (w / 64)).astype(np.float32)}

    monkeypatch.setattr(command, "Peer", Exact)
    line = ["run", str(path), "--random", "0", "--input", f"b={b}", "--check", "onnxruntime"]
    said = shell(*line)
    assert said.code == 0 and "both are right within rounding" in said.out, said.out + said.err
    assert shell(*line, "--tolerance", "1e-6").code == 5
    assert shell("verify", str(path), "--input", f"b={b}").code == 0
    assert shell("verify", str(path), "--input", f"b={b}", "--tolerance", "1e-6").code == 5
    said = shell("bisect", str(path), "--input", f"b={b}")
    assert said.code == 0 and "the model amplifies rounding" in said.out


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--input", "x"], "--input x"),
        (["--input", "=1"], "--input =1"),
        (["--input", "z=1"], "there is no input 'z'"),
        (["--input", "x=1", "--input", "x=2"], "gives x twice"),
        (["--input", "x=one"], "is no list of numbers"),
        (["--input", "x=" + "9" * 5000], "is no list of numbers"),
        (["--input", "b=1,2"], "[2]"),
        (["--input", "b=@missing.npy"], "missing.npy does not exist"),
        (["--input", "b=@a\0b"], "does not exist"),
        (["--input", "b=@."], "not a file"),
        (["--fixed", "z=1"], "neither an input nor a size 'z'"),
        (["--fixed", "b=1,2"], "[2]"),
        (["--fixed", "b=one"], "is no list of numbers"),
        (["--size", "m=2"], "neither an input nor a size 'm'"),
        (["--check", "other"], "other"),
        (["--check", "onnxruntime", "--tolerance", "nan"], "--tolerance nan"),
        (["--random", "-1"], "--random -1"),
        (["--target", "cuda"], "cuda"),
    ],
)
def test_arguments_that_do_not_fit(shell: Shell, sums: str, options: list[str], found: str) -> None:
    said = shell("run", sums, "--random", "0", *(["--size", "n=2"] if "--size" not in options else []), *options)
    assert said.code in (1, 2) and not said.out and found in said.err and "Traceback" not in said.err
    assert said.err.startswith("dovetail: ") and "hint: " in said.err


def test_an_input_that_no_memory_holds(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "vast.onnx"
    path.write_bytes(model(["Relu x -> y"], {"x": f32[2**40, 2**20]}, ["y"]).SerializeToString())
    assert "bytes, and" in shell.fails(1, "run", str(path), "--random", "0")


def test_a_check_is_for_onnx_files(shell: Shell) -> None:
    assert "no ONNX model" in shell.fails(1, "run", SMALL["bert"], "--random", "0", "--check", "onnxruntime")
    assert "no ONNX model" in shell.fails(1, "explain", SMALL["bert"], "--fixed", "x=1")


def test_a_model_that_onnxruntime_refuses_is_said_so(shell: Shell, tmp_path: Path) -> None:
    made = model(["Add x b -> y"], {"x": f32[3], "b": f32[3]}, ["y"])
    made.graph.output[0].type.CopyFrom(onnx.helper.make_tensor_type_proto(onnx.TensorProto.INT64, [3]))
    path = tmp_path / "odd.onnx"
    path.write_bytes(made.SerializeToString())
    said = shell("run", str(path), "--random", "0", "--check", "onnxruntime")
    assert said.code in (1, 5) and "Traceback" not in said.err


def junk(path: Path, kind: str) -> None:
    stream = io.BytesIO()
    match kind:
        case "pickled":
            np.save(stream, np.array([{}], dtype=object), allow_pickle=True)
            path.write_bytes(stream.getvalue())
        case "promising":
            np.save(stream, np.zeros((0, 3)))
            path.write_bytes(stream.getvalue().replace(b"(0, 3), }    ", b"(9000000000000, 3)}"))
        case "cut":
            np.save(stream, np.zeros(100))
            path.write_bytes(stream.getvalue()[:-9])
        case _:
            path.write_bytes(kind.encode())


@pytest.mark.parametrize("kind", ["pickled", "promising", "cut", "", "junk", "PK\x03\x04"])
def test_files_that_hold_no_array_are_refused(kind: str, tmp_path: Path) -> None:
    for name in ("x.npy", "x.npz"):
        junk(tmp_path / name, kind)
        with pytest.raises(LoadError, match=r"x\.np"):
            read_array(str(tmp_path / name))


def test_an_archive_is_asked_for_one_array(tmp_path: Path) -> None:
    path = tmp_path / "two.npz"
    np.savez(path, a=np.ones(1), b=np.zeros(2))
    assert read_array(f"{path}:b").shape == (2,)
    for asked in (str(path), f"{path}:c"):
        with pytest.raises(LoadError, match=r"two\.npz has"):
            read_array(asked)
    np.savez(path, only=np.ones(3))
    assert read_array(str(path)).shape == (3,)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", b"junk")
    with pytest.raises(LoadError):
        read_array(f"{path}:a")


def test_numbers_are_scalars_or_lists() -> None:
    given = named_arrays("--input", ["a=3", "b=3,", "c=1,2.5", "d=true,false", "e=-1"])
    assert given == {"a": 3, "b": [3], "c": [1, 2.5], "d": [True, False], "e": -1}


def test_names_of_outputs_stay_in_the_folder(tmp_path: Path) -> None:
    save_arrays(
        str(tmp_path / "out"), {"../../evil": np.ones(1), "a/b": np.ones(1), "a_b": np.ones(1), "..": np.ones(1)}
    )
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "_.._evil.npy",
        "a_b.npy",
        "a_b_2.npy",
        "output.npy",
    ]
    with pytest.raises(LoadError, match="cannot be written"):
        save_arrays(str(tmp_path / "out" / "a_b.npy" / "more"), {"x": np.ones(1)})


def test_differences_are_relative_to_the_largest() -> None:
    x = np.array([1.0, 100.0], np.float32)
    assert difference(x, x) == 0
    assert difference(x + np.array([0, 1], np.float32), x) == pytest.approx(0.01)
    assert difference(np.array([np.nan, 1.0]), np.array([np.nan, 1.0])) == 0
    assert difference(np.array([np.inf]), np.array([1.0])) == float("inf")
    assert difference(x, x[:1]) == difference(x, x.astype(np.float64)) == float("inf")
    assert difference(np.array([], np.float32), np.array([], np.float32)) == 0
