"""Damage done to files: to their bytes, their JSON, their words, and to the fields of ONNX models."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import onnx
from google.protobuf.message import DecodeError

Random = random.Random
BYTES = (0x00, 0x01, 0x7F, 0x80, 0xFF)
NUMBERS = (0, 1, -1, 2, 7, 255, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, -(2**31), -(2**63))
WORDS = ("", "x", "y", "nan", "inf", "-1", "999999999999", "[]", "{", "}", "(", ")", ":", "\0", "é", "%0", "f32[0]")


def flip(data: bytearray, r: Random) -> None:
    """One bit."""
    if data:
        data[r.randrange(len(data))] ^= 1 << r.randrange(8)


def set_byte(data: bytearray, r: Random) -> None:
    """One byte, to a value at an edge."""
    if data:
        data[r.randrange(len(data))] = r.choice(BYTES)


def set_word(data: bytearray, r: Random) -> None:
    """Four or eight bytes, to a number at an edge."""
    width = r.choice((4, 8))
    if len(data) > width:
        at = r.randrange(len(data) - width)
        data[at : at + width] = (r.choice(NUMBERS) % (1 << 8 * width)).to_bytes(width, "little")


def cut(data: bytearray, r: Random) -> None:
    """The end of the file."""
    del data[r.randrange(len(data) + 1) :]


def remove(data: bytearray, r: Random) -> None:
    """A piece in the middle."""
    at = r.randrange(len(data) + 1)
    del data[at : at + r.randrange(1, 64)]


def repeat(data: bytearray, r: Random) -> None:
    """A piece, written twice."""
    at = r.randrange(len(data) + 1)
    piece = data[at : at + r.randrange(1, 256)]
    data[at:at] = piece


def insert(data: bytearray, r: Random) -> None:
    """Random bytes."""
    at = r.randrange(len(data) + 1)
    data[at:at] = r.randbytes(r.randrange(1, 16))


def move(data: bytearray, r: Random) -> None:
    """A piece, to another place."""
    at = r.randrange(len(data) + 1)
    piece = data[at : at + r.randrange(1, 64)]
    del data[at : at + len(piece)]
    to = r.randrange(len(data) + 1)
    data[to:to] = piece


ON_BYTES = (flip, flip, set_byte, set_word, set_word, cut, remove, repeat, insert, move)


def bytes_of(content: bytes, r: Random) -> bytes:
    """One to four kinds of damage to bytes."""
    data = bytearray(content)
    for _ in range(r.choice((1, 1, 1, 2, 4))):
        r.choice(ON_BYTES)(data, r)
    return bytes(data)


def text_of(content: bytes, r: Random) -> bytes:
    """Words of a text replaced, removed, repeated or swapped."""
    words = re.findall(r"\w+|\s+|[^\w\s]", content.decode("utf-8", "replace"))
    for _ in range(r.choice((1, 1, 2, 4))):
        at, other = r.randrange(len(words)), r.randrange(len(words))
        match r.randrange(5):
            case 0:
                words[at] = r.choice((*WORDS, str(r.choice(NUMBERS))))
            case 1:
                words[at] = ""
            case 2:
                words[at] += words[at]
            case 3:
                words[at], words[other] = words[other], words[at]
            case _:
                words[at] = words[other]
    return "".join(words).encode()


def safetensors_of(content: bytes, r: Random) -> bytes:
    """A header whose JSON says something else."""
    length = int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(content[8 : 8 + length])
    name = r.choice(list(header))
    entry = header[name]
    match r.randrange(5):
        case 0:
            entry["shape"] = [r.choice(NUMBERS) for _ in range(r.randrange(4))]
        case 1:
            entry["data_offsets"] = [r.choice(NUMBERS), r.choice(NUMBERS)]
        case 2:
            entry["dtype"] = r.choice(("F32", "F64", "I64", "BOOL", "F8_E4M3", "", "x"))
        case 3:
            header[r.choice(WORDS)] = r.choice((entry, None, 1, [], "x"))
        case _:
            entry.pop(r.choice(list(entry)))
    written = json.dumps(header).encode()
    return len(written).to_bytes(8, "little") + written + content[8 + length :]


def onnx_of(content: bytes, r: Random) -> bytes:
    """A model with fields that say something else; it is still a protobuf message."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError:
        return content
    for _ in range(r.choice((1, 1, 2, 3))):
        r.choice(ON_MODELS)(model, r)
    return model.SerializeToString()


def _any_node(model: onnx.ModelProto, r: Random) -> onnx.NodeProto:
    return r.choice(model.graph.node) if model.graph.node else onnx.NodeProto()


def operator(model: onnx.ModelProto, r: Random) -> None:
    """A node becomes another operator."""
    _any_node(model, r).op_type = r.choice((_any_node(model, r).op_type, "Reshape", "Loop", "Concat", "Expand", "x"))


def wire(model: onnx.ModelProto, r: Random) -> None:
    """A node reads another value."""
    node, other = _any_node(model, r), _any_node(model, r)
    if node.input:
        names = [*other.input, *other.output, *(i.name for i in model.graph.initializer), "", "nothing"]
        node.input[r.randrange(len(node.input))] = r.choice(names)


def arity(model: onnx.ModelProto, r: Random) -> None:
    """A node has more or fewer inputs or outputs."""
    node = _any_node(model, r)
    names = r.choice((node.input, node.output))
    if names and r.random() < 0.5:
        del names[r.randrange(len(names))]
    else:
        names.append(r.choice(("", "more", *names)))


def nodes(model: onnx.ModelProto, r: Random) -> None:
    """A node is lost, repeated or stands elsewhere."""
    listed = model.graph.node
    if not listed:
        return
    node = onnx.NodeProto()
    node.CopyFrom(r.choice(listed))
    if r.random() < 0.5:
        del listed[r.randrange(len(listed))]
    if r.random() < 0.7:
        listed.insert(r.randrange(len(listed) + 1), node)


def attribute(model: onnx.ModelProto, r: Random) -> None:
    """An attribute has another value, type or name."""
    node = _any_node(model, r)
    if not node.attribute:
        node.attribute.append(onnx.helper.make_attribute(r.choice(("axis", "to", "perm")), r.choice(NUMBERS)))
        return
    said = r.choice(node.attribute)
    match r.randrange(5):
        case 0:
            said.i = r.choice(NUMBERS)
        case 1 if said.ints:
            said.ints[r.randrange(len(said.ints))] = r.choice(NUMBERS)
        case 2:
            said.ints.append(r.choice(NUMBERS))
        case 3:
            said.type = r.randrange(15)  # pyright: ignore[reportAttributeAccessIssue]
        case _:
            said.name = r.choice(("axis", "keepdims", "x", ""))


def tensor(model: onnx.ModelProto, r: Random) -> None:
    """An initializer has other dims, another dtype, or more or less data."""
    if not model.graph.initializer:
        return
    array = r.choice(model.graph.initializer)
    match r.randrange(4):
        case 0 if array.dims:
            array.dims[r.randrange(len(array.dims))] = r.choice(NUMBERS)
        case 1:
            array.dims.append(r.choice(NUMBERS))
        case 2:
            array.data_type = r.randrange(24)
        case _:
            array.raw_data = array.raw_data[: r.randrange(len(array.raw_data) + 1)]


def value_info(model: onnx.ModelProto, r: Random) -> None:
    """An input or output has another shape, dtype or name."""
    listed = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    if not listed:
        return
    said = r.choice(listed)
    sizes = said.type.tensor_type.shape.dim
    match r.randrange(4):
        case 0 if sizes:
            sizes[r.randrange(len(sizes))].dim_value = r.choice(NUMBERS)
        case 1 if sizes:
            sizes[r.randrange(len(sizes))].dim_param = r.choice(("n", "a*b", "", "\n"))
        case 2:
            said.type.tensor_type.elem_type = r.randrange(24)
        case _:
            said.name = r.choice(("", "x", "x\0", *(v.name for v in listed)))


def versions(model: onnx.ModelProto, r: Random) -> None:
    """The file says another version of the format or of the operators."""
    if r.random() < 0.5 and model.opset_import:
        r.choice(model.opset_import).version = r.choice((*NUMBERS, 1, 9, 13, 18))
    else:
        model.ir_version = r.choice(NUMBERS)


ON_MODELS: tuple[Callable[[onnx.ModelProto, Random], None], ...] = (
    operator,
    wire,
    wire,
    arity,
    nodes,
    attribute,
    attribute,
    tensor,
    tensor,
    value_info,
    versions,
)
