"""MODEL on the command line: a graph in a file, or a built-in model with sizes, as in llama:layers=2,seq=8."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dovetail import models
from dovetail.dataclass import dataclass
from dovetail.errors import GraphError, NeedsValueError, OptionError
from dovetail.ir.dtype import BY_NAME, DType
from dovetail.ir.graph import Graph
from dovetail.ir.size_text import parse_size
from dovetail.nearest import nearest
from dovetail.runtime.load import load

BUILDERS: Mapping[str, Callable[..., Graph]] = {
    "bert": models.bert,
    "llama": models.llama,
    "llama_step": models.llama_step,
    "resnet": models.resnet,
    "unet": models.unet,
}
"""The models that come with dovetail. A file of such a name is written ./bert."""


def is_onnx(model: str) -> bool:
    """Whether MODEL is a file that is read as ONNX."""
    return model.partition(":")[0] not in BUILDERS and Path(model).suffix == ".onnx"


def is_missing(model: str) -> bool:
    """Whether MODEL is neither a built-in one nor a file."""
    return model.partition(":")[0] not in BUILDERS and not _exists(model)


def is_built_in(model: str) -> bool:
    """Whether MODEL is a built-in one, or a name without a file."""
    name = model.partition(":")[0]
    named = not Path(name).suffix and "/" not in model and "\\" not in model and "\0" not in model
    return name in BUILDERS or (named and not _exists(model))


def graph_of(model: str, fixed: Mapping[str, Any] | None = None, *, train: bool = False) -> Graph:
    """The graph that MODEL names. `fixed` is what has one value in every run of an ONNX model.

    With `train`, small arrays of an ONNX model are parameters too.
    """
    name, colon, options = model.partition(":")
    if fixed and not is_onnx(model):
        raise OptionError(f"--fixed {next(iter(fixed))}, and {model} is no ONNX model", hint="--size gives sizes")
    if name in BUILDERS:
        return build(name, options, given=bool(colon))
    if is_built_in(model):
        near = nearest(name, BUILDERS)
        listed = f"did you mean {near[0]}?" if near else f"built-in models are {', '.join(BUILDERS)}"
        raise OptionError(f"there is neither a file nor a built-in model {model!r}", hint=listed)
    try:
        return load(model, fixed=fixed, train=train)
    except NeedsValueError as error:
        inputs = [f"--fixed {name}=@file.npy" for name in error.inputs]
        error.hint = f"say what it is in every run: {' '.join([*inputs, *(f'--size {s}=1' for s in error.sizes)])}"
        raise


def build(name: str, options: str, *, given: bool = True) -> Graph:
    """A built-in model with the options `key=value,key=value`."""
    builder = BUILDERS[name]
    known = known_options(builder)
    chosen: dict[str, Any] = {}
    for key, text in _pairs(name, options, known) if given else ():
        chosen[key] = _read(name, known[key], text)
    return builder(**_arguments(builder, chosen))


@dataclass(frozen=True, slots=True)
class Known:
    """One option of a built-in model: what it takes, and what it is when it is left out."""

    key: str
    kind: Any
    default: Any

    def __str__(self) -> str:
        return f"{self.key}={_spell(self.default)}"


def known_options(builder: Callable[..., Graph]) -> dict[str, Known]:
    """The fields of the model's shape, then the other parameters of its function."""
    hints = get_type_hints(builder)
    found: dict[str, Known] = {}
    for parameter in inspect.signature(builder).parameters.values():
        shape = _shape_of(hints[parameter.name])
        if shape is None:
            found[parameter.name] = Known(parameter.name, hints[parameter.name], parameter.default)
            continue
        inner = get_type_hints(shape)
        for part in fields(shape):
            found[part.name] = Known(part.name, inner[part.name], part.default)
    return found


def _shape_of(hint: Any) -> Any:
    """The dataclass in `Shape | None`; None for a plain parameter."""
    listed = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    return next((kind for kind in listed if is_dataclass(kind) and not _is_size(hint)), None)


def _is_size(hint: Any) -> bool:
    """Whether a hint is SizeLike: a number, or a name for one that is not known yet."""
    return {int, str} <= set(get_args(hint))


def _arguments(builder: Callable[..., Graph], chosen: Mapping[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(builder)
    arguments = {name: chosen[name] for name in hints if name in chosen}
    for name, hint in hints.items():
        shape = _shape_of(hint) if name != "return" else None
        if shape is not None:
            arguments[name] = shape(**{part.name: chosen[part.name] for part in fields(shape) if part.name in chosen})
    return arguments


def _pairs(name: str, options: str, known: Mapping[str, Known]) -> list[tuple[str, str]]:
    """Key and text of each option; a piece without = belongs to the list before it, as in blocks=3,4,6,3."""
    listed = ", ".join(map(str, known.values()))
    pairs: list[tuple[str, str]] = []
    for piece in options.split(","):
        key, equals, text = piece.partition("=")
        key = key.strip()
        if not equals and pairs and piece.strip():
            pairs[-1] = (pairs[-1][0], f"{pairs[-1][1]},{piece}")
        elif not equals or not text.strip():
            raise OptionError(f"{piece.strip()!r} is no option of {name}", hint=f"write key=value; there are {listed}")
        elif key not in known:
            near = nearest(key, known)
            hint = f"did you mean {near[0]}? There are {listed}" if near else f"there are {listed}"
            raise OptionError(f"{name} has no option {key!r}", hint=hint)
        elif any(key == earlier for earlier, _ in pairs):
            raise OptionError(f"{name} is given {key} twice", hint="give each option once")
        else:
            pairs.append((key, text))
    return pairs


def _read(name: str, option: Known, text: str) -> Any:
    kind = option.kind
    text = text.strip()
    if kind == _OPTIONAL:
        if text == str(None):
            return None
        kind = int
    try:
        if kind is bool:
            return _SWITCH[text]
        if kind is int:
            return _above_zero(int(text))
        if kind is float:
            return _above_zero(float(text))
        if kind is DType:
            return BY_NAME[text]
        if get_origin(kind) is tuple:
            return tuple([_above_zero(int(item)) for item in text.split(",")])
        if get_origin(kind) is Literal and text in get_args(kind):
            return text
        if _is_size(kind):
            return parse_size(text)
    except (KeyError, ValueError, GraphError):
        pass
    raise OptionError(f"the option {option.key} of {name} is {text!r}", hint=f"it is {_wanted(kind)}, as in {option}")


_OPTIONAL = int | None
_SWITCH = {"true": True, "false": False, "1": True, "0": False}


def _above_zero(number: Any) -> Any:
    if not 0 < number <= _LARGEST:
        raise ValueError(number)
    return number


_LARGEST = 2**31 - 1
"""No model has a size beyond it, and arrays of it would not fit."""


def _wanted(kind: Any) -> str:
    if kind is DType:
        return f"one of {', '.join(BY_NAME)}"
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    if _is_size(kind):
        return "a number or the name of a size that is not known yet"
    if kind == _OPTIONAL:
        return f"{_wanted(int)}, or None"
    words = {
        bool: "true or false",
        int: "a whole number above 0 and below 2³¹",
        float: "a number above 0 and below 2³¹",
    }
    return words.get(kind, "a list of positive integers")


def _spell(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case tuple():
            return ",".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        case _:
            return str(value)


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:
        return True
