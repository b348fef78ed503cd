"""Files that are no models, or only begin like one."""

from __future__ import annotations

import gzip
import io
import os
import zipfile
from pathlib import Path

from tests.hostile.case import collected, hostile, variants
from tests.hostile.wire import HEAD, count, field, model, number

MANY = 1_000_000


@hostile("LoadError", says="is empty")
def empty_file(folder: Path) -> bytes:
    """A file of no bytes."""
    return b""


@hostile("LoadError", says="is not a file")
def folder_in_place_of_a_file(folder: Path) -> Path:
    """A folder that is named like a model."""
    path = folder / "model.onnx"
    path.mkdir()
    return path


@hostile("LoadError", says="does not exist")
def missing_file(folder: Path) -> Path:
    """A path where nothing is."""
    return folder / "missing.onnx"


@hostile("LoadError", says="does not exist")
def link_to_nothing(folder: Path) -> Path:
    """A link whose target is gone."""
    path = folder / "model.onnx"
    path.symlink_to(folder / "gone.onnx")
    return path


@hostile("LoadError")
def link_to_itself(folder: Path) -> Path:
    """A link that leads to itself."""
    path = folder / "model.onnx"
    path.symlink_to(path)
    return path


@hostile("LoadError", says="is not a file")
def pipe_in_place_of_a_file(folder: Path) -> Path:
    """A pipe: opening it would wait for ever."""
    path = folder / "model.onnx"
    os.mkfifo(path)
    return path


@hostile("LoadError", says="is not a file")
def device_in_place_of_a_file(folder: Path) -> Path:
    """A link to a device that has no end."""
    path = folder / "model.onnx"
    path.symlink_to("/dev/zero")
    return path


@hostile("LoadError")
def path_that_is_too_long(folder: Path) -> Path:
    """A name longer than any file has."""
    return folder / ("x" * 5000 + ".onnx")


@hostile("LoadError")
def path_with_a_nul(folder: Path) -> Path:
    """A NUL in the path."""
    return folder / "model\0.onnx"


@hostile("LoadError")
def text_file(folder: Path) -> bytes:
    """Words where a model should be."""
    return b"This is not a model, though its name says so.\n" * 100


@hostile("LoadError", says="zip archive")
def zip_bomb(folder: Path) -> bytes:
    """An archive of a gigabyte of zeros that is named like a model."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("model.onnx", "w") as inside:
        for _ in range(16):
            inside.write(bytes(1 << 20))
    return held.getvalue()


@hostile("LoadError", says="gzip")
def gzip_bomb(folder: Path) -> bytes:
    """Compressed zeros that are named like a model."""
    return gzip.compress(bytes(1 << 24))


def other_format(folder: Path, start: bytes) -> bytes:
    """A file of another format:"""
    return start + bytes(range(256)) * 8


other_formats = variants(
    other_format,
    {
        "elf": (b"\x7fELF\x02\x01\x01",),
        "pdf": (b"%PDF-1.7\n",),
        "png": (b"\x89PNG\r\n\x1a\n",),
        "numpy": (b"\x93NUMPY\x01\x00",),
        "pickle": (b"\x80\x04\x95",),
        "json": (b'{"graph": {"node": []}}',),
        "html": (b"<!DOCTYPE html><html>404</html>",),
        "git_lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",),
        "saved_graph": (b"DOVETAIL\x01\x00\x00\x00",),
        "safetensors": (b"\x10\x00\x00\x00\x00\x00\x00\x00{}",),
    },
    "LoadError",
)


@hostile("LoadError")
def zeros_without_end(folder: Path) -> Path:
    """A gigabyte of zeros that takes no room on the disk."""
    path = folder / "model.onnx"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    return path


@hostile("LoadError", says="external data")
def larger_than_any_model(folder: Path) -> Path:
    """Three gigabytes, more than a message can be."""
    path = folder / "model.onnx"
    with path.open("wb") as file:
        file.write(HEAD)
        file.truncate(3 << 30)
    return path


@hostile("LoadError")
def huge_tensor_that_ends_early(folder: Path) -> Path:
    """A gigabyte of zeros in a field that says it has two."""
    path = folder / "model.onnx"
    with path.open("wb") as file:
        file.write(HEAD + number(7 << 3 | 2) + number(2 << 30))
        file.truncate(1 << 30)
    return path


def truncated(folder: Path, length: int) -> bytes:
    """A model that is cut off after"""
    whole = model(field(1, field(1, b"x") + field(2, b"y") + field(4, b"Relu")) + field(2, b"g" * 40))
    return whole[:length]


cut = variants(truncated, {f"{n}_bytes": (n,) for n in (1, 5, 14, 20, 31)}, "LoadError")


@hostile("LoadError", says="are left")
def length_beyond_the_end(folder: Path) -> bytes:
    """A graph that claims eight exabytes."""
    return HEAD + number(7 << 3 | 2) + number(2**63 - 1) + b"x"


@hostile("LoadError")
def number_of_too_many_bytes(folder: Path) -> bytes:
    """A length that goes on for ever."""
    return HEAD + number(7 << 3 | 2) + b"\xff" * 64


@hostile("LoadError", says="more than ten bytes")
def value_of_too_many_bytes(folder: Path) -> bytes:
    """A version number of twenty million bytes."""
    return b"\x08" + b"\xff" * 20_000_000 + b"\x01"


@hostile("LoadError")
def field_of_number_zero(folder: Path) -> bytes:
    """A field that no message has."""
    return HEAD + b"\x02\x00"


@hostile("LoadError")
def groups_inside_each_other(folder: Path) -> bytes:
    """A hundred thousand groups, a form that nobody writes."""
    return HEAD + number(99 << 3 | 3) * 100_000


@hostile("LoadError")
def message_that_runs_over_its_end(folder: Path) -> bytes:
    """A node whose name ends behind the node."""
    return model(field(1, b"\x1a\x20abc") + field(2, b"g" * 40))


@hostile("LoadError", says="unfold")
def million_empty_nodes(folder: Path) -> bytes:
    """Two megabytes that unfold to two hundred: nodes without anything in them."""
    return model(field(1, b"") * MANY)


@hostile("LoadError", says="unfold")
def million_empty_attributes(folder: Path) -> bytes:
    """A node with a million empty attributes."""
    return model(field(1, field(4, b"Relu") + field(5, b"") * MANY))


@hostile("LoadError", says="unfold")
def million_empty_graphs(folder: Path) -> bytes:
    """An attribute with a million empty bodies."""
    return model(field(1, field(5, field(11, b"") * MANY)))


@hostile("LoadError", says="unfold")
def million_empty_initializers(folder: Path) -> bytes:
    """A million tensors of nothing."""
    return model(field(5, b"") * MANY)


@hostile("LoadError", says="unfold")
def many_empty_functions(folder: Path) -> bytes:
    """Half a million functions of nothing."""
    return HEAD + field(25, b"") * (MANY // 2)


@hostile("LoadError", says="unfold")
def million_nodes_in_small_pieces(folder: Path) -> bytes:
    """Half a million attributes, each with one body, none longer than four bytes."""
    return model(field(1, field(5, field(11, b"")) * (MANY // 2)))


@hostile("LoadError", says="fields")
def millions_of_inputs(folder: Path) -> bytes:
    """A node that reads four million values without a name."""
    return model(field(1, field(4, b"Sum") + field(1, b"") * 4 * MANY))


@hostile("LoadError", says="no graph")
def model_without_a_graph(folder: Path) -> bytes:
    """Versions, and nothing else."""
    return HEAD


@hostile("LoadError", says="IR version")
def model_without_a_version(folder: Path) -> bytes:
    """A graph without an IR version."""
    return field(7, field(2, b"g"))


def ir_version(folder: Path, version: int) -> bytes:
    """A model of IR version"""
    return count(1, version) + field(8, count(2, 17)) + field(7, field(2, b"g"))


versions = variants(
    ir_version, {"zero": (0,), "two": (2,), "fifteen": (15,), "far_beyond": (2**40,)}, "LoadError", "UnsupportedError"
)


@hostile("LoadError", says="deep")
def bodies_in_each_other(folder: Path) -> bytes:
    """Two hundred bodies, each inside the one before."""
    inner = b""
    for _ in range(200):
        inner = field(1, field(4, b"If") + field(5, field(1, b"then_branch") + field(6, inner)))
    return model(inner)


@hostile("LoadError", says="not UTF-8")
def operator_that_is_not_utf8(folder: Path) -> bytes:
    """An operator of bytes that are no text."""
    return model(field(1, field(4, b"\xff\xfe") + field(2, b"y")))


@hostile("LoadError", says="not UTF-8")
def value_that_is_not_utf8(folder: Path) -> bytes:
    """A value whose name is no text."""
    return model(field(1, field(4, b"Relu") + field(2, b"\xc3\x28")))


@hostile("LoadError", says="not UTF-8")
def node_that_is_not_utf8(folder: Path) -> bytes:
    """A node whose name is no text."""
    return model(field(1, field(4, b"Relu") + field(3, b"\xed\xa0\x80") + field(2, b"y")))


@hostile("LoadError")
def input_that_is_not_utf8(folder: Path) -> bytes:
    """An input whose name is no text."""
    return model(field(11, field(1, b"\xff")))


@hostile("LoadError", "UnsupportedError")
def attribute_that_is_not_utf8(folder: Path) -> bytes:
    """An attribute whose name is no text."""
    return model(field(1, field(4, b"Relu") + field(2, b"y") + field(5, field(1, b"\xff"))))


@hostile("LoadError", says="not UTF-8")
def graph_that_is_not_utf8(folder: Path) -> bytes:
    """A graph whose name is no text."""
    return model(field(2, b"\xff"))


def _typed(name: bytes, dim: bytes) -> bytes:
    """An input or output of floats with one size."""
    return field(1, name) + field(2, field(1, count(1, 1) + field(2, field(1, dim))))


@hostile()
def size_that_is_not_utf8(folder: Path) -> bytes:
    """A symbolic size whose name is no text: it is a name all the same."""
    node = field(1, field(1, b"x") + field(2, b"y") + field(4, b"Relu"))
    return model(node + field(11, _typed(b"x", field(2, b"n\xff"))) + field(12, _typed(b"y", b"")))


@hostile()
def notes_that_are_not_utf8(folder: Path) -> bytes:
    """A node whose description and notes are no text: nothing depends on them."""
    noted = field(6, b"\xff") + field(9, field(1, b"pkg.torch.onnx.stack_trace") + field(2, b"\xff"))
    node = field(1, field(1, b"x") + field(2, b"y") + field(4, b"Relu") + noted)
    return model(node + field(11, _typed(b"x", count(1, 4))) + field(12, _typed(b"y", count(1, 4))))


CASES = collected(globals())
