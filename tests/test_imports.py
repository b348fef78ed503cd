"""What `import dovetail` loads: no room that compiling and running a graph do not need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import dovetail

LATER = (
    "dovetail.bench",
    "dovetail.cli",
    "dovetail.codegen.llvm.nvptx.ptx",
    "dovetail.egraph.egglog",
    "dovetail.models",
    "dovetail.report",
    "dovetail.targets.cpu",
    "dovetail.targets.cuda",
    "dovetail.targets.xla",
    "egglog",
    "llvmlite",
    "onnx",
    "onnxruntime",
    "safetensors",
    "scipy",
)
"""Rooms and packages that are imported on first use."""


def loaded_by(statement: str) -> list[str]:
    """The modules that a fresh process has loaded after a statement."""
    program = f"import sys\n{statement}\nprint(*sorted(sys.modules))"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.slow
def test_a_plain_import_loads_nothing_large() -> None:
    assert not {"numpy", "dovetail.ops", "dovetail.ir.value"} & set(loaded_by("import dovetail"))


@pytest.mark.slow
@pytest.mark.parametrize("statement", ["import dovetail", "import dovetail; dovetail.compile; dovetail.Program"])
def test_rooms_that_few_need_are_imported_on_first_use(statement: str) -> None:
    loaded = loaded_by(statement)
    assert not [module for module in loaded if any(f"{module}.".startswith(f"{room}.") for room in LATER)]


@pytest.mark.slow
def test_a_model_of_operators_with_rules_is_read_without_the_onnx_package(tmp_path: Path) -> None:
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])
    made = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "relu", [value], [made])
    path = tmp_path / "relu.onnx"
    path.write_bytes(onnx.helper.make_model(graph).SerializeToString())
    loaded = loaded_by(f"import dovetail; dovetail.load({str(path)!r})")
    assert "google.protobuf" in loaded and "onnx" not in loaded


@pytest.mark.slow
def test_messages_of_files_are_those_of_the_onnx_package() -> None:
    program = "from dovetail.frontends.onnx.file.proto import messages as m; import onnx"
    same = "print(onnx.ModelProto is m.ModelProto, onnx.onnx_ml_pb2.NodeProto is m.NodeProto)"
    done = subprocess.run([sys.executable, "-c", f"{program}\n{same}"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


def test_names_of_such_rooms_are_offered_all_the_same() -> None:
    assert {"Report", "models", "reports"} <= set(dir(dovetail))
    assert dovetail.Report.__name__ == "Report" and dovetail.models.__name__ == "dovetail.models"
    name = "analyse"
    with pytest.raises(AttributeError, match=name):
        getattr(dovetail, name)
