"""What has one value in every run: inputs as arrays, and symbolic sizes as whole numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.errors import BindError, OptionError
from dovetail.frontends.shared.messages import printable
from dovetail.ir.dim import substitute, symbols
from dovetail.ir.dtype import of_numpy
from dovetail.ir.literal import Array
from dovetail.ir.solve import Found, solve_symbols
from dovetail.ir.type import TensorType

Given: TypeAlias = Mapping[str, Array | int]
"""Arrays by the names of inputs, whole numbers by the names of sizes."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """The inputs that a model is imported without, and the sizes that are numbers from then on."""

    arrays: Mapping[str, Array]
    sizes: Mapping[str, int]

    def type(self, declared: TensorType) -> TensorType:
        """A type as the model declares it, with the sizes that are known now."""
        return TensorType(declared.dtype, tuple(substitute(s, self.sizes) for s in declared.shape))


def fixed(given: Mapping[str, Any], declared: Mapping[str, TensorType]) -> Fixed:
    """What was given, checked against what the model declares. An array also tells the sizes in its input's type."""
    known = {name for type in declared.values() for size in type.shape for name in symbols(size)}
    arrays: dict[str, Array] = {}
    sizes: dict[str, int] = {}
    for name, value in given.items():
        if name in declared:
            arrays[name] = _array(name, value, declared[name])
        elif name in known:
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
                raise OptionError(f"the size {name} is fixed to {value!r}", hint="a size is a whole number")
            sizes[name] = int(cast(int, value))
        else:
            listed = ", ".join(map(printable, [*declared, *sorted(known)][:40]))
            raise OptionError(
                f"there is neither an input nor a size {printable(str(name))!r} to fix", hint=f"there are {listed}"
            )
    found = [Found(f"the input {name}", declared[name], array.shape) for name, array in arrays.items()]
    return Fixed(arrays, solve_symbols(found, sizes))


def _array(name: str, value: Any, declared: TensorType) -> Array:
    if not isinstance(value, np.ndarray | np.generic):
        try:
            value = np.asarray(value, declared.dtype.numpy)
        except (OverflowError, TypeError, ValueError):
            raise BindError(
                f"the input {printable(name)} is fixed to {str(value)[:60]!r}", hint=f"pass an array of {declared}"
            ) from None
    array: Array = np.asarray(cast(Any, value))
    if of_numpy(array.dtype) is not declared.dtype:
        raise BindError(
            f"the input {printable(name)} is fixed to an array of {array.dtype}",
            hint=f"the model takes {declared.dtype.name}",
        )
    return array
