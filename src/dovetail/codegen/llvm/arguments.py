"""A kernel's arguments and its workspace, declared once by name.

A declaration is a dataclass of handles: `Ptr` fields are tensors, `I64` fields are sizes, `Region` fields are parts of
the worker's scratch memory. The declaration orders the words of a launch, checks that every size was given, lays the
regions out, and loads all of it under its names in the kernel. Nothing is paired by position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache, cached_property
from typing import Generic, TypeVar, get_type_hints

from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.handles import I64, NULL, Handle, Ptr
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size

WORD = 8
"""Bytes of an argument."""
ALIGNMENT = 64
"""Regions of a workspace start at a cache line."""


class Region(Ptr):
    """A part of the workspace: its offset is an argument, and its address is what the kernel sees."""

    __slots__ = ()


A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class More:
    """Arguments that depend on the step, by name: they follow those of the declaration."""

    pointers: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()


@cache
def _kinds(declaration: type[object]) -> Mapping[str, type[Handle]]:
    """The kind of each field. Type hints are evaluated as text, which takes longer than to lay a kernel out."""
    hints = get_type_hints(declaration)
    return {f.name: hints[f.name] for f in fields(declaration)}  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class Arguments(Generic[A]):
    """The arguments of a kernel: a dataclass of handles, less the fields that this form of the kernel does without."""

    kind: type[A]
    without: frozenset[str] = frozenset()
    """Fields that are not passed; they load as null and 0."""
    head: int = 0
    """Bytes at the start of the workspace that the kernel keeps for itself."""
    more: More = More()
    """Arguments besides those of the dataclass; `load_more` loads them."""

    def _named(self, kind: type[Handle]) -> tuple[str, ...]:
        return tuple([n for n, each in _kinds(self.kind).items() if each is kind and n not in self.without])

    @cached_property
    def pointers(self) -> tuple[str, ...]:
        """The tensors, in the order of their words."""
        return (*self._named(Ptr), *self.more.pointers)

    @cached_property
    def sizes(self) -> tuple[str, ...]:
        """The sizes, in the order of their words."""
        return (*self._named(I64), *self.more.sizes)

    @cached_property
    def regions(self) -> tuple[str, ...]:
        """The parts of the workspace, in the order of their offsets' words."""
        return (*self._named(Region), *self.more.regions)

    def laid_out(self, sizes: Mapping[str, Size], regions: Mapping[str, Size] | None = None) -> Laid:
        """The words after the pointers, and the bytes of workspace; sizes are given by name, regions in bytes."""
        regions = regions or {}
        _check("sizes", self.sizes, sizes)
        _check("regions", self.regions, regions)
        offset: Size = self.head
        offsets: list[Size] = []
        for name in self.regions:
            offsets.append(offset)
            offset = offset + _aligned(regions[name])
        return Laid((*[sizes[name] for name in self.sizes], *offsets), offset)

    def load(self, t: Builder, words: Ptr, scratch: Ptr) -> A:
        """Load every argument under its name, as the first instructions of a kernel."""
        handles: dict[str, Handle] = {}
        besides = {*self.more.pointers, *self.more.sizes, *self.more.regions}
        for index, name in enumerate((*self.pointers, *self.sizes, *self.regions)):
            if name in besides:
                continue
            kind = "ptr" if index < len(self.pointers) else "i64"
            at = t.ptr_add(words, WORD * index)
            loaded = f"%{name}.at" if name in self.regions else f"%{name}"
            t.emit(f"{loaded} = load {kind}, ptr {at}, align 8")
            if name in self.regions:
                handles[name] = Region(t.ptr_add(scratch, I64(loaded)))
            else:
                handles[name] = _kinds(self.kind)[name](loaded)
        absent = {name: NULL if issubclass(_kinds(self.kind)[name], Ptr) else I64("0") for name in self.without}
        return self.kind(**handles, **absent)

    def load_more(self, t: Builder, words: Ptr, scratch: Ptr) -> NamedArguments:
        """Load the arguments besides those of the dataclass; regions are among the pointers."""
        at = {name: t.ptr_add(words, WORD * i) for i, name in enumerate((*self.pointers, *self.sizes, *self.regions))}
        pointers = {name: t.load_ptr(at[name]) for name in self.more.pointers}
        regions = {name: t.ptr_add(scratch, t.load_i64(at[name])) for name in self.more.regions}
        return NamedArguments(pointers | regions, {name: t.load_i64(at[name]) for name in self.more.sizes})


@dataclass(frozen=True, slots=True)
class Laid:
    """Sizes and offsets in the order of a kernel's words, and how many bytes of workspace a worker needs."""

    sizes: tuple[Size, ...]
    scratch: Size


@dataclass(frozen=True, slots=True)
class NamedArguments:
    """The arguments of a kernel whose tensors and sizes depend on the step: each under its name."""

    pointers: Mapping[str, Ptr]
    sizes: Mapping[str, I64]

    @staticmethod
    def load(t: Builder, words: Ptr, pointers: Sequence[str], sizes: Sequence[str]) -> NamedArguments:
        """Load every argument, as the first instructions of a kernel."""
        tensors = {name: t.load_ptr(t.ptr_add(words, WORD * i)) for i, name in enumerate(pointers)}
        numbers = {name: t.load_i64(t.ptr_add(words, WORD * i)) for i, name in enumerate(sizes, len(pointers))}
        return NamedArguments(tensors, numbers)


def store_words(t: Builder, words: Sequence[Ptr | I64], onto: Ptr) -> None:
    """Write the words of a function that is called with them, such as an epilogue."""
    for index, x in enumerate(words):
        t.emit(f"store {x.type} {x}, ptr {t.ptr_add(onto, WORD * index)}, align 8")


def words_bytes(count: int) -> int:
    """Bytes of that many words, whole cache lines."""
    return -(-WORD * count // ALIGNMENT) * ALIGNMENT


def _check(what: str, expected: tuple[str, ...], sizes: Mapping[str, Size]) -> None:
    missing, unknown = set(expected) - set(sizes), set(sizes) - set(expected)
    assert not missing and not unknown, f"{what}: missing {sorted(missing)}, unknown {sorted(unknown)}"


def _aligned(size: Size) -> Size:
    return -(-size // ALIGNMENT) * ALIGNMENT


__all__ = ["Arguments", "Laid", "More", "NamedArguments", "Region", "store_words", "words_bytes"]
