"""The operator of a model that a front end is importing: what is known about its operands, and errors that name it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from dovetail.dataclass import dataclass
from dovetail.errors import LoadError, NeedsValueError, UnsupportedError
from dovetail.frontends.shared import contents
from dovetail.frontends.shared.contents import Contents, Follower
from dovetail.ir import leaf
from dovetail.ir.dim import Dim, Size, symbols
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.ops import generate


@dataclass(frozen=True, slots=True)
class AttributeGroup:
    """Attributes that several operators share, one for each field; rules take them as one parameter."""


class Surroundings(Protocol):
    """What an operator can ask of the import that it is part of."""

    follower: Follower

    def fresh(self, name: str) -> Dim: ...


class Site(ABC):
    """One operator of a model: its name, its place for messages, and the import that it is part of."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    @property
    @abstractmethod
    def op_type(self) -> str:
        """The operator as its framework names it."""

    @property
    @abstractmethod
    def where(self) -> str:
        """The place in the model, as messages name it."""

    @property
    def follower(self) -> Follower:
        """What the import knows about contents of values."""
        return self._around.follower

    def fresh(self, name: str) -> Dim:
        """A symbol that no other size of the model has."""
        return self._around.fresh(name)

    def known(self, value: Value) -> Contents | None:
        """What a value holds in every run, element by element; None where it depends on the run."""
        return self.follower.contents(value)

    def sizes(self, value: Value) -> tuple[Size, ...] | None:
        """The sizes that an integer tensor holds, or None where they depend on the run."""
        found = self.known(value)
        return None if found is None else contents.sizes(found)

    def counted(self, value: Value, name: str) -> Value:
        """0, 1, 2, … below an integer of rank 0. Where the run computes it, the size of the result is a new symbol."""
        found = self.sizes(value)
        if found is not None:
            return generate.iota(size=found[0])
        count = self.fresh(name)
        self.follower.note_count(count, value)
        return generate.counting(value, count=count)

    def array(self, value: Value, name: str) -> Array:
        """What a value holds, as an array."""
        found = self.known(value)
        if found is None or any(isinstance(x, Dim) for x in found.flat):
            raise self.needs(value, name)
        return found.astype(value.dtype.numpy)

    def needs(self, value: Value, name: str) -> UnsupportedError:
        """The error for a value that must be known when the model is imported and is not."""
        order = walk([value])
        inputs = tuple(v.attrs["name"] for v in order if v.op is leaf.INPUT)
        sizes = tuple(sorted({s for v in order if v.op is generate.extent for s in symbols(v.attrs["size"])}))
        if inputs or sizes:
            asked = [*(f"{i!r}: array" for i in inputs), *(f"{s!r}: number" for s in sizes)]
            return NeedsValueError(
                f"{name} of {self.op_type} decides the structure of the model, and it depends on "
                f"{', '.join((*inputs, *sizes))}",
                inputs=inputs,
                sizes=sizes,
                hint=f"fix it when the model is compiled: fixed={{{', '.join(asked)}}}",
                where=self.where,
            )
        return self.unsupported(f"{name} that is computed in the run", hint="export the model with it as a constant")

    def unsupported(self, what: str, hint: str = "export the model without it") -> UnsupportedError:
        """The error for something that the framework allows and we do not have."""
        return UnsupportedError(f"{self.op_type}: {what}", hint=hint, where=self.where)

    def malformed(self, what: str, hint: str = "check how the model was written") -> LoadError:
        """The error for something that the framework does not allow."""
        return LoadError(f"{self.op_type}: {what}", hint=hint, where=self.where)
