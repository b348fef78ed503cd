"""Which symbols make declared types fit the shapes at hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dovetail.dataclass import dataclass
from dovetail.errors import BindError
from dovetail.ir.dim import Dim, Size, Symbol, substitute, symbols
from dovetail.ir.type import TensorType


@dataclass(frozen=True, slots=True)
class Found:
    """A tensor that a run binds: its name, the type that it declares, its actual shape."""

    name: str
    type: TensorType
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Equation:
    tensor: Found
    axis: int

    @property
    def declared(self) -> Size:
        return self.tensor.type.shape[self.axis]

    @property
    def size(self) -> int:
        return self.tensor.shape[self.axis]

    def error(self, why: str) -> BindError:
        return BindError(
            f"{self.tensor.name} has the shape {spell(self.tensor.shape)}, and its type is {self.tensor.type}: {why}",
            hint=f"give axis {self.axis} a size that fits {self.declared}",
        )


def solve_symbols(tensors: Iterable[Found], known: Mapping[str, int] | None = None) -> dict[str, int]:
    """Bare symbols first, then sizes with one unknown symbol; every other size is checked."""
    binding: dict[str, int] = dict(known or {})
    sources: dict[str, str] = {}
    open_: list[_Equation] = []
    for bound in tensors:
        if len(bound.shape) != bound.type.rank:
            raise BindError(
                f"{bound.name} has {len(bound.shape)} axes, {spell(bound.shape)}, and its type is {bound.type}",
                hint=f"give it {bound.type.rank} axes",
            )
        for axis, declared in enumerate(bound.type.shape):
            equation = _Equation(bound, axis)
            if isinstance(declared, int):
                if declared != equation.size:
                    raise equation.error(f"axis {axis} is {equation.size}, not {declared}")
            elif (name := bare_symbol(declared)) is not None:
                _bind(binding, sources, equation, name, equation.size)
            else:
                open_.append(equation)
    _solve_rest(binding, sources, open_)
    return binding


def _solve_rest(binding: dict[str, int], sources: dict[str, str], open_: list[_Equation]) -> None:
    while open_:
        rest: list[_Equation] = []
        for equation in open_:
            declared = substitute(equation.declared, binding)
            if isinstance(declared, int):
                if declared != equation.size:
                    raise equation.error(f"{equation.declared} is {declared} {_because(equation.declared, binding)}")
            elif (line := _affine(declared)) is not None:
                name, slope, offset = line
                value, remainder = divmod(equation.size - offset, slope)
                if remainder or value < 0:
                    raise equation.error(f"no {name} makes {equation.declared} equal to {equation.size}")
                _bind(binding, sources, equation, name, value)
            else:
                rest.append(equation)
        if len(rest) == len(open_):
            missing = ", ".join(sorted(symbols(substitute(rest[0].declared, binding))))
            raise BindError(
                f"the size {rest[0].declared} of {rest[0].tensor.name} does not tell what {missing} is",
                hint=f"bind {missing}, by another input's shape or by name",
            )
        open_ = rest


def _bind(binding: dict[str, int], sources: dict[str, str], equation: _Equation, name: str, value: int) -> None:
    known = binding.setdefault(name, value)
    if known != value:
        raise equation.error(f"it makes {name} {value}, and {name} is {known} by {sources.get(name, 'what was given')}")
    sources.setdefault(name, equation.tensor.name)


def _because(size: Size, binding: Mapping[str, int]) -> str:
    return "with " + ", ".join(f"{n} = {binding[n]}" for n in sorted(symbols(size)))


def bare_symbol(size: Size) -> str | None:
    """Return the name of a size that is one symbol and nothing else."""
    if isinstance(size, Dim) and len(size.terms) == 1:
        monomial, coefficient = size.terms[0]
        if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
            return monomial[0].name
    return None


def _affine(size: Dim) -> tuple[str, int, int] | None:
    """Name, slope and offset of a size that is a line in one symbol."""
    slopes = [(monomial, c) for monomial, c in size.terms if monomial]
    offset = sum(c for monomial, c in size.terms if not monomial)
    if len(slopes) == 1:
        monomial, slope = slopes[0]
        if len(monomial) == 1 and isinstance(monomial[0], Symbol):
            return monomial[0].name, slope, offset
    return None


def spell(shape: Iterable[Size]) -> str:
    return f"[{', '.join(map(str, shape))}]"
