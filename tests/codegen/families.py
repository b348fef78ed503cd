"""Families of kernels: what a kernel is, whatever its name says of how it goes about it."""

from __future__ import annotations

import re

from dovetail.ir.type import TupleType
from dovetail.ir.value import Value
from tests.codegen.normal import unmarked

_BY_NAME = {
    "persistent": r"resident|persistent",
    "attention backward": r"attend_back",
    "attention": r"attend|attention|amx\.(?:keys|values|queries|configure|scores|weights|results|release)",
    "blocks": r"blocks|floats\.|limbs\.|expand\.|lows\.|six",
    "gemm": r"gemm|contract|matmul|bytes\.|int8|bf16|halves?\b|narrow|epilogue|pack|amx\.|transpose",
    "conv": r"conv|tile\.|\w+_(?:conv|tile|lay|pack)|depth|wino|places|dealt|turn|finish|(?:columns|gather|spread)\.",
    "pool": r"max_pool|average_pool",
    "rows": r"rows|row_stages|stages|rope|norm|softmax",
    "reduce": r"arg_|reduce",
    "scan": r"cum_|scan",
    "sort": r"sort|top_k",
    "scatter": r"scatter",
    "gather": r"gather",
    "move": r"move|weave|index_map",
    "map": r"map|fill|table|quantise|convert|random|resize|grid_sample",
}
_PATTERNS = {family: re.compile(pattern) for family, pattern in _BY_NAME.items()}
_FEW_ROWS = 8
_IN_BLOCKS = "dequantise_blocks"


def family_of(name: str, step: Value | None = None) -> str:
    """The family of a kernel or of a shared function by its name and by the step that it is for."""
    name = unmarked(name)
    found = next((family for family, pattern in _PATTERNS.items() if pattern.match(name)), "other")
    if found != "gemm" or step is None:
        return found
    if any(_is_in_blocks(x, 3) for x in step.operands):
        return "blocks"
    whole = step.type
    rows = 1
    for size in (whole.items[0] if isinstance(whole, TupleType) else whole).shape[:-1]:
        rows = rows * size if isinstance(size, int) else _FEW_ROWS + 1
    return "gemv" if rows <= _FEW_ROWS else "gemm"


def _is_in_blocks(value: Value, depth: int) -> bool:
    return value.op.name == _IN_BLOCKS or (depth > 0 and any(_is_in_blocks(x, depth - 1) for x in value.operands))
