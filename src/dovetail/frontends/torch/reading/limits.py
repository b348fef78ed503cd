"""Sizes that torch exported a program for: ranges of symbols, and relations that its tracing relied on."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.errors import BindError
from dovetail.frontends.torch.reading.package import torch_module

Shape = tuple[int, ...]

_ALLOWED = (
    ast.Expression,
    ast.Compare,
    ast.BoolOp,
    ast.And,
    ast.Or,
    ast.UnaryOp,
    ast.Not,
    ast.USub,
    ast.BinOp,
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.FloorDiv,
    ast.Mod,
    ast.Pow,
    ast.Eq,
    ast.NotEq,
    ast.Lt,
    ast.LtE,
    ast.Gt,
    ast.GtE,
    ast.Name,
    ast.Load,
)
"""What a relation may consist of, with calls of these functions: its text may come from a file."""
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {"max": max, "min": min, "Max": max, "Min": min}


@dataclass(frozen=True, slots=True)
class Range:
    """The sizes that one axis of an argument may have."""

    argument: int
    axis: int
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation between sizes of arguments that must hold."""

    text: str
    """With the sizes as a caller writes them: `x.shape[0]`."""
    holds: Callable[[Sequence[Shape]], bool]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the shapes of tensor arguments must fulfil in addition to their types."""

    names: tuple[str, ...]
    """The arguments, as a caller writes them."""
    ranges: tuple[Range, ...]
    relations: tuple[Relation, ...]

    def check(self, shapes: Sequence[Shape]) -> None:
        """Raise where shapes are outside of what the program was exported for."""
        for one in self.ranges:
            if one.axis >= len(shapes[one.argument]):
                continue  # the type of the input refuses another rank
            size = shapes[one.argument][one.axis]
            if size < one.least or (one.most is not None and size > one.most):
                wanted = f"at least {one.least}" if one.most is None else f"from {one.least} to {one.most}"
                raise BindError(
                    f"argument {self.names[one.argument]} has size {size} on axis {one.axis}, "
                    f"and the program was exported for sizes {wanted}",
                    hint="compile the module again with a range that holds this size",
                )
        for relation in self.relations:
            if not relation.holds(shapes):
                found = ", ".join(f"{n} {list(s)}" for n, s in zip(self.names, shapes, strict=True))
                raise BindError(
                    f"the program was exported for sizes with {relation.text}, and found {found}",
                    hint="torch.export took another branch for these sizes: compile the module with such an example",
                )


def limits_of(program: Any, tensors: Sequence[tuple[str, str, str]]) -> Limits | None:
    """The limits of an exported program; None where there are none.

    `tensors` are its tensor arguments: the name of the placeholder, the path in torch's own spelling, and the path as a
    caller writes it. Like torch, sizes 0 and 1 are not refused for a range that starts at 2.
    """
    names = tuple(spelled for _, _, spelled in tensors)
    ranges = _ranges(program, [name for name, _, _ in tensors])
    texts: list[str] = getattr(program, "_guards_code", None) or []
    relations = [r for text in texts if (r := _relation(text, tensors)) is not None]
    return Limits(names, tuple(ranges), tuple(relations)) if ranges or relations else None


def _ranges(program: Any, placeholders: Sequence[str]) -> list[Range]:
    torch = torch_module()
    types = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    found: list[Range] = []
    for index, name in enumerate(placeholders):
        for axis, size in enumerate(types[name].shape):
            bounds = program.range_constraints.get(size.node.expr) if isinstance(size, torch.SymInt) else None
            if bounds is None:
                continue
            least = int(bounds.lower) if getattr(bounds.lower, "is_Integer", False) else 0
            upper = bounds.upper
            most = int(upper) if getattr(upper, "is_Integer", False) and int(upper) < 2**62 else None
            if least > 2 or most is not None:
                found.append(Range(index, axis, least if least > 2 else 0, most))
    return found


def _relation(text: str, tensors: Sequence[tuple[str, str, str]]) -> Relation | None:
    """A relation as torch writes it, if it is one between sizes of these tensors that can fail."""
    code, spelled = text, text
    for index, (_, path, name) in enumerate(tensors):
        for flat in (path, f"L['flat_args'][{index}]"):
            for axis in range(code.count(flat) and 16):
                code = code.replace(f"{flat}.size()[{axis}]", f"size_{index}_{axis}")
                spelled = spelled.replace(f"{flat}.size()[{axis}]", f"{name}.shape[{axis}]")
    try:
        tree = ast.parse(code, mode="eval")
    except (SyntaxError, ValueError, RecursionError):
        return None
    used: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Name) or node.func.id not in _FUNCTIONS or node.keywords:
                return None
        elif isinstance(node, ast.Constant):
            if type(node.value) is not int:
                return None
        elif not isinstance(node, _ALLOWED):
            return None
        if isinstance(node, ast.Name) and node.id not in _FUNCTIONS:
            if not node.id.startswith("size_"):
                return None
            used.add(node.id)
    if not used or _says_nothing(tree):
        return None
    places = {name: tuple(map(int, name.split("_")[1:])) for name in used}
    compiled = compile(tree, "<relation of sizes>", "eval")

    def holds(shapes: Sequence[Shape]) -> bool:
        try:
            sizes = {name: shapes[index][axis] for name, (index, axis) in places.items()}
            return bool(eval(compiled, {"__builtins__": {}, **_FUNCTIONS}, sizes))  # whitelisted above
        except (ArithmeticError, LookupError):
            return True  # a size of 0 as a divisor, another rank: types and kernels judge these

    return Relation(_shortened(spelled), holds)


def _says_nothing(tree: ast.Expression) -> bool:
    """Whether types say a relation already, two sizes are equal, or torch's tracing makes it on its own.

    Tracing takes sizes to be neither 0 nor 1, and products of sizes to differ.
    """
    body = tree.body
    if not isinstance(body, ast.Compare) or len(body.ops) != 1:
        return False
    right = body.comparators[0]
    number = right.value if isinstance(right, ast.Constant) else None
    if isinstance(body.ops[0], ast.NotEq):
        return not isinstance(body.left, ast.Name) or number in (None, 0, 1)
    if isinstance(body.ops[0], ast.Eq):
        return isinstance(body.left, ast.Name) and isinstance(right, ast.Name)
    return isinstance(body.ops[0], ast.GtE) and number in (0, 1, 2)


def _shortened(text: str) -> str:
    whole = ast.unparse(ast.parse(text, mode="eval"))
    return whole if len(whole) < 200 else f"{whole[:200]}…"


__all__ = ["Limits", "Range", "Relation", "limits_of"]
