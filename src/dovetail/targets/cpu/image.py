"""Object files linked into one image of machine code, and an image in memory: neither needs LLVM or a linker.

Kernels are position-dependent code with absolute addresses of 64 bits (the large code model), which a loader adds the
base of the image to. Sections of data stand before code, each at its alignment.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.errors import LoadError, UnsupportedError

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_X86_64 = 62
_SYMBOLS, _RELOCATIONS, _NO_BITS = 2, 4, 8
_ALLOCATED = 2
_ABSOLUTE, _RELATIVE_32, _CALL_32, _RELATIVE_64 = 1, 2, 4, 24
_UNDEFINED, _SECTION_SYMBOL, _LOCAL = 0, 3, 0


@dataclass(frozen=True, slots=True)
class Image:
    """Machine code whose places are known up to the address that it is loaded at."""

    code: bytes
    functions: Mapping[str, int]
    """Where each function begins."""
    addresses: tuple[int, ...] = ()
    """Words that the address of the image is added to."""
    imports: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """Words that get the address of a function of the C library."""

    def as_dict(self) -> dict[str, Any]:
        """All but the code as plain data."""
        return {name: part for name, part in asdict(self).items() if name != "code"}

    @staticmethod
    def of_dict(code: bytes, said: Mapping[str, Any]) -> Image:
        """The image that `as_dict` described."""
        imports = {str(name): tuple(map(int, places)) for name, places in said["imports"].items()}
        return Image(code, dict(said["functions"]), tuple(map(int, said["addresses"])), imports)


class _Object:
    """An object file: its sections, its symbols and what is to be relocated."""

    def __init__(self, name: str, content: bytes) -> None:
        self.name = name
        self.content = content
        if content[:4] != b"\x7fELF" or struct.unpack_from("<H", content, 18)[0] != _X86_64:
            raise UnsupportedError(
                "machine code that is not for x86-64 Linux cannot be saved yet",
                hint="compile the model where it runs; the cache keeps what was compiled",
            )
        (start,) = struct.unpack_from("<Q", content, 40)
        size, count, _ = struct.unpack_from("<HHH", content, 58)
        self.sections = [_SECTION.unpack_from(content, start + size * i) for i in range(count)]
        self.symbols: list[tuple[str, int, int, int, int]] = []
        """Of each its name, type, binding, section and value."""
        for section in self.sections:
            if section[1] == _SYMBOLS:
                names = self.sections[section[6]]
                for at in range(section[4], section[4] + section[5], _SYMBOL.size):
                    text, kind, _, index, value, _ = _SYMBOL.unpack_from(content, at)
                    begin = names[4] + text
                    spelled = content[begin : content.index(b"\0", begin)].decode()
                    self.symbols.append((spelled, kind & 15, kind >> 4, index, value))


def link(objects: Mapping[str, bytes]) -> Image:
    """One image of object files that call each other; what none of them has is of the C library."""
    files = [_Object(name, content) for name, content in objects.items()]
    code = bytearray()
    placed: dict[tuple[int, int], int] = {}
    for number, file in enumerate(files):
        for index, section in enumerate(file.sections):
            if not section[2] & _ALLOCATED:
                continue
            code += bytes(-len(code) % max(section[8], 16))
            placed[number, index] = len(code)
            code += bytes(section[5]) if section[1] == _NO_BITS else file.content[section[4] : section[4] + section[5]]
    known: dict[str, int] = {}
    functions: dict[str, int] = {}
    for number, file in enumerate(files):
        for name, _, binding, index, value in file.symbols:
            if (number, index) in placed and binding != _LOCAL:
                known.setdefault(name, placed[number, index] + value)
                if name in objects or file.name == name:
                    functions[name] = placed[number, index] + value
                else:
                    functions.setdefault(f"{file.name}.{name}", placed[number, index] + value)
    addresses: list[int] = []
    imports: dict[str, list[int]] = {}
    for number, file in enumerate(files):
        own = {s[0]: placed[number, s[3]] + s[4] for s in file.symbols if s[0] and (number, s[3]) in placed}
        for section in file.sections:
            base = placed.get((number, section[7]))
            if section[1] != _RELOCATIONS or base is None:
                continue
            for at in range(section[4], section[4] + section[5], _RELOCATION.size):
                offset, info, addend = _RELOCATION.unpack_from(file.content, at)
                name, kind, _, index, value = file.symbols[info >> 32]
                place = base + offset
                if index == _UNDEFINED:
                    target = known.get(name)
                elif kind == _SECTION_SYMBOL:
                    target = placed[number, index]
                else:
                    target = own.get(name, placed[number, index] + value)
                _relocate(code, place, info & 0xFFFFFFFF, target, addend, name, addresses, imports)
    return Image(bytes(code), functions, tuple(addresses), {n: tuple(p) for n, p in imports.items()})


def _relocate(
    code: bytearray,
    place: int,
    kind: int,
    target: int | None,
    addend: int,
    name: str,
    addresses: list[int],
    imports: dict[str, list[int]],
) -> None:
    """Write what is known of an address now, and note what the loader adds to it."""
    if kind == _ABSOLUTE:
        struct.pack_into("<Q", code, place, ((target or 0) + addend) & (2**64 - 1))
        if target is None:
            imports.setdefault(name, []).append(place)
        else:
            addresses.append(place)
    elif target is not None and kind in (_RELATIVE_32, _CALL_32):
        struct.pack_into("<i", code, place, target + addend - place)
    elif target is not None and kind == _RELATIVE_64:
        struct.pack_into("<q", code, place, target + addend - place)
    else:
        raise UnsupportedError(
            f"machine code that needs {name} by a relocation of type {kind} cannot be saved",
            hint="please report it with the model",
        )


class LoadedImage:
    """An image in memory that may be executed; it is freed with this object."""

    def __init__(self, image: Image) -> None:
        self._functions = image.functions
        size = max(len(image.code), 1)
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        held = (ctypes.c_char * size).from_buffer(self._memory)
        self._base = ctypes.addressof(held)
        self._held = held
        patched = bytearray(image.code)
        try:
            for place in image.addresses:
                (word,) = struct.unpack_from("<Q", patched, place)
                struct.pack_into("<Q", patched, place, (word + self._base) & (2**64 - 1))
            for name, places in image.imports.items():
                address = _address_of(name)
                for place in places:
                    (word,) = struct.unpack_from("<Q", patched, place)
                    struct.pack_into("<Q", patched, place, (word + address) & (2**64 - 1))
        except struct.error as error:
            raise LoadError("machine code whose addresses are outside it", hint="save the program again") from error
        self._memory[: len(patched)] = bytes(patched)
        pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        if protect(self._base, pages, mmap.PROT_READ | mmap.PROT_EXEC):
            raise LoadError(
                f"the system does not let machine code run in memory: {ctypes.get_errno()}",
                hint="allow mappings that are executable (mprotect with PROT_EXEC)",
            )

    def address(self, function: str) -> int:
        """Where a function is."""
        if function not in self._functions:
            raise LoadError(f"a saved program without its function {function}", hint="save the program again")
        return self._base + self._functions[function]


def _address_of(name: str) -> int:
    """The address of a function of the C library or of its mathematics."""
    for library in (None, "libm.so.6"):
        try:
            return ctypes.cast(getattr(ctypes.CDLL(library), name), ctypes.c_void_p).value or 0
        except (AttributeError, OSError):
            continue
    raise LoadError(f"the C library of this system has no {name}", hint="run the program on a Linux with glibc")


__all__ = ["Image", "LoadedImage", "link"]
