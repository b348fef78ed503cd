"""A workload in files, so that every peer reads the same ones in a process of its own."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from dovetail.bench.workloads import MODULES, SHAPES, WORKLOADS, Shape, Workload, feeds_for, module_feeds
from dovetail.dataclass import dataclass
from dovetail.errors import LoadError, OptionError
from dovetail.ir.literal import Array
from dovetail.nearest import suggestion

MODEL, INPUTS, FIXED, WEIGHTS, SHAPE = "model.onnx", "inputs.npz", "fixed.npz", "weights.npz", "shape.json"
NETWORK = "network.txt"


@dataclass(frozen=True, slots=True)
class Case:
    """An ONNX file, and a folder with its inputs, with what is fixed for all runs, and with its weights by name.

    The case of a torch module has a file with its name in the place of the ONNX file.
    """

    name: str
    model: Path
    folder: Path

    def feeds(self) -> dict[str, Array]:
        """Return all inputs by name, those that are fixed too."""
        return {**self.fixed(), **load_arrays(self.folder / INPUTS)}

    def fixed(self) -> dict[str, Array]:
        """Inputs whose value decides the structure of the model."""
        path = self.folder / FIXED
        return load_arrays(path) if path.is_file() else {}

    def weights(self) -> dict[str, Array]:
        return load_arrays(self.folder / WEIGHTS)

    @property
    def network(self) -> str:
        """The name of the torch module; empty for an ONNX file."""
        return self.model.read_text(encoding="utf-8") if self.model.name == NETWORK else ""

    @property
    def shape(self) -> Shape | None:
        """The sizes of the network, where it is written for peers that do not read ONNX."""
        path = self.folder / SHAPE
        if not path.is_file():
            return None
        sizes: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        shape_type: Any = SHAPES[sizes.pop("shape")]
        return shape_type(**{name: value if isinstance(value, int) else tuple(value) for name, value in sizes.items()})


def case_of(name: str, sizes: Mapping[str, int], folder: Path) -> Case:
    """Return the case that a command line names: a built-in workload, an ONNX file, or a folder with model.onnx and
    inputs.npz.
    """
    if name in WORKLOADS:
        return written(name, WORKLOADS[name], folder)
    if name in MODULES:
        return _module_case(name, folder)
    path = Path(name)
    if (path / MODEL).is_file() and (path / INPUTS).is_file():
        here = path.resolve()
        return Case(f"{here.parent.name}/{here.name}", here / MODEL, here)
    if path.suffix == ".onnx" and path.is_file():
        # The files next to the model, such as large weights, are not needed for its signature.
        library: Any = onnx
        save_arrays(folder / INPUTS, feeds_for(library.load(str(path), load_external_data=False), sizes))
        return Case(path.stem, path.resolve(), folder)
    named = (*WORKLOADS, *MODULES)
    listed = f"there are {', '.join(named)}; else name an ONNX file, or a folder with {MODEL} and {INPUTS}"
    hint = "check the path" if path.suffix == ".onnx" else suggestion(name, named, listed)
    raise OptionError(f"there is no workload {name!r}", hint=hint)


def written(name: str, workload: Workload, folder: Path) -> Case:
    """Write a built-in workload into a folder."""
    model = workload.build()
    (folder / MODEL).write_bytes(model.SerializeToString())
    save_arrays(folder / INPUTS, feeds_for(model))
    save_arrays(folder / WEIGHTS, {t.name: numpy_helper.to_array(t) for t in model.graph.initializer})
    shape = {"shape": workload.shape.__class__.__name__, **asdict(workload.shape)}
    (folder / SHAPE).write_text(json.dumps(shape), encoding="utf-8")
    return Case(name, folder / MODEL, folder)


def _module_case(name: str, folder: Path) -> Case:
    (folder / NETWORK).write_text(name, encoding="utf-8")
    save_arrays(folder / INPUTS, module_feeds(name))
    return Case(name, folder / NETWORK, folder)


def save_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Arrays in one .npz file, whatever their names are."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)


def load_arrays(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise LoadError(f"{path.name} cannot be read as arrays: {error}", hint="write it with numpy.savez") from error
