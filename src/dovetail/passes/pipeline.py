"""The pipeline: named passes from a graph as written to a graph that a target runs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Literal, get_args

from dovetail.dataclass import dataclass
from dovetail.declare.cost import total_seconds
from dovetail.declare.fused import FusedOp
from dovetail.declare.group import Group
from dovetail.derive.edit import Log
from dovetail.derive.fuse import Fused, fuse
from dovetail.derive.join import join
from dovetail.derive.missed import Applied, Missed, still_missed
from dovetail.derive.near import Round, near_misses
from dovetail.egraph.algebra import ALGEBRA
from dovetail.egraph.decide import Decided, Finder, Vocabulary, decide
from dovetail.egraph.saturate import Budget
from dovetail.errors import OptionError
from dovetail.ir.dim import Size
from dovetail.ir.graph import Graph
from dovetail.ir.verify import verify
from dovetail.nearest import nearest
from dovetail.passes.batch import batch_regions
from dovetail.passes.canonicalize import RULES, canonicalize
from dovetail.passes.claims import Claims, Dispatch
from dovetail.passes.epilogues import fuse_epilogues
from dovetail.passes.history import History
from dovetail.passes.integers import RULES as INTEGER_RULES
from dovetail.passes.integers import use_integers
from dovetail.passes.legalize import DispatchRow, legalize, spell_out
from dovetail.passes.lower_blocks import lower_blocks
from dovetail.passes.lower_bodies import lower_bodies
from dovetail.passes.lowerings import LOWERINGS
from dovetail.passes.places import Places, places
from dovetail.passes.recompute.choice import Choice, Halves
from dovetail.passes.recompute.rebuild import RECOMPUTE, with_choice
from dovetail.passes.regions import mark_regions
from dovetail.passes.widen import widen_inside
from dovetail.progress import phase

SEARCHING = ("egraph", "egglog")
"""The engines that keep all alternatives and choose by the cost of the whole graph."""
StageName = Literal["hir", "mir", "canonical", "fused", "legal"]
"""The stages of a graph, each named for what the passes of that stage make."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that decides what the pipeline does to a graph."""

    claims: Claims
    ops: tuple[FusedOp[...], ...]
    groups: tuple[Group, ...] = ()
    without: frozenset[str] = frozenset()
    """Passes and rules that are switched off, by name."""
    policy: Mapping[str, Dispatch] = field(default_factory=dict[str, Dispatch])
    """How ops are dispatched, by name; `*` stands for all others."""
    strict: bool = False
    """Whether only rewrites that keep every bit are allowed in canonicalisation."""
    precision: str = "exact"
    """How products with weights in blocks read activations."""
    sizes: Mapping[str, Size] = field(default_factory=dict[str, Size])
    """What symbols count as in estimates."""
    verify_each_pass: bool = False
    engine: str = "egraph"
    """How fusions are chosen: `greedy`, or by one of those that search."""
    search_seconds: int = 0
    """How long an engine that searches may look for rules to apply; 0 stands for as long as it takes."""
    worth: float | None = None
    """Seconds that saving a byte for the backward pass is worth; None: as usual, and no product is computed again."""
    history: bool = False
    """Whether every edit is written down, to be replayed and verified."""


@dataclass(frozen=True, slots=True)
class Recomputation:
    """A choice of what is saved for the backward pass, and the graph that it was made for."""

    halves: Halves
    choice: Choice


@dataclass(frozen=True, slots=True)
class State:
    """A graph on its way, with what happened to it so far."""

    graph: Graph
    applied: tuple[Applied, ...] = ()
    missed: tuple[Missed, ...] = ()
    dispatch: tuple[DispatchRow, ...] = ()
    rounds: Sequence[Round] = ()
    """What fusing was given, stratum by stratum."""
    decided: Decided | None = None
    """How the e-graph came to its choice, where it was asked."""
    log: Log | None = None
    """Where edits are written down, if anybody asked."""
    canonical: Graph | None = None
    """The graph as canonicalisation left it."""
    recompute: Recomputation | None = None
    """What the backward pass saves and computes again, where there is one."""

    def after(self, fused: Fused) -> State:
        """The state after a pass that fuses: what it did is added to what is already known."""
        moved = fused.graph.moved
        return replace(
            self,
            graph=fused.graph,
            applied=(*(a.follow(moved) for a in self.applied), *fused.applied),
            missed=(*(m.follow(moved) for m in self.missed), *fused.missed),
            rounds=self.rounds or fused.rounds,
        )

    def rewritten(self, graph: Graph) -> State:
        """The state after a pass that only rewrites."""
        return self.after(Fused(graph, (), ()))


@dataclass(frozen=True, slots=True)
class Pass:
    """A named step of the pipeline and the stage that it belongs to."""

    name: str
    stage: StageName
    run: Callable[[State, Setup], State]
    share: float = 1.0
    """About how much of the time of all passes it takes, as a percentage; progress is told by it."""


@dataclass(frozen=True, slots=True)
class PassRecord:
    """What one pass did, for dumps and reports."""

    name: str
    stage: StageName
    before: Graph
    after: Graph
    seconds: float


@dataclass(frozen=True, slots=True)
class Lowered:
    """A graph that a target runs, and how it got there."""

    state: State
    records: tuple[PassRecord, ...]
    written: Graph
    """The graph as written, with its blocks spelled out; reports speak of its nodes."""
    history: History | None = None
    """Every edit, where the setup asked for them."""

    @property
    def graph(self) -> Graph:
        return self.state.graph

    @property
    def places(self) -> Places:
        """Where the nodes as written are after each pass."""
        return places(self.written, [r.after for r in self.records if r.stage != "mir"])

    def stage(self, name: StageName) -> Graph:
        """The graph as it stood at the end of a stage."""
        if not self.records:
            return self.graph
        if name == "hir":
            return self.records[0].before
        reached = [r.after for r in self.records if _STAGES.index(r.stage) <= _STAGES.index(name)]
        return reached[-1]


_STAGES: tuple[StageName, ...] = get_args(StageName)


def _lower_blocks(state: State, setup: Setup) -> State:
    return state.rewritten(lower_blocks(state.graph, state.log))


def _canonicalize(state: State, setup: Setup) -> State:
    if state.canonical is not None and _same_values(state.graph, state.canonical):
        return state
    found = canonicalize(state.graph, without=setup.without, strict=setup.strict, log=state.log)
    return replace(state.rewritten(found), canonical=found)


def _same_values(one: Graph, other: Graph) -> bool:
    return all(value is other.outputs[name] for name, value in one.outputs.items())


def _use_integers(state: State, setup: Setup) -> State:
    if setup.strict or not setup.claims.multiplies_bytes:
        return state
    return state.rewritten(use_integers(state.graph, without=setup.without, log=state.log))


def _recompute(state: State, setup: Setup) -> State:
    if not state.graph.forward:
        return state
    halves = Halves(state.graph, setup.claims.machine, setup.sizes)
    if not halves.readers:
        return state
    usual = setup.worth is None
    choice = halves.choose(halves.usual_worth() if setup.worth is None else setup.worth, products=not usual)
    made = with_choice(halves, choice, state.log)
    return replace(state.rewritten(made), recompute=Recomputation(halves, choice))


def _fuse(state: State, setup: Setup) -> State:
    """Choose fusions; ops that no kernel of the target computes are never slower than what they are made of."""
    state = _without_unknown(state, setup)
    trial = _fused(replace(state, log=None), setup)
    refused = _refused_early(trial.graph, setup)
    if not refused:
        return trial if state.log is None else _fused(state, setup)
    rows = tuple([DispatchRow(op, "common", count, why) for (op, why), count in refused.items()])
    names = {op for op, _ in refused}
    others = replace(setup, ops=tuple([op for op in setup.ops if op.name not in names]))

    def with_bodies(log: Log | None) -> State:
        """The ops are taken, and spelled out: a body may be the better form."""
        taken = _fused(replace(state, log=log), setup)
        kept = replace(taken, applied=tuple([a for a in taken.applied if a.rule not in names]))
        graph = spell_out(taken.graph.settled(), names, log)
        return _fused(replace(kept.rewritten(graph), graph=graph.settled()), others)

    def as_written(log: Log | None) -> State:
        """What is written is kept as it is."""
        graph = spell_out(state.graph, names, log)
        return _fused(replace(state.rewritten(graph), graph=graph.settled(), log=log), others)

    def price(attempt: Callable[[Log | None], State]) -> float:
        return total_seconds(attempt(None).graph.values, setup.claims.machine, setup.sizes)

    chosen = min((as_written, with_bodies), key=price)
    return replace(chosen(state.log), dispatch=(*state.dispatch, *rows))


def _without_unknown(state: State, setup: Setup) -> State:
    """The state with declared ops spelled out that no kernel is for and no pattern has: rules see their bodies."""
    known = {op.name for op in worthwhile(setup)}
    rows: list[DispatchRow] = []
    while True:
        unknown = Counter(
            v.op.name
            for v in state.graph.values
            if isinstance(v.op, FusedOp)
            and v.op.name not in known
            and not setup.claims.has(v.op.name)
            and v.op.name not in LOWERINGS
            and _wish(setup, v.op.name) != "force_native"
        )
        if not unknown:
            return replace(state, dispatch=(*state.dispatch, *rows))
        why = f"{setup.claims.target} has no kernel for "
        rows += [DispatchRow(op, "common", count, why + op) for op, count in unknown.items()]
        graph = spell_out(state.graph, unknown, state.log)
        state = replace(state.rewritten(graph), graph=graph.settled())


def _wish(setup: Setup, op: str) -> Dispatch:
    return setup.policy.get(op, setup.policy.get("*", "prefer_native"))


def _refused_early(graph: Graph, setup: Setup) -> Counter[tuple[str, str]]:
    """The ops of values that have to be spelled out before fusing, each with the reason, and how many they are."""
    found: Counter[tuple[str, str]] = Counter()
    for value in graph.values:
        conditions = setup.claims.native.get(value.op.name, ())
        if any(c.early for c in conditions) and _wish(setup, value.op.name) != "force_native":
            refusal = setup.claims.refusal(value)
            if refusal is not None and refusal.early:
                found[value.op.name, refusal.reason] += 1
    return found


def _fused(state: State, setup: Setup) -> State:
    if setup.engine in SEARCHING:
        budget = Budget(seconds=setup.search_seconds or None)
        words, machine = vocabulary(setup), setup.claims.machine
        decided = decide(state.graph, words, machine=machine, sizes=setup.sizes, budget=budget)
        if state.log is not None:
            _note_choice(state.graph, decided, setup, state.log)
        return replace(state.after(decided.fused), decided=decided)
    ops, machine, sizes = worthwhile(setup), setup.claims.machine, setup.sizes
    return state.after(fuse(state.graph, ops, machine=machine, sizes=sizes, log=state.log))


def _note_choice(graph: Graph, decided: Decided, setup: Setup, log: Log) -> None:
    """Write down what the e-graph chose; where it kept what greedy fusion had made, that."""
    if decided.selection is not None:
        log.begin("roots")
        for edit in decided.selection.edits():
            log.add(edit)
        return
    words, machine, sizes = vocabulary(setup), setup.claims.machine, setup.sizes
    fused = fuse(graph, words.ops, machine=machine, sizes=sizes, log=log)
    join(fused.graph.settled(), words.groups, machine=machine, sizes=sizes, log=log)


def with_near_misses(lowered: Lowered, *, anew: bool = False) -> tuple[Missed, ...]:
    """All misses, those included that fit but for one op. Only reports ask for these, so only they pay for them.

    With `anew` every layer is looked at, also where many are alike: then their roots are those that greedy fusion has.
    """
    state = lowered.state
    decided = None if anew else state.decided
    near = near_misses(state.rounds, state.applied) if decided is None else decided.near_misses()
    index = next((i for i, r in enumerate(lowered.records) if r.name == "fuse"), len(lowered.records))
    for record in lowered.records[index + 1 :]:
        near = [m.follow(record.after.moved) for m in near]
    return still_missed([*state.missed, *near])


def vocabulary(setup: Setup) -> Vocabulary:
    """What the e-graph derives its rules from: all that is switched on."""
    on = setup.without.isdisjoint
    return Vocabulary(
        ops=worthwhile(setup),
        groups=[] if "join" in setup.without else [g for g in _groups(setup) if on([g.name])],
        rewrites=[] if "canonicalize" in setup.without else [rule for rule in RULES if on([rule.name])],
        identities=[identity for identity in ALGEBRA if on([identity.name])],
        strict=setup.strict,
        finder=_by_egglog() if setup.engine == "egglog" else None,
    )


def _groups(setup: Setup) -> list[Group]:
    """The groups, with members of those kinds that the target computes as one."""
    merged = setup.claims.merges_kinds
    return [*setup.groups] if merged is None else [group.with_kinds(merged) for group in setup.groups]


def _by_egglog() -> Finder:
    from dovetail.egraph.egglog.session import by_egglog  # rules in egglog's text: no other engine needs them

    return by_egglog


def _join(state: State, setup: Setup) -> State:
    if setup.engine in SEARCHING and "fuse" not in setup.without:
        return state
    admitted = [g for g in _groups(setup) if not setup.strict or g.numerics == "exact"]
    groups = [g for g in admitted if g.name not in setup.without]
    return state.after(join(state.graph, groups, machine=setup.claims.machine, sizes=setup.sizes, log=state.log))


def _legalize(state: State, setup: Setup) -> State:
    claims = setup.claims.strictly() if setup.strict else setup.claims
    legal = legalize(state.graph, claims, policy=setup.policy, lowerings=LOWERINGS, log=state.log)
    return replace(state.rewritten(legal.graph), dispatch=(*state.dispatch, *legal.dispatch))


def _widen_inside(state: State, setup: Setup) -> State:
    return state.after(widen_inside(state.graph, setup.claims, state.log))


def _mark_regions(state: State, setup: Setup) -> State:
    return state.after(mark_regions(state.graph, setup.claims.regions, state.log))


def _fuse_epilogues(state: State, setup: Setup) -> State:
    return state.after(fuse_epilogues(state.graph, setup.claims, sizes=setup.sizes, log=state.log))


def _batch_regions(state: State, setup: Setup) -> State:
    return state.after(batch_regions(state.graph, state.log)) if setup.claims.batches_regions else state


def _lower_bodies(state: State, setup: Setup) -> State:
    inner = replace(setup, policy={})
    on = [step for step in IN_BODIES if step.name not in setup.without]

    def lowered(body: Graph) -> Graph:
        found = State(body)
        for step in on:
            found = step.run(replace(found, graph=found.graph.settled()), inner)
        return found.graph

    return state.rewritten(lower_bodies(state.graph, lowered, state.log))


PASSES: tuple[Pass, ...] = (
    Pass("lower_blocks", "mir", _lower_blocks, share=8),
    Pass("canonicalize", "canonical", _canonicalize, share=10),
    Pass("use_integers", "canonical", _use_integers),
    Pass(RECOMPUTE, "canonical", _recompute),
    Pass("fuse", "fused", _fuse, share=60),
    Pass("join", "fused", _join, share=7),
    Pass("legalize", "legal", _legalize, share=6),
    Pass("tidy", "legal", _canonicalize, share=4),
    Pass("widen_inside", "legal", _widen_inside),
    Pass("mark_regions", "legal", _mark_regions, share=3),
    Pass("fuse_epilogues", "legal", _fuse_epilogues),
    Pass("batch_regions", "legal", _batch_regions),
    Pass("lower_bodies", "legal", _lower_bodies),
)
_BODIES = ("fuse", "join", "legalize", "tidy", "widen_inside", "mark_regions", "fuse_epilogues")
IN_BODIES = tuple(step for step in PASSES if step.name in _BODIES)
"""The passes that bodies of branches and loops go through."""
FUSING = frozenset({"fuse", "join", "widen_inside", "mark_regions", "fuse_epilogues", "batch_regions"})
"""The passes that a target does without if it fuses itself."""
REQUIRED = frozenset({"lower_blocks", "legalize"})
"""Passes without which a target cannot run the graph."""


def worthwhile(setup: Setup) -> list[FusedOp[...]]:
    """The ops to look for: what the target runs as one kernel, what those are made of, and all recognised forms.

    A form that the target does not run is expanded again, and its body may be the better spelling.
    """
    wanted = [op for op in setup.ops if op.name not in setup.without]
    native = [op for op in wanted if setup.claims.has(op.name) or op.stage == "recognise"]
    parts: set[FusedOp[...]] = set(native)
    pending = list(native)
    while pending:
        for part in pending.pop().parts:
            if part not in parts:
                parts.add(part)
                pending.append(part)
    return [op for op in wanted if op in parts]


def check_names(setup: Setup, passes: Sequence[Pass] = PASSES) -> None:
    """Every name that is switched off is a pass or a rule."""
    rules = {op.name for op in setup.ops} | {g.name for g in setup.groups}
    known = {p.name for p in passes} | rules | {rule.name for rule in (*RULES, *INTEGER_RULES, *ALGEBRA)}
    for name in sorted(setup.without):
        if name not in known:
            near = nearest(name, sorted(known))
            hint = f"did you mean {near[0]}?" if near else f"passes: {', '.join(p.name for p in passes)}"
            raise OptionError(f"there is no pass or rule {name!r}", hint=hint)
        if name in REQUIRED:
            raise OptionError(f"{name} cannot be switched off", hint="no target runs a graph without it")


def lower(graph: Graph, setup: Setup, passes: Sequence[Pass] = PASSES) -> Lowered:
    """Run the passes that are switched on, one after the other."""
    check_names(setup, passes)
    verify(graph)
    log = Log() if setup.history else None
    state = State(graph, log=log)
    written = graph
    records: list[PassRecord] = []
    on = [step for step in passes if step.name not in setup.without]
    with phase("optimise") as told:
        for number, step in enumerate(on, 1):
            told.at(number, len(on), step.name, done=sum(s.share for s in on[: number - 1]) / sum(s.share for s in on))
            started = time.perf_counter()
            before = state.graph.settled()
            state = step.run(replace(state, graph=before), setup)
            if step.stage == "mir":
                written = state.graph
            records.append(PassRecord(step.name, step.stage, before, state.graph, time.perf_counter() - started))
            if log is not None:
                log.entitle(step.name)
            if setup.verify_each_pass:
                verify(state.graph)
    history = None if log is None else History(graph, written, tuple(sweep for sweep in log.sweeps if sweep.edits))
    return Lowered(replace(state, missed=still_missed(state.missed)), tuple(records), written, history)
