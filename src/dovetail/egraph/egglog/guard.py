"""Guards as rules: tables answer a condition for the types and numbers of a match."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.derive.condition import Condition, Term
from dovetail.egraph.egglog.words import Words
from dovetail.ir import leaf
from dovetail.ir.type import TensorType


class UnprintableError(Exception):
    """A condition that the tables cannot answer: it weighs what two values say against each other."""


@dataclass(frozen=True, slots=True)
class Question:
    """A condition as a pair of relations: the question, and where it holds."""

    number: int
    names: tuple[str, ...]
    """The names whose types and numbers it reads, in the order of its columns."""

    def of(self, variables: Mapping[str, str], *, holds: bool) -> str:
        columns = " ".join(variables[name] for name in self.names)
        return f"({'holds' if holds else 'ask'}-{self.number} {columns})"


class Guards:
    """Every condition once, with the questions that tables answer."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._known: dict[tuple[Condition, tuple[tuple[str, bool], ...]], Question] = {}
        self.questions: dict[tuple[Term, bool], int] = {}
        """One-name terms and whether the name is a value's, by their numbers."""
        self.commands: list[str] = []

    def question(self, condition: Condition, is_value: Mapping[str, bool]) -> Question:
        """Return the relations of a condition and add its rules to the commands; fail where tables cannot answer it."""
        terms = [term for path in condition.paths for term, _ in path]
        names = tuple(dict.fromkeys(name for term in terms for name in names_of(term)))
        key = (condition, tuple((name, is_value[name]) for name in names))
        known = self._known.get(key)
        if known is not None:
            return known
        question_ = Question(len(self._known), names)
        variables = {name: f"c{i}" for i, name in enumerate(names)}
        bodies = [
            [self._atom(term, expected, variables, is_value, f"{at}") for at, (term, expected) in enumerate(path)]
            for path in condition.paths
        ]
        columns = " ".join(["i64"] * len(names))
        ask, holds = (question_.of(variables, holds=h) for h in (False, True))
        self.commands += [f"(relation {kind}-{question_.number} ({columns}))" for kind in ("ask", "holds")]
        self.commands += [f"(rule ({' '.join([ask, *body])}) ({holds}) :ruleset guards)" for body in bodies]
        self._known[key] = question_
        return question_

    def rows(self) -> dict[str, list[tuple[int, ...]]]:
        """Return the answers to all questions, for every type and number that is known."""
        rows_: dict[str, list[tuple[int, ...]]] = {"yes": [], "no": [], "says": []}
        for (term, of_value), question in self.questions.items():
            (name,) = names_of(term)
            # What is said may be new, and is asked of nothing.
            things: list[Any] = list(map(_stand_in, self._words.types)) if of_value else list(self._words.attributes)
            for number, thing in enumerate(things):
                try:
                    answer = term.answer({name: thing})
                    rows_["yes" if answer else "no"].append((question, number))
                except Exception:  # a size of an axis that is not there; numbers that cannot be compared
                    continue
                if term.kind not in _TRUTHS:
                    rows_["says"].append((question, number, self._words.attribute(answer)))
        return rows_

    def _atom(
        self, term: Term, expected: bool, variables: Mapping[str, str], is_value: Mapping[str, bool], at: str
    ) -> str:
        names = names_of(term)
        if len(names) == 1:
            question = self._question(term, is_value[names[0]])
            return f"({'yes' if expected else 'no'} {question} {variables[names[0]]})"
        sides = [side for side in term.arguments if isinstance(side, Term) and len(names_of(side)) == 1]
        if term.kind not in ("==", "!=") or len(sides) != 2:
            raise UnprintableError(f"{term} weighs {' and '.join(names)} against each other")
        same = (term.kind == "==") is expected
        left, right = (f"s{at}", f"s{at}") if same else (f"s{at}", f"r{at}")
        atoms: list[str] = []
        for side, variable in zip(sides, (left, right), strict=True):
            (name,) = names_of(side)
            atoms.append(f"(says {self._question(side, is_value[name])} {variables[name]} {variable})")
        return " ".join(atoms if same else [*atoms, f"(!= {left} {right})"])

    def _question(self, term: Term, of_value: bool) -> int:
        return self.questions.setdefault((term, of_value), len(self.questions))


_TRUTHS = ("==", "!=", "<", "<=", ">", ">=")


def names_of(term: Term) -> tuple[str, ...]:
    """Return the caught names that a term reads, each once."""
    match term.kind:
        case "number" | "rank" | "dtype" | "type" | "shape" | "size" | "sizes":
            return (term.arguments[0],)
        case _:
            return tuple(dict.fromkeys(n for a in term.arguments if isinstance(a, Term) for n in names_of(a)))


def _stand_in(type: TensorType) -> Any:
    return leaf.argument(0, type)


__all__ = ["Guards", "Question", "UnprintableError", "names_of"]
