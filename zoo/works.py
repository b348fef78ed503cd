"""The real models as workloads for `dovetail bench`: `python -m zoo.works FOLDER` writes them and lists their folders.

Each gets a folder with model.onnx, inputs.npz and, where inputs are fixed, fixed.npz. One that cannot be fetched is
named on stderr and left out.
"""

from __future__ import annotations

import shutil
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.bench.case import FIXED, INPUTS, MODEL, save_arrays
from zoo import minilm
from zoo.fetch import FetchError, fetch
from zoo.inputs import tokens
from zoo.models import models

Array = NDArray[Any]


def written(home: Path) -> Iterator[Path]:
    """The folder of each model, as it is written."""
    for model in models():
        try:
            file = fetch(model.pin) / model.file
        except (FetchError, OSError, zipfile.BadZipFile) as error:
            print(f"{model.name} is left out: {error}", file=sys.stderr)
            continue
        fixed = {name: np.asarray(value) for name, value in model.fixed.items()}
        yield _write(home / "real" / model.name.replace(" ", "_"), file, model.feeds[0], fixed)
    yield from _minilm(home)


def _minilm(home: Path) -> Iterator[Path]:
    try:
        folder = fetch("minilm")
    except (FetchError, OSError, zipfile.BadZipFile) as error:
        print(f"minilm is left out: {error}", file=sys.stderr)
        return
    feeds = tokens(1, (24, 17), 30522)
    yield _write(home / "real" / "minilm_onnx", minilm.written(folder), feeds, {})
    export = minilm.exported(folder)
    if isinstance(export, Path):
        yield _write(home / "real" / "minilm_exported", export, feeds, {})


def _write(folder: Path, model: Path, feeds: Mapping[str, Array], fixed: Mapping[str, Array]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(model, folder / MODEL)
    save_arrays(folder / INPUTS, feeds)
    if fixed:
        save_arrays(folder / FIXED, fixed)
    return folder


if __name__ == "__main__":
    for written_to in written(Path(sys.argv[1])):
        print(written_to)
