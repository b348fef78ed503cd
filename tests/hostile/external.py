"""External data that lies elsewhere, or is not what the model says."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
from onnx import TensorProto

from dovetail.ir.dtype import f32
from tests.frontends.onnx.build import model
from tests.hostile.case import collected, hostile, variants

SECRET = bytes(16)


def entries(*pairs: tuple[str, str], dims: tuple[int, ...] = (4,)) -> onnx.ModelProto:
    """A model with a tensor that says this of its bytes."""
    made = model(["Identity w -> y"], {"x": f32[1]}, ["y"])
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in pairs:
        tensor.external_data.add(key=key, value=value)
    made.graph.initializer.append(tensor)
    return made


def inside(folder: Path) -> Path:
    """The folder of the model, with a file outside of it."""
    (folder / "secret.bin").write_bytes(SECRET)
    home = folder / "home"
    home.mkdir()
    (home / "weights.bin").write_bytes(bytes(64))
    return home


def saved(home: Path, made: onnx.ModelProto) -> Path:
    path = home / "model.onnx"
    path.write_bytes(made.SerializeToString())
    return path


def located(folder: Path, location: str) -> Path:
    """A location that leads elsewhere:"""
    return saved(inside(folder), entries(("location", location)))


locations = variants(
    located,
    {
        "above": ("../secret.bin",),
        "above_and_below": ("below/../../secret.bin",),
        "above_behind_a_dot": ("./../secret.bin",),
        "above_with_backslashes": ("..\\secret.bin",),
        "absolute": ("/etc/hostname",),
        "absolute_twice": ("//etc/hostname",),
        "of_a_drive": ("C:\\Windows\\win.ini",),
        "of_a_share": ("\\\\server\\share\\file",),
        "with_a_scheme": ("file:///etc/hostname",),
        "of_a_stream": ("weights.bin:stream",),
        "nothing": ("",),
        "a_dot": (".",),
        "a_folder": ("./",),
        "dots_only": ("..",),
        "with_a_line": ("weights.bin\nmore",),
        "with_a_nul": ("weights.bin\0.txt",),
        "of_a_device": ("NUL",),
        "of_a_device_in_mixed_case": ("cOn.bin",),
        "of_a_home": ("~/secret.bin",),
        "of_another_case": ("WEIGHTS.BIN",),
        "with_a_dot_behind": ("weights.bin.",),
        "with_a_space_behind": ("weights.bin ",),
        "missing": ("gone.bin",),
        "below_a_file": ("weights.bin/more",),
        "of_megabytes": ("w" * (1 << 20),),
        "of_many_folders": ("d/" * 2000 + "w",),
    },
    "LoadError",
)


@hostile("LoadError", says="cannot be read")
def external_link(folder: Path) -> Path:
    """A link to a file outside."""
    home = inside(folder)
    (home / "link.bin").symlink_to(folder / "secret.bin")
    return saved(home, entries(("location", "link.bin")))


@hostile("LoadError", says="cannot be read")
def external_link_inside(folder: Path) -> Path:
    """A link to a file beside it: a link can be turned around while the model is read."""
    home = inside(folder)
    (home / "link.bin").symlink_to("weights.bin")
    return saved(home, entries(("location", "link.bin")))


@hostile("LoadError", says="cannot be read")
def external_link_to_a_folder(folder: Path) -> Path:
    """A folder on the way that is a link."""
    home = inside(folder)
    (home / "below").symlink_to(folder)
    return saved(home, entries(("location", "below/secret.bin")))


@hostile("LoadError", says="cannot be read")
def external_link_to_the_processes(folder: Path) -> Path:
    """A folder on the way that leads into the system."""
    home = inside(folder)
    (home / "below").symlink_to("/proc/self")
    return saved(home, entries(("location", "below/environ")))


@hostile("LoadError", says="hard link")
def external_hard_link(folder: Path) -> Path:
    """A hard link to a file outside."""
    home = inside(folder)
    os.link(folder / "secret.bin", home / "hard.bin")
    return saved(home, entries(("location", "hard.bin")))


@hostile("LoadError", says="not a file")
def external_pipe(folder: Path) -> Path:
    """A pipe that nobody writes to."""
    home = inside(folder)
    os.mkfifo(home / "pipe.bin")
    return saved(home, entries(("location", "pipe.bin")))


@hostile("LoadError")
def external_folder(folder: Path) -> Path:
    """A folder where a file should be."""
    home = inside(folder)
    (home / "below").mkdir()
    return saved(home, entries(("location", "below")))


def placed(folder: Path, offset: str, length: str) -> Path:
    """Bytes that are not in the file:"""
    return saved(inside(folder), entries(("location", "weights.bin"), ("offset", offset), ("length", length)))


places = variants(
    placed,
    {
        "behind_the_end": ("64", "16"),
        "over_the_end": ("56", "16"),
        "far_behind_the_end": (str(2**62), "16"),
        "wrapping": (str(2**64 - 8), "16"),
        "negative_offset": ("-16", "16"),
        "negative_length": ("0", "-1"),
        "length_of_more": ("0", "32"),
        "length_of_less": ("0", "8"),
        "length_of_nothing": ("0", "0"),
        "length_of_terabytes": ("0", str(2**45)),
        "offset_of_words": ("start", "16"),
        "offset_of_nothing": ("", "16"),
        "offset_with_a_sign": ("+0", "16"),
        "offset_with_an_underscore": ("1_6", "16"),
        "offset_with_spaces": (" 0", "16"),
        "offset_in_other_digits": ("\u0660", "16"),
        "offset_as_a_float": ("0.0", "16"),
        "offset_of_a_thousand_digits": ("9" * 1000, "16"),
    },
    "LoadError",
)


@hostile("LoadError", says="two of")
def external_location_twice(folder: Path) -> Path:
    """Two locations, one of which is harmless."""
    return saved(inside(folder), entries(("location", "weights.bin"), ("location", "../secret.bin")))


@hostile("LoadError", says="without a location")
def external_without_a_location(folder: Path) -> Path:
    """A tensor that says its bytes are elsewhere, and not where."""
    return saved(inside(folder), entries(("Location", "weights.bin")))


@hostile("LoadError", says="which has 64")
def external_terabytes(folder: Path) -> Path:
    """A tensor of terabytes in a file of 64 bytes."""
    return saved(inside(folder), entries(("location", "weights.bin"), dims=(2**20, 2**20)))


@hostile("LoadError", says="and")
def external_and_inside(folder: Path) -> Path:
    """A tensor in a file and in the model at once."""
    made = entries(("location", "weights.bin"))
    made.graph.initializer[0].raw_data = bytes(16)
    return saved(inside(folder), made)


@hostile("LoadError", says="times over")
def external_bytes_read_over_and_over(folder: Path) -> Path:
    """A thousand tensors that are all the same megabyte, in a body where each is copied."""
    home = inside(folder)
    (home / "large.bin").write_bytes(bytes(1 << 20))
    made = entries(("location", "large.bin"), dims=(1 << 18,))
    for i in range(1000):
        made.graph.initializer.append(made.graph.initializer[0])
        made.graph.initializer[-1].name = f"w{i}"
    return saved(home, made)


@hostile()
def external_file_of_terabytes(folder: Path) -> Path:
    """A tensor at the end of a terabyte that takes no room on the disk."""
    home = inside(folder)
    with (home / "sparse.bin").open("wb") as file:
        file.truncate(1 << 40)
    return saved(home, entries(("location", "sparse.bin"), ("offset", str((1 << 40) - 16)), ("length", "16")))


@hostile()
def external_below(folder: Path) -> Path:
    """A file in a folder below, as the standard allows."""
    home = inside(folder)
    (home / "below").mkdir()
    (home / "below" / "weights.bin").write_bytes(bytes(17))
    return saved(home, entries(("location", "./below/weights.bin"), ("offset", "1"), ("length", "16")))


CASES = collected(globals())
