"""Verifying: every edit that was made to a graph, evaluated before and after in float64, then the graph as a whole."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, cast

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.derive.edit import BOUNDS, Numerics
from dovetail.errors import DovetailError, OptionError
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.ir.type import TensorType, tensors
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.passes.edit_scope import EditScope, ScopeFinder
from dovetail.passes.history import History, Made
from dovetail.progress import phase
from dovetail.runtime.arbiter import Amplification, amplifications
from dovetail.runtime.compile import Compilation
from dovetail.runtime.deviation import ROUNDED, deviations, difference, tolerance_of
from dovetail.runtime.random_inputs import RandomInputs, random_inputs
from dovetail.settings import PRECISIONS
from dovetail.targets.reference.interpreter import Result, evaluate_in_turn
from dovetail.targets.runtime.arrays.feeds import bind_leaves

ROUNDINGS = 8
"""How many roundings of its dtype a number may have that an edit writes or reads: it is kept in that dtype, not in
float64."""
SAMPLES = 3
"""How many of the edits that are alike are evaluated."""
Where = Literal["float64", "program"]


@dataclass(frozen=True, slots=True)
class EditCheck:
    """One edit that was evaluated."""

    made: Made
    deviation: float
    """The largest difference of the two sides, relative to the largest value."""
    bound: float
    message: str = ""
    """Why the edit cannot be evaluated, where it cannot."""

    @property
    def holds(self) -> bool:
        return self.deviation <= self.bound


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """All applications of one rule in one numeric class."""

    rule: str
    numerics: Numerics
    applications: int
    kinds: int
    """How many of them look different."""
    checked: int
    worst: EditCheck | None
    """The one that moved its value furthest, by its bound; None where none could be evaluated."""


@dataclass(frozen=True, slots=True)
class OutputCheck:
    """One output beside that of the graph as written, computed in float64."""

    name: str
    where: Where
    """What gave it: the graph as compiled in float64, or the program in its own precision."""
    deviation: float
    tolerance: float
    amplification: Amplification | None = None
    """What rounding does to it, measured where a program lies beyond the tolerance of its dtype."""

    @property
    def holds(self) -> bool:
        explained = 0.0 if self.amplification is None else self.amplification.explained
        return self.deviation <= max(self.tolerance, explained)


@dataclass(frozen=True, slots=True)
class Verification:
    """What verifying found."""

    rules: tuple[RuleCheck, ...]
    """The one that came nearest to its bound first."""
    outputs: tuple[OutputCheck, ...]
    replays: bool
    """Whether the edits, made again, give the graph as compiled: nothing happened to it beside them."""
    sizes: Mapping[str, int]
    in_bodies: int
    """Edits inside branches and loops; these are evaluated as a whole."""

    @property
    def wrong(self) -> tuple[EditCheck, ...]:
        return tuple(r.worst for r in self.rules if r.worst is not None and not r.worst.holds)

    @property
    def holds(self) -> bool:
        return self.replays and not self.wrong and all(o.holds for o in self.outputs)


def verify_compilation(
    made: Compilation,
    drawn: RandomInputs | None = None,
    *,
    run: Callable[[Mapping[str, Array]], Mapping[str, Array]] | None = None,
    tolerance: float | None = None,
) -> Verification:
    """Check each kind of edit, the replayed graph, the final graph in float64, and what `run` gives for the inputs.

    Arrays are made up unless given. `tolerance` is for whole outputs, and is by dtype and precision unless given.
    """
    history, final = made.lowered.history, made.lowered.graph
    if history is None:
        raise OptionError("a compilation without its history", hint="compile it with history=True")
    drawn = drawn or random_inputs(history.start)
    with phase("verify") as told:
        told.at(1, 4, "sort edits", done=0.0)
        study = _Study(history)
        told.at(2, 4, "run as written", done=0.1)
        arrays = study.arrays(drawn)
        told.at(3, 4, "edits", done=0.4)
        rules = study.checked(arrays, drawn.sizes)
        told.at(4, 4, "run as compiled", done=0.6)
        wanted = {name: cast(Array, arrays[v]) for name, v in history.start.outputs.items()}
        outputs = _compared("float64", history.start, lambda: outputs_of(final, drawn), wanted, 0.1, tolerance)
        if run is not None:
            rounded = ROUNDED if tolerance is None and made.setup.precision != PRECISIONS[0] else tolerance
            found = _compared("program", history.start, lambda: run(drawn.feeds), wanted, 1.0, rounded)
            outputs += found if tolerance is not None else _explained(history.start, drawn, wanted, found)
        again = history.replay()
    same = all(again.outputs[name] is value for name, value in final.outputs.items())
    return Verification(rules, tuple(outputs), same, drawn.sizes, study.in_bodies)


def _explained(
    graph: Graph, drawn: RandomInputs, exact: Mapping[str, Array], outputs: list[OutputCheck]
) -> list[OutputCheck]:
    """Outputs with what rounding does to them, where one is further off than its dtype allows."""
    if all(o.holds for o in outputs):
        return outputs
    try:
        noise = amplifications(graph, drawn.feeds, drawn.params, exact, drawn.sizes)
    except DovetailError:
        return outputs
    return [o if o.holds else replace(o, amplification=noise[o.name]) for o in outputs]


def outputs_of(graph: Graph, drawn: RandomInputs) -> dict[str, Array]:
    """The outputs of a graph in float64."""
    leaves = bind_leaves(graph, drawn.feeds, _known(graph, drawn.params))
    found = dict(evaluate_in_turn(list(graph.outputs.values()), leaves, lift=True, sizes=drawn.sizes))
    return {name: cast(Array, found[v]) for name, v in graph.outputs.items()}


def _known(graph: Graph, params: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays of the parameters that are left in a graph."""
    names = {str(v.attrs["name"]) for v in graph.parameters}
    return {name: array for name, array in params.items() if name in names}


class _Study:
    """The edits of a history, sorted by what they look like, with some of each kind to be evaluated."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.in_bodies = 0
        self._kinds: dict[tuple[str, Numerics], dict[Hashable, list[_Sample]]] = {}
        self._scopes = ScopeFinder()
        for made in _flat([*history.edits, *history.bodies]):
            self._add(made)

    def _add(self, made: Made) -> None:
        if self._scopes.is_in_body(made.edit):
            self.in_bodies += 1
            return
        scope = self._scopes.scope(made.edit)
        kinds = self._kinds.setdefault((made.edit.rule, made.edit.numerics), {})
        kinds.setdefault(scope.key, []).append(_Sample(made, scope))

    def arrays(self, drawn: RandomInputs) -> dict[Value, Result]:
        """What a run of the graph as written gives: its outputs, and all that the samples stand on."""
        start, twins = self.history.start, self.history.twins
        wanted = {v: None for v in start.outputs.values()}
        for sample in self._samples():
            wanted.update((twins[v], None) for v in sample.given(twins))
        leaves = bind_leaves(start, drawn.feeds, drawn.params)
        return dict(evaluate_in_turn(list(wanted), leaves, lift=True, packed=True, sizes=drawn.sizes))

    def _samples(self) -> Iterator[_Sample]:
        for kinds in self._kinds.values():
            for alike in kinds.values():
                yield from _some(alike)

    def checked(self, arrays: Mapping[Value, Result], sizes: Mapping[str, int]) -> tuple[RuleCheck, ...]:
        twins = self.history.twins
        found: list[RuleCheck] = []
        for (rule, numerics), kinds in self._kinds.items():
            checks = [s.check(twins, arrays, sizes) for alike in kinds.values() for s in _some(alike)]
            done = [c for c in checks if c is not None]
            worst = max(done, key=_nearness, default=None)
            count = sum(map(len, kinds.values()))
            found.append(RuleCheck(rule, numerics, count, len(kinds), len(done), worst))
        return tuple(sorted(found, key=lambda r: -_nearness(r.worst)))


def _nearness(check: EditCheck | None) -> float:
    """How much of its bound an edit used up."""
    if check is None:
        return -1.0
    return check.deviation / check.bound if check.bound else (np.inf if check.deviation else 0.0)


def _flat(all_made: Iterable[Made]) -> Iterator[Made]:
    """Edits with those of their proofs; one whose proof is a single step is that step."""
    for made in all_made:
        proof = made.edit.proof
        yield from (Made(made.sweep, edit) for edit in proof)
        if [(step.before, step.after) for step in proof] != [(made.edit.before, made.edit.after)]:
            yield made


def _some(alike: Sequence[_Sample]) -> Sequence[_Sample]:
    """The first, the last and one between."""
    return alike if len(alike) <= SAMPLES else [alike[0], alike[len(alike) // 2], alike[-1]]


@dataclass(frozen=True, slots=True)
class _Sample:
    """An edit that is evaluated on what the graph as written has in its place."""

    made: Made
    scope: EditScope

    def given(self, twins: Mapping[Value, Value]) -> list[Value]:
        """The values that it stands on: those nearest to it that the graph as written has too.

        What is computed anew for one operand is not taken as given for another: bits could differ between the two.
        """
        edit = self.made.edit
        stop = _Stop(self.scope, twins)
        while True:
            order = walk([*edit.before, *edit.after], until=stop)
            known = [v for v in order if v in stop]
            anew = {v for v in order if v.operands and v not in stop}
            mixed = [v for v in known if not anew.isdisjoint(v.operands)]
            if not mixed:
                return known
            stop.refused.update(mixed)

    def check(
        self, twins: Mapping[Value, Value], arrays: Mapping[Value, Result], sizes: Mapping[str, int]
    ) -> EditCheck | None:
        """Both sides on the same operands; None where the side before cannot be computed either."""
        edit = self.made.edit
        given = {v: np.asarray(cast(Array, arrays[twins[v]]), order="C") for v in self.given(twins)}
        bound = self._bound()

        def found(*values: Value) -> dict[Value, Result]:
            return dict(evaluate_in_turn(values, given, lift=True, packed=True, sizes=sizes))

        try:
            # Together: what both sides read is computed once, and is the same for both.
            sides = found(*edit.before, *edit.after)
        except DovetailError as error:
            try:
                found(*edit.before)
            except DovetailError:
                return None
            return EditCheck(self.made, np.inf, bound, error.message)
        apart = max(_apart(sides[new], sides[old]) for old, new in zip(edit.before, edit.after, strict=True))
        return EditCheck(self.made, apart, bound)

    def _bound(self) -> float:
        bound = BOUNDS[self.made.edit.numerics]
        # One over a count, rounded to its dtype, is taken for one over that count.
        read = self.scope.drops_numbers and self.made.edit.numerics != "exact"
        if not (self.scope.writes_numbers or read):
            return bound
        dtypes = [t.dtype for v in self.made.edit.before for t in tensors(v.type)]
        return max([bound, *(ROUNDINGS * dtype.roundoff for dtype in dtypes)])


class _Stop:
    """Values outside an edit that stand for values of the graph as written."""

    def __init__(self, scope: EditScope, twins: Mapping[Value, Value]) -> None:
        self._inside = scope.inside
        self._twins = twins
        self.refused: set[Value] = set()

    def __contains__(self, value: object) -> bool:
        if value in self._inside or value not in self._twins or value in self.refused:
            return False
        known = cast(Value, value)
        return known.op is not leaf.CONST and isinstance(known.type, TensorType)


def _apart(got: Result, wanted: Result) -> float:
    if isinstance(got, tuple) or isinstance(wanted, tuple):
        if not isinstance(got, tuple) or not isinstance(wanted, tuple) or len(got) != len(wanted):
            return np.inf
        return max([difference(a, b) for a, b in zip(got, wanted, strict=True)], default=0.0)
    return difference(got, wanted)


def _compared(
    where: Where,
    graph: Graph,
    run: Callable[[], Mapping[str, Array]],
    wanted: Mapping[str, Array],
    share: float,
    tolerance: float | None,
) -> list[OutputCheck]:
    away = deviations(run, wanted)
    found: list[OutputCheck] = []
    for name, apart in away.items():
        most = share * tolerance_of(graph.outputs[name].dtype) if tolerance is None else tolerance
        found.append(OutputCheck(name, where, apart, most))
    return found


__all__ = ["EditCheck", "OutputCheck", "RuleCheck", "Verification", "outputs_of", "verify_compilation"]
