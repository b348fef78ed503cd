"""Arrays given by name, checked against what a program declares."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np

from dovetail.errors import BindError
from dovetail.ir.literal import Array
from dovetail.ir.solve import Found, solve_symbols
from dovetail.ir.value import Value
from dovetail.nearest import nearest
from dovetail.targets.runtime.arrays.feeds import Shaped, actual_leaf, check_array, named_leaf


def check_named(
    kind: str, given: Mapping[str, object], declared: Mapping[str, Value], others: Mapping[str, Value], advice: str
) -> dict[str, Array]:
    """The given arrays, each with a declared name and its dtype; `advice` is for a name among the others."""
    found: dict[str, Array] = {}
    for name, array in given.items():
        value = declared.get(name)
        if value is None:
            near = nearest(str(name), declared)
            listed = f"the {kind}s are {', '.join(declared)}" if declared else f"it has no {kind}s"
            hint = advice if name in others else f"did you mean {near[0]}?" if near else listed
            raise BindError(f"there is no {kind} named {name!r}", hint=hint)
        found[name] = check_array(named_leaf(value), value, array)
    return found


def check_params(
    given: Mapping[str, object], declared: Mapping[str, Value], kept: Mapping[str, Value], inputs: Mapping[str, Value]
) -> dict[str, Array]:
    """The arrays of `kept` parameters; those of others, which rewriting left without a reader, are checked alone."""
    found = check_named("parameter", given, declared, inputs, "it is an input: give it to run")
    if len(kept) == len(declared):
        return found
    solve_symbols(found_in({name: a for name, a in found.items() if name not in kept}, declared))
    return {name: a for name, a in found.items() if name in kept}


def refuse_missing(kind: str, given: Mapping[str, object], declared: Mapping[str, Value], hint: str) -> None:
    missing = [f"{name} ({value.type})" for name, value in declared.items() if name not in given]
    if missing:
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        some = ", ".join(missing[:4])
        raise BindError(f"no array for the {kind}{'s' if len(missing) > 1 else ''} {some}{more}", hint=hint)


def check_donated(names: Iterable[str], given: Mapping[str, Array], arrays: Mapping[str, Array]) -> None:
    """Raise unless a run can overwrite the arrays of these inputs; `arrays` are all that it reads, as it reads them."""
    for name in names:
        array = given[name]
        if arrays[name] is not array:
            raise BindError(
                f"the input {name} is donated and no plain array of its dtype",
                hint="pass a NumPy array that can be overwritten as it is",
            )
        for holds, wanted in (
            (array.flags.writeable, "writable"),
            (array.flags.c_contiguous, "C-contiguous"),
            (array.flags.aligned, "aligned"),
        ):
            if not holds:
                raise BindError(
                    f"the input {name} is donated and not {wanted}", hint="pass an array of its own: array.copy()"
                )
        for other, read in arrays.items():
            if other != name and np.may_share_memory(array, read):
                raise BindError(
                    f"the donated input {name} shares memory with the input {other}",
                    hint="pass a copy: a run overwrites what is donated",
                )


def found_in(arrays: Mapping[str, Shaped], declared: Mapping[str, Value], *, bare: bool = False) -> list[Found]:
    """The arrays as they were given for what is declared; see `actual_leaf`."""
    return [actual_leaf(declared[name], array, bare=bare) for name, array in arrays.items()]


def by_name(values: Iterable[Value]) -> dict[str, Value]:
    return {str(v.attrs["name"]): v for v in values}


def size_key(size: object) -> Any:
    """A size as a key; what is no size is left to the specializer to refuse."""
    try:
        return repr(size) if isinstance(size, bool) else operator.index(cast(Any, size))
    except TypeError:
        return repr(size)
