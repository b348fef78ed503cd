"""How names and arrays are written in text, each in a way that reads back to the same bits."""

from __future__ import annotations

import base64
import binascii
import re
import sys
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from dovetail.errors import GraphError
from dovetail.ir.dtype import NARROW, DType, f32, holds, whole_range
from dovetail.ir.literal import Array, Literal
from dovetail.ir.type import TensorType

SMALL = 32
"""Constants of up to this many elements are written out."""

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*+")
_ESCAPE = re.compile(r'\\(?:u\{([0-9a-fA-F]{1,6})\}|([\\"nrt]))|\\')
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
_LONG = {short[1]: char for char, short in _SHORT.items()}


def name(text: str) -> str:
    """Spell a name as it is, or in quotes where it would read as something else."""
    return text if _BARE.fullmatch(text) else quote(text)


def quote(text: str) -> str:
    """Text in quotes; what cannot be printed is escaped."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return f'"{"".join(map(_escape, text))}"'


def _escape(char: str) -> str:
    return _SHORT.get(char) or (char if char.isprintable() else f"\\u{{{ord(char):x}}}")


def unquote(text: str) -> str:
    """Undo `quote`."""
    inner = text[1:-1]
    return _ESCAPE.sub(_unescape, inner) if "\\" in inner else inner


def _unescape(escape: re.Match[str]) -> str:
    code, short = escape.groups()
    if short is not None:
        return _LONG[short]
    if code is None or int(code, 16) > sys.maxunicode:
        raise GraphError(f"{escape.group()} is not an escape", hint='write \\n, \\r, \\t, \\", \\\\ or \\u{1f600}')
    return chr(int(code, 16))


def payload(literal: Literal) -> str:
    """Spell the elements of an array: written out where they are few and that keeps every bit, else as base64."""
    array = literal.array
    if array.size <= SMALL:
        width, raw = array.itemsize, array.tobytes()
        listed = [_element(literal.dtype, raw[at : at + width]) for at in range(0, len(raw), width)]
        if None not in listed:
            joined = ", ".join(filter(None, listed))
            return f"[{joined}]" if array.ndim else joined
    return f'base64 "{base64.b64encode(little_endian(array)).decode("ascii")}"'


@lru_cache(maxsize=4096)
def _element(dtype: DType, raw: bytes) -> str | None:
    """Return the shortest number that reads back to the same bits, or None (a NaN with a payload)."""
    number = np.frombuffer(raw, dtype.numpy)[0]
    if dtype.kind == "complex":
        real, imaginary = _shortest(f32, float(number.real)), _shortest(f32, float(number.imag))
        text, read = f"({real}, {imaginary})", (float(real), float(imaginary))
    elif dtype.is_float:
        text = _shortest(dtype, float(number))
        read = float(text)
    elif dtype.kind == "bool":
        text, read = ("true", True) if number else ("false", False)
    else:
        text, read = str(int(number)), int(number)
    return text if from_numbers([read], TensorType(dtype, (1,))).tobytes() == raw else None


def _shortest(dtype: DType, number: float) -> str:
    with np.errstate(over="ignore"):
        for digits in range(1, 17):
            text = repr(float(f"{number:.{digits}g}"))
            fits = dtype not in NARROW or holds(dtype, float(text))
            if fits and float(np.array(float(text)).astype(dtype.numpy)) == number:
                return text
    return repr(number)


Number = bool | int | float | tuple[float, float]


def from_numbers(numbers: Sequence[Number], type: TensorType) -> Array:
    """Return the array of a static type with these elements, in rows."""
    dtype, shape = type.dtype, static_shape(type)
    if len(numbers) != type.count:
        raise GraphError(f"{len(numbers)} elements for {type}", hint=f"write {type.count} of them")
    listed = [_fitting(number, dtype) for number in numbers]
    with np.errstate(over="ignore", invalid="ignore"):
        array = np.array(listed, dtype.numpy if dtype.kind != "float" else np.float64).astype(dtype.numpy)
    for number, element in zip(listed, array, strict=True):
        if dtype.is_inexact and np.isinf(element) and not np.isinf(number):
            raise GraphError(f"{number} does not fit {dtype.name}", hint="write inf if that is meant")
    return array.reshape(shape)


def _fitting(number: Number, dtype: DType) -> bool | int | float | complex:
    wrong = GraphError(f"{number} as an element of {dtype.name}", hint=_ELEMENTS[dtype.kind])
    if isinstance(number, bool) != (dtype.kind == "bool") or isinstance(number, tuple) != (dtype.kind == "complex"):
        raise wrong
    if isinstance(number, tuple):
        return complex(*number)
    if dtype.is_integer:
        if not isinstance(number, int):
            raise wrong
        least, largest = whole_range(dtype)
        if not least <= number <= largest:
            raise GraphError(f"{number} does not fit {dtype.name}", hint=f"{least} to {largest} fit")
        return number
    if dtype in NARROW and not holds(dtype, number):
        raise GraphError(f"{number} does not fit {dtype.name}", hint=f"{dtype.range[0]} to {dtype.range[1]} fit")
    return float(number) if dtype.is_float else number


_ELEMENTS = {
    "bool": "write true or false",
    "int": "write a whole number",
    "uint": "write a whole number, 0 or more",
    "float": "write a number, inf, -inf or nan",
    "complex": "write a pair: (1.0, -0.5)",
}


def static_shape(type: TensorType) -> tuple[int, ...]:
    """Return the shape of an array that is in the file; its sizes are numbers, and it can be counted in 63 bits."""
    shape = tuple(s for s in type.shape if isinstance(s, int))
    total = type.dtype.itemsize
    for size in shape:
        total *= size or 1
    if len(shape) != type.rank or total >= 2**63:
        raise GraphError(f"an array of type {type}", hint="the sizes of an array are numbers, and it fits into memory")
    return shape


def from_base64(text: str, type: TensorType) -> Array:
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise GraphError(f"text that is not base64: {error}", hint="write the little-endian bytes in base64") from None
    return from_bytes(raw, type)


def little_endian(array: Array) -> bytes:
    """Return the bytes of an array, the low byte of each number first."""
    return swapped(array).tobytes()


def from_bytes(raw: bytes | memoryview, type: TensorType) -> Array:
    """Return the array of a static type over these bytes; it is read-only and shares them where the machine allows."""
    shape = static_shape(type)
    if len(raw) != type.bytes:
        raise GraphError(f"{len(raw)} bytes for {type}", hint=f"{type.bytes} are needed")
    whole = np.frombuffer(raw, np.uint8) if len(raw) else np.empty(0, np.uint8)
    if type.dtype.kind == "bool" and whole.size and whole.max() > 1:
        raise GraphError(f"a byte {whole.max()} in an array of bool", hint="0 is false and 1 is true")
    if type.dtype.bits < 8 and whole.size and whole.max() >> type.dtype.bits:
        raise GraphError(
            f"a byte {whole.max()} in an array of {type.dtype.name}", hint=f"{type.dtype.bits} bits of each are used"
        )
    array = swapped(whole.view(type.dtype.numpy)).view(type.dtype.numpy).reshape(shape)
    if not array.flags.aligned:
        array = array.copy()
    array.flags.writeable = False
    return array


def swapped(array: Array) -> Array:
    """Convert the bytes of an array between this machine's order and little-endian, flat."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if sys.byteorder == "little":
        return flat.view(np.uint8)
    width = array.dtype.itemsize // (2 if array.dtype.kind == "c" else 1)
    return flat.view(f"u{width}").byteswap().view(np.uint8)
