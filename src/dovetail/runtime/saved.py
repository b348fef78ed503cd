"""Programs in files: machine code, plan and packed weights, which load by memory map, without LLVM and onnx.

Numbers are little-endian. A file is
    head      magic (8 bytes), version of the format (u32), length of what is said (u64), digest of it (16)
    said      JSON: the version of dovetail, the target, the parts and where the pieces are
    pieces    each at a multiple of 64 bytes: the plan as text, of each part what is said of it and its machine code,
              and arrays, which parts share where they are equal
Plan and code are checked by their digests. A file holds machine code: load those alone that you trust.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from dovetail.errors import DovetailError, LoadError, OptionError, UnsupportedError
from dovetail.ir.collector import collector_paused
from dovetail.ir.dtype import BY_NAME, of_numpy
from dovetail.ir.literal import Array
from dovetail.ir.serial_table import aligned, digest
from dovetail.ir.whole_file import write_whole
from dovetail.plan.plan import Plan
from dovetail.plan.text import parse_plan, print_plan
from dovetail.runtime.load import SAVED_PROGRAM as MAGIC
from dovetail.runtime.vocabulary import vocabulary
from dovetail.sanitize import sanitize
from dovetail.settings import Settings
from dovetail.targets import shipping_of
from dovetail.targets.part import Part
from dovetail.targets.runtime.building.store import store_of
from dovetail.targets.runtime.building.weights import Weights
from dovetail.targets.target import Runner
from dovetail.version import __version__

VERSION = 1
SUFFIX = ".dovetail"
_HEAD = struct.Struct("<8sIQ16s")
_PAGE = 4096


class _Pieces:
    """Pieces of a file in their order; equal ones are written once."""

    def __init__(self) -> None:
        self.raw: list[memoryview | bytes] = []
        self.said: list[list[Any]] = []
        """Of each its offset from the first, its length and its digest."""
        self._known: dict[tuple[int, bytes], int] = {}
        self._end = 0

    def add(self, raw: memoryview | bytes) -> int:
        """The index of a piece."""
        length = len(raw)
        mark = digest(raw)
        if (length, mark) in self._known:
            return self._known[length, mark]
        self._end = aligned(self._end)
        self.said.append([self._end, length, mark.hex()])
        self.raw.append(raw)
        self._end += length
        return self._known.setdefault((length, mark), len(self.raw) - 1)

    def add_array(self, array: Array) -> list[Any]:
        """An array as the index of its piece, its dtype and its shape."""
        dtype = of_numpy(array.dtype)
        if dtype is None:
            raise UnsupportedError(f"an array of {array.dtype} cannot be saved", hint="compile the model where it runs")
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return [self.add(flat.data), dtype.name, list(array.shape)]

    def of_file(self, head: bytes) -> Iterator[memoryview | bytes]:
        """The file from front to back."""
        yield head
        yield bytes(-len(head) % _PAGE)
        end = 0
        for (start, length, _), raw in zip(self.said, self.raw, strict=True):
            yield bytes(start - end)
            yield raw
            end = start + length


def save_program(
    path: str | os.PathLike[str], plan: Plan, params: Mapping[str, Array], isas: Sequence[str], settings: Settings
) -> None:
    """Write a program with a part for each set of instructions; the file is whole, or it is not there."""
    writing = shipping_of(plan.target, writing=True)
    if not isas:
        raise OptionError("no set of instructions to save a program for", hint='use "native", or "avx2+avx512"')
    # Where values come from is left out, and weights, which each part has as its kernels read them.
    bare = replace(plan, graph=replace(plan.graph, origins={}, params={}))
    text = print_plan(bare)
    try:
        parse_plan(text, vocabulary())
    except DovetailError as error:
        raise UnsupportedError(
            f"the plan of {plan.graph.name} cannot be read back: {error.message}",
            hint="programs with ops of your own are compiled where they run",
        ) from error
    pieces = _Pieces()
    said: dict[str, Any] = {
        "dovetail": __version__,
        "target": plan.target,
        "name": plan.graph.name,
        "plan": pieces.add(text.encode("utf-8", "surrogatepass")),
        "params": [[name, list(params[name].shape)] for name in params],
        "parts": [],
    }
    for part in writing.parts(plan, params, isas, store_of(settings)):
        arrays = [pieces.add_array(array) for array in part.arrays]
        told = json.dumps({**part.said, "arrays": arrays}, separators=(",", ":")).encode()
        said["parts"].append(
            {
                "isa": part.isa,
                "needs": list(part.needs),
                "rank": part.rank,
                "said": pieces.add(told),
                "code": pieces.add(part.code),
            }
        )
    said["pieces"] = pieces.said
    words = json.dumps(said, separators=(",", ":")).encode()
    write_whole(path, pieces.of_file(_HEAD.pack(MAGIC, VERSION, len(words), digest(words)) + words))


class SavedFile:
    """A file with a program, mapped into memory."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.where = sanitize(str(path))
        target = Path(path)
        try:
            if not target.is_file():
                found = "is not a file" if target.exists() else "does not exist"
                raise LoadError(f"{self.where} {found}", hint="check the path")
            with open(target, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                self._content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")
        except DovetailError:
            raise
        except (OSError, ValueError) as error:
            raise LoadError(f"{self.where} cannot be read: {error}", hint="check the path") from error
        self.said = self._read_head()
        self._start = self._first()
        for start, length, _ in self.said.get("pieces", ()):
            if self._start + start + length > len(self._content):
                raise self._damaged(f"has {len(self._content):,} bytes and is cut off")

    def _read_head(self) -> dict[str, Any]:
        if bytes(self._content[: len(MAGIC)]) != MAGIC:
            raise LoadError(
                f"{self.where} is no saved program",
                hint="write one with program.save(path) or dovetail compile; dovetail.load reads graphs",
            )
        if len(self._content) < _HEAD.size:
            raise self._damaged("is cut off in its head")
        _, version, length, expected = _HEAD.unpack_from(self._content)
        if version != VERSION:
            raise self._other(f"format {version} of saved programs", f"format {VERSION}")
        words = self._content[_HEAD.size : _HEAD.size + length]
        if len(words) != length or digest(words) != expected:
            raise self._damaged("is cut off or changed in its head")
        said = json.loads(bytes(words))
        if said["dovetail"] != __version__:
            raise self._other(f"dovetail {said['dovetail']}", f"dovetail {__version__}")
        return said

    def _first(self) -> int:
        _, _, length, _ = _HEAD.unpack_from(self._content)
        return -(-(_HEAD.size + length) // _PAGE) * _PAGE

    def piece(self, index: int, *, check: bool = True) -> memoryview:
        """The bytes of a piece; what runs or is parsed is checked."""
        start, length, mark = self.said["pieces"][index]
        raw = self._content[self._start + start : self._start + start + length]
        if check and digest(raw).hex() != mark:
            raise self._damaged("does not match its checksums")
        return raw

    def array(self, said: Sequence[Any]) -> Array:
        """An array in the file, mapped and read-only."""
        index, dtype, shape = said
        return np.frombuffer(self.piece(index, check=False), BY_NAME[dtype].numpy).reshape(shape)

    def part(self, name: str) -> Part:
        """The part of a set of instructions."""
        (told,) = [one for one in self.said["parts"] if one["isa"] == name]
        said = json.loads(bytes(self.piece(told["said"])))
        arrays = tuple([self.array(one) for one in said["arrays"]])
        return Part(name, tuple(told["needs"]), told["rank"], said, bytes(self.piece(told["code"])), arrays)

    def check(self) -> None:
        """Compare every byte with the checksums; loading leaves out the weights."""
        for index in range(len(self.said["pieces"])):
            self.piece(index)

    def _damaged(self, how: str) -> LoadError:
        return LoadError(f"{self.where} {how}", hint="copy the file again, or save the program again")

    def _other(self, made_by: str, here: str) -> LoadError:
        return LoadError(
            f"{self.where} was saved by {made_by}, and this is {here}",
            hint="install the version that saved it, or compile the model again",
        )


def load_parts(path: str | os.PathLike[str], settings: Settings) -> tuple[Plan, Runner]:
    """The plan of a file, with stand-ins for its parameters, and what runs it."""
    file = SavedFile(path)
    try:
        reading = shipping_of(file.said["target"], writing=False)
        offered = {str(p["isa"]): (tuple(p["needs"]), int(p["rank"])) for p in file.said["parts"]}
        name = reading.chosen(offered, file.where)
        with collector_paused():
            text = str(file.piece(file.said["plan"]), "utf-8", "surrogatepass")
            plan = replace(parse_plan(text, vocabulary()), memory_limit=settings.memory_limit)
            params = _stand_ins(plan, dict(file.said["params"]))
            plan = replace(plan, graph=replace(plan.graph, params=params))
            return plan, reading.runner_of(plan, file.part(name), params, settings)
    except LoadError:
        raise
    except (DovetailError, ValueError, LookupError, TypeError, AttributeError, struct.error) as error:
        raise LoadError(
            f"{file.where} does not hold together: {error}", hint="save the program again with this dovetail"
        ) from error


def _stand_ins(plan: Plan, shapes: Mapping[str, Sequence[int]]) -> Weights:
    """Arrays of the shapes of the parameters, which take no memory: what kernels read is packed."""
    found: dict[str, Array] = {}
    for value in plan.graph.parameters:
        name = str(value.attrs["name"])
        nothing = np.zeros((), value.dtype.numpy)
        nothing.flags.writeable = False  # what nobody can write to is not copied
        found[name] = np.broadcast_to(nothing, cast(Any, tuple(shapes[name])))
    return Weights(found)


__all__ = ["MAGIC", "SUFFIX", "SavedFile", "load_parts", "save_program"]
