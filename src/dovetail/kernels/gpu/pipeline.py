"""Software pipelines: operands of the steps of a loop come through stages of shared memory, ahead of their use.

An engine says what fills a stage and what a step does with it. `pipeline` says all else: which stage a step has, what
is filled before the first step, when a step waits and for what, when a stage is filled again, and which phase of a
barrier that is. A stage is filled in one of four forms:

- `CopyGroups`: the threads that use stages copy to them, and count groups of their own copies (cp.async). Where a
  device has no copies in flight, these are loads and stores, and nothing else changes.
- `Bulk`: a few copies of neighbouring bytes, which a barrier in shared memory counts (cp.async.bulk).
- `Boxes`: a thread that does nothing else copies boxes (TMA). A barrier says that a stage is full, another one that it
  is empty, so that no thread waits for all others of its block.
- `Stores`: threads load, cast or compute elements and store them; one stage, with no copies in flight.

A fill for a step that there is not must copy nothing that is not there: `CopyGroups` do not look, as copies have
conditions of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, overload

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Dim, Size
from dovetail.ir.dtype import bool_, i64
from dovetail.kernels.device import LANES
from dovetail.kernels.gpu.gemm.fragments import divided, remainder
from dovetail.kernels.loops.ir import (
    ONE,
    ZERO,
    AllocBarriers,
    Arrive,
    AwaitCopies,
    AwaitPhase,
    Barrier,
    Call,
    CommitCopies,
    CopyBox,
    CopyBulk,
    ExpectBytes,
    Expr,
    Extent,
    FenceShared,
    Loop,
    Name,
    Set,
    Statement,
    ThreadIndex,
    WarpBarrier,
    When,
    add,
    bodies,
)

STEP, LATER, STAGE = Name("round"), Name("later"), Name("stage")
"""The step of a loop, the later one whose stage it fills, and its own stage."""
FULL, EMPTY, ARRIVED = "full", "empty", "arrived"
"""Barriers of stages: those of `Boxes`, and that of `Bulk`."""
IS_FIRST = Call("equal", (ThreadIndex("thread"), ZERO), bool_)
PRODUCER = 128
"""Threads of a warpgroup, of which one copies: registers are given to it as a whole."""
_REGISTERS, _MOST_REGISTERS, _COPYING = 65_536, 240, 24
"""Registers of a multiprocessor, the most of a thread that computes, and those of one that copies."""
_PHASE, _BEFORE, _AHEAD, _NEXT = Name("phase"), Name("before"), Name("ahead"), Name("next")

StepBody: TypeAlias = Callable[[Expr, Expr], Sequence[Statement]]
"""What is done for a step in its stage."""


@dataclass(frozen=True, slots=True)
class StagedOperand:
    """Something that each step needs, with stages of its own."""

    fill: StepBody
    use: StepBody
    meanwhile: Sequence[Statement] = ()
    """What threads do before they wait for the stage of a step, while it is on its way."""
    arrived: Sequence[Statement] = ()
    """What a thread does with a stage that has arrived before it waits for the other threads."""


@dataclass(frozen=True, slots=True)
class HeldOperands:
    """Operands that pass through registers: loaded while a step is computed, and stored as a stage after it."""

    load: Callable[[Expr], Sequence[Statement]]
    store: StepBody


@dataclass(frozen=True, slots=True)
class CopyGroups:
    """Copies by the threads that use them, in groups that each thread counts."""

    ahead: int | None = None
    """Fills on their way while a step is computed; None for as many as stages allow."""
    refill: Literal["before", "between", "after", "never"] = "between"
    """When a step fills a stage again. `between` its wait and its use: one barrier is for both. `before` its wait:
    more copies are on their way, and a second barrier says that the stage was read. `after` its use: no stage has to be
    free for it, and it takes a second barrier too. `never`: each step has a stage of its own."""
    barrier: Barrier | WarpBarrier = Barrier()
    """How the threads that share stages wait for each other."""
    is_fenced: bool = False
    """Whether warpgroups multiply out of stages."""
    starts_rolled: bool = False
    """Whether fills before the first step go one by one: the addresses of all take more registers than there are."""
    committed: int = 0
    """Groups that the use of the first step commits, and that no step waits for, where nothing is refilled."""


@dataclass(frozen=True, slots=True)
class Stores:
    """Loads and stores by the threads that use them."""

    is_fenced: bool = False


@dataclass(frozen=True, slots=True)
class Bulk:
    """Copies of neighbouring bytes that a barrier for each stage counts."""

    by_one: bool = True
    """Whether one thread starts all copies of a stage; else all threads come to a fill, which divides them."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """Copies of boxes by one thread of a warpgroup beyond the warps that use them."""

    warps: int
    """That use a stage, of one block."""
    cluster: int = 1
    """Blocks that use a stage, and fill a share of it each."""
    is_at_once: bool = False
    """Whether each step has a stage of its own: none is filled twice."""
    end: Sequence[Statement] = ()
    """The wait for all uses, which go on while the next step starts: a step has waited for the use before it."""

    def registers(self, blocks: int) -> tuple[int, int]:
        """Of a thread that computes, and of one that copies, which needs few, with some blocks of a multiprocessor."""
        computing = self.warps * LANES
        every = _REGISTERS // (blocks * (computing + PRODUCER)) // 8 * 8
        more = (every * (computing + PRODUCER) - _COPYING * PRODUCER) // computing // 8 * 8
        return min(more, _MOST_REGISTERS), _COPYING


Copies: TypeAlias = CopyGroups | Stores | Bulk


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The steps of a loop by threads that fill stages themselves."""

    stages: int
    steps: Size | Expr
    operands: Sequence[StagedOperand]
    by: Copies
    held: HeldOperands | None = None
    constants: StepBody | None = None
    """The part of a fill whose first copies start while kernels before this one still run; None where there is none."""
    first: StepBody | None = None
    """What fills stages before the first step, where it is not `fill`; of several operands it fills all for that step,
    as one group, and has arrived before."""
    stage_of: Callable[[Expr], Expr] | None = None
    """Where the stage of a step is; None where stages go round."""
    is_rolled: bool = False
    """Whether the code of a step is not repeated."""
    is_named: bool = False
    """Whether steps have names where each has code of its own."""

    @property
    def allocations(self) -> list[AllocBarriers]:
        """Barriers that count bytes. What a block starts early makes them."""
        return [AllocBarriers(ARRIVED, self.stages, 1, is_new=False)] if isinstance(self.by, Bulk) else []

    def early(self) -> list[Statement]:
        """The first copies of constants, which are part of the groups of `start`."""
        assert self.constants is not None, "some operands are constants"
        return [s for n in range(self._ahead) for s in self.constants(Extent(n), Extent(n))]

    def start(self) -> list[Statement]:
        """What is filled before the first step."""
        match self.by:
            case CopyGroups():
                return [*self._held_first(), *self._first_groups()]
            case Bulk():
                return [s for n in range(self.stages) for s in self._first_bulk(n)]
            case Stores():
                return self._held_first()

    def rounds(self) -> list[Statement]:
        """All steps. What they leave on its way has arrived after them; other threads may still read stages."""
        match self.by:
            case CopyGroups(refill="never"):
                return self._whole_groups(self.by)
            case CopyGroups():
                return [self._loop(self._group_step(self.by)), AwaitCopies(0)]
            case Bulk() if isinstance(self.steps, int) and self.steps <= self.stages:
                return [s for n in range(self.steps) for s in self._bulk_used(Extent(n), Extent(n), ZERO)]
            case Bulk():
                return [self._loop(self._bulk_step())]
            case Stores():
                return [self._loop(self._stored_step(self.by))]

    def all(self) -> list[Statement]:
        return [*self.start(), *self.rounds()]

    @property
    def count(self) -> Expr:
        """How many steps there are."""
        return _extent(self.steps)

    def _loop(self, body: Sequence[Statement]) -> Loop:
        return Loop(STEP.name, self.count, tuple(body), rolled=self.is_rolled)

    def _stage(self, step: Expr) -> Expr:
        return remainder(step, self.stages) if self.stage_of is None else self.stage_of(step)

    # Groups

    @property
    def _ahead(self) -> int:
        """Fills of operands, one after the other, that are on their way while a step is computed."""
        every = self.stages * len(self.operands)
        if not isinstance(self.by, CopyGroups) or self.by.refill in ("after", "never"):
            return every
        return every - 1 if self.by.ahead is None else self.by.ahead

    def _held_first(self) -> list[Statement]:
        return [] if self.held is None else [*self.held.load(ZERO), *self.held.store(ZERO, ZERO)]

    def _first_groups(self) -> list[Statement]:
        if isinstance(self.by, CopyGroups) and self.by.starts_rolled:
            fill = (*self.operands[0].fill(_AHEAD, _AHEAD), CommitCopies())
            return [Loop(_AHEAD.name, Extent(self._ahead), fill, rolled=True)]
        if self.first is not None and len(self.operands) > 1:
            return [*self.first(ZERO, self._stage(ZERO)), CommitCopies()]
        statements: list[Statement] = []
        for number in range(self._ahead):
            step, which = divmod(number, len(self.operands))
            fill = self.first or self.operands[which].fill
            statements += [*fill(Extent(step), self._stage(Extent(step))), CommitCopies()]
        return statements

    def _wait(self, by: CopyGroups, pending: int, operand: StagedOperand) -> list[Statement]:
        fence = [FenceShared()] if by.is_fenced else []
        return [AwaitCopies(pending), *operand.arrived, *fence, by.barrier]

    def _whole_groups(self, by: CopyGroups) -> list[Statement]:
        """Steps that fill nothing: all that they need is on its way."""
        assert isinstance(self.steps, int) and self.steps == self.stages, "each step has a stage"
        (operand,), statements = self.operands, list[Statement]()
        for number in range(self.steps):
            step, stage = Extent(number), self._stage(Extent(number))
            wait = self._wait(by, self.steps - 1 - number + (by.committed if number else 0), operand)
            if self.is_named:
                statements += [Set(STEP.name, step), Set(STAGE.name, stage)]
            statements += [*operand.meanwhile, *wait, *operand.use(step, stage)]
        return statements

    def _group_step(self, by: CopyGroups) -> list[Statement]:
        statements: list[Statement] = []
        # The only stage is not filled again between the wait for it and its use.
        how = "before" if by.refill == "between" and self._ahead == 0 else by.refill
        pending = self._ahead if how == "before" else self._ahead - 1
        known: list[Set] = []
        if how == "after":
            # All fills are for the same step; its name, and that of the stage, come before the first wait.
            known = [Set(LATER.name, add(STEP, Extent(self.stages))), Set(STAGE.name, self._stage(STEP))]
            statements += known
        for number, operand in enumerate(self.operands):
            refill = self._refilled(number, known)
            wait = self._wait(by, pending, operand)
            stage = self._stage(STEP)
            named = [] if stage == ZERO or number or how == "after" else [Set(STAGE.name, stage)]
            use = [*named, *operand.use(STEP, ZERO if stage == ZERO else STAGE)]
            match how:
                case "before":
                    statements += [*refill, *operand.meanwhile, *wait, *use, by.barrier]
                case "after":
                    statements += [*operand.meanwhile, *wait, *use, by.barrier, *refill]
                case _:
                    held, kept = self._held()
                    statements += [*operand.meanwhile, *wait, *refill, *held, *use, *kept]
        return statements

    def _refilled(self, number: int, known: list[Set]) -> list[Statement]:
        """The next fill of all, after that of an operand's step. `known` is the later step that has its name."""
        further, which = divmod(number + self._ahead, len(self.operands))
        fill = self.operands[which].fill
        if further == 0:
            return [*fill(STEP, self._stage(STEP)), CommitCopies()]
        later = Set(LATER.name, add(STEP, Extent(further)))
        named = [] if later in known else [later]
        known[:] = [later]
        return [*named, *fill(LATER, self._stage(LATER)), CommitCopies()]

    def _held(self) -> tuple[list[Statement], list[Statement]]:
        """What is loaded before the use of a step, and stored after it."""
        if self.held is None:
            return [], []
        load = [Set(_NEXT.name, add(STEP, ONE)), *self.held.load(_NEXT)]
        return load, [*self.held.store(_NEXT, self._stage(_NEXT))]

    # Stores

    def _stored_step(self, by: Stores) -> list[Statement]:
        (operand,) = self.operands
        if self.held is not None:
            held, kept = self._held()
            return [Barrier(), *held, Set(STAGE.name, self._stage(STEP)), *operand.use(STEP, STAGE), *kept]
        fence = [FenceShared()] if by.is_fenced else []
        fill = [*operand.fill(STEP, ZERO), *operand.meanwhile, *fence]
        return [Barrier(), *fill, Barrier(), *operand.use(STEP, ZERO)]

    # Bulk copies

    def _first_bulk(self, number: int) -> list[Statement]:
        """The first fill of a stage, if a step needs it."""
        fill = self._bulk(Extent(number), Extent(number))
        if isinstance(self.steps, int):
            return fill if number < self.steps else []
        return [When(_less(Extent(number), self.count), tuple(fill))]

    def _bulk(self, step: Expr, stage: Expr) -> list[Statement]:
        assert isinstance(self.by, Bulk)
        copies = [s for operand in self.operands for s in operand.fill(step, stage)]
        expect = ExpectBytes(ARRIVED, stage, _bytes_in(copies))
        return [When(IS_FIRST, (expect, *copies))] if self.by.by_one else [When(IS_FIRST, (expect,)), *copies]

    def _bulk_used(self, step: Expr, stage: Expr, phase: Expr, refill: Sequence[Statement] = ()) -> list[Statement]:
        (operand,), turns = self.operands, 1
        if isinstance(self.steps, int):
            turns = -(-self.steps // self.stages)
        wait = AwaitPhase(ARRIVED, stage, phase, turns)
        return [*operand.meanwhile, wait, *operand.arrived, Barrier(), *refill, *operand.use(step, stage)]

    def _bulk_step(self) -> list[Statement]:
        """All threads have read the stage before this one, which is filled again."""
        further = max(1, self.stages - 1)
        some = _less(LATER, self.count)
        inside = some if self.stages == 1 else _both(_less(ZERO, STEP), some)
        fill = When(inside, tuple(self._bulk(LATER, remainder(LATER, self.stages))))
        refill = [Set(LATER.name, add(STEP, Extent(further))), fill]
        phase = Call("bit_and", (divided(STEP, self.stages), ONE), i64)
        stage = Set(STAGE.name, remainder(STEP, self.stages))
        if self.stages == 1:
            # The only stage is filled once all threads have read it.
            return [stage, *self._bulk_used(STEP, STAGE, phase), Barrier(), *refill]
        return [stage, *self._bulk_used(STEP, STAGE, phase, refill)]


@dataclass(frozen=True, slots=True)
class BoxPipeline:
    """The steps of a loop by warps that wait for a producer, and the loop of the producer: one step at least.

    Both go on from tile to tile, so that stages and phases stay where they are.
    """

    stages: int
    steps: Size | Expr
    fill: StepBody
    use: StepBody
    by: Boxes
    constants: StepBody | None = None
    """The part of a fill whose first copies start while kernels before this one still run; None where there is none."""
    others: StepBody | None = None
    """The rest of a fill, which is not empty: no stage is full before the producer has come to it."""

    @property
    def allocations(self) -> list[AllocBarriers]:
        """The barriers of stages. What a block starts early makes them before."""
        is_new = self.constants is None
        full = AllocBarriers(FULL, self.stages, 1, is_new)
        if self.by.is_at_once:
            return [full]
        return [full, AllocBarriers(EMPTY, self.stages, self.by.warps * self.by.cluster, is_new)]

    def state(self) -> list[Statement]:
        """Where either role is before its first tile."""
        start: list[Statement] = [Set(name.name, ZERO) for name in (STAGE, _PHASE, _BEFORE)]
        return start if self.constants is None else [*start, Set(_AHEAD.name, Extent(self.ahead))]

    @property
    def ahead(self) -> int:
        """Stages that constants may fill before kernels before this one have ended."""
        return min(self.stages, self.steps) if isinstance(self.steps, int) else self.stages

    def early(self, thread: int) -> list[Statement]:
        """The first copies of constants by a thread."""
        assert self.constants is not None and isinstance(self.steps, int), "some operands are constants"
        step = (Set(STAGE.name, STEP), *self._filled(self.constants(STEP, STAGE)))
        one = Call("equal", (ThreadIndex("thread"), Extent(thread)), bool_)
        return [When(one, (Loop(STEP.name, Extent(self.ahead), step, rolled=True),))]

    def _filled(self, copies: Sequence[Statement], step: Expr = STEP) -> list[Statement]:
        """Copies, with all bytes of a stage, whichever block copies them, expected before."""
        return [ExpectBytes(FULL, STAGE, _bytes_in(self.fill(step, STAGE))), *copies]

    # The producer

    def fills(self) -> list[Statement]:
        """The copies of a tile, each stage as soon as it is empty."""
        if self.by.is_at_once:
            return [s for number in range(self._known_steps) for s in self._filled_once(Extent(number))]
        boxes = self._filled(self.fill(STEP, STAGE))
        if self.constants is not None and self.others is not None:
            late = When(Call("less_equal", (_AHEAD, ZERO), bool_), tuple(self._filled(self.constants(STEP, STAGE))))
            boxes = [late, Set(_AHEAD.name, Call("sub", (_AHEAD, ONE), i64)), *self.others(STEP, STAGE)]
        body = (AwaitPhase(EMPTY, STAGE, _other(_PHASE)), *boxes, *self._following())
        return [Loop(STEP.name, _extent(self.steps), body, rolled=True)]

    def _filled_once(self, number: Extent) -> list[Statement]:
        """The fill of a step that has a stage of its own; constants may have been copied."""
        copies = self._filled(self.fill(number, STAGE), number) if self.others is None else self.others(number, STAGE)
        return [Set(STAGE.name, number), *copies]

    def end(self) -> list[Statement]:
        """Wait until all stages are empty: other blocks of the cluster arrive at barriers of this one until then."""
        body = (AwaitPhase(EMPTY, STAGE, _other(_PHASE)), *self._following())
        return [Loop(STEP.name, Extent(self.stages), body, rolled=True)]

    # Those that use stages

    def rounds(self) -> list[Statement]:
        """All steps of a tile. A use that starts waits for the one before, whose stage is then empty."""
        if self.by.is_at_once:
            each = [(Set(STAGE.name, Extent(n)), *self._used(Extent(n), ZERO)) for n in range(self._known_steps)]
            return [*(s for step in each for s in step), *self.by.end]
        if self.stages == 1:
            body = [*self._used(STEP, _PHASE), *self.by.end, self._released(STAGE), *self._following()]
            return [Loop(STEP.name, _extent(self.steps), tuple(body))]
        body = (*self._used(STEP, _PHASE), self._released(_BEFORE, _less(ZERO, STEP)), *self._passed())
        return [Loop(STEP.name, _extent(self.steps), body), *self.by.end, self._released(_BEFORE)]

    def overlapped(self, works: Sequence[Sequence[Statement]]) -> list[Statement]:
        """The same with some work during the uses of each of the first steps."""
        statements: list[Statement] = []
        for number, work in enumerate(works):
            statements += [*self._used(Extent(number), _PHASE), *([self._released(_BEFORE)] if number else [])]
            statements += [*self._passed(), *work]
        rest = self._known_steps - len(works)
        body = (*self._used(STEP, _PHASE), self._released(_BEFORE), *self._passed())
        statements += [Loop(STEP.name, Extent(rest), body)] if rest else []
        return [*statements, *self.by.end, self._released(_BEFORE)]

    @property
    def _known_steps(self) -> int:
        assert isinstance(self.steps, int), "each step has code of its own"
        return self.steps

    def _used(self, step: Expr, phase: Expr) -> list[Statement]:
        return [AwaitPhase(FULL, STAGE, phase), *self.use(step, STAGE)]

    def _released(self, stage: Expr, condition: Expr | None = None) -> When:
        """A stage is empty for a warp: lane i says so to block i of the cluster."""
        lanes = _less(ThreadIndex("lane"), Extent(self.by.cluster))
        inside = lanes if condition is None else _both(lanes, condition)
        return When(inside, (Arrive(EMPTY, stage, self.by.cluster),))

    def _passed(self) -> list[Statement]:
        return [Set(_BEFORE.name, STAGE), *self._following()]

    def _following(self) -> list[Statement]:
        """Go on to the next stage; after the last one, phases change."""
        more = _less(Name("following"), Extent(self.stages))
        return [
            Set("following", add(STAGE, ONE)),
            Set(_PHASE.name, Call("where", (more, _PHASE, _other(_PHASE)), i64)),
            Set(STAGE.name, Call("where", (more, Name("following"), ZERO), i64)),
        ]


@overload
def pipeline(
    stages: int,
    steps: Size | Expr,
    fill: StepBody,
    use: StepBody,
    by: Boxes,
    *,
    constants: StepBody | None = None,
    first: StepBody | None = None,
) -> BoxPipeline: ...
@overload
def pipeline(
    stages: int,
    steps: Size | Expr,
    fill: StepBody,
    use: StepBody,
    by: Copies,
    *,
    constants: StepBody | None = None,
    first: StepBody | None = None,
    held: HeldOperands | None = None,
    stage_of: Callable[[Expr], Expr] | None = None,
    is_rolled: bool = False,
    is_named: bool = False,
    meanwhile: Sequence[Statement] = (),
    arrived: Sequence[Statement] = (),
) -> Pipeline: ...
def pipeline(
    stages: int,
    steps: Size | Expr,
    fill: StepBody,
    use: StepBody,
    by: Copies | Boxes,
    *,
    constants: StepBody | None = None,
    first: StepBody | None = None,
    held: HeldOperands | None = None,
    stage_of: Callable[[Expr], Expr] | None = None,
    is_rolled: bool = False,
    is_named: bool = False,
    meanwhile: Sequence[Statement] = (),
    arrived: Sequence[Statement] = (),
) -> Pipeline | BoxPipeline:
    """The pipeline of one operand, or of several that share stages: `fill` copies all of them for a step."""
    if isinstance(by, Boxes):
        return BoxPipeline(stages, steps, fill, use, by, constants, first)
    operand = StagedOperand(fill, use, meanwhile, arrived)
    return Pipeline(stages, steps, (operand,), by, held, constants, first, stage_of, is_rolled, is_named)


def _extent(steps: Size | Expr) -> Expr:
    return Extent(steps) if isinstance(steps, (int, Dim)) else steps


def _less(x: Expr, y: Expr) -> Expr:
    return Call("less", (x, y), bool_)


def _both(x: Expr, y: Expr) -> Expr:
    return Call("bit_and", (x, y), bool_)


def _other(phase: Expr) -> Expr:
    """The other phase of two that take turns."""
    return Call("sub", (ONE, phase), i64)


def _bytes_in(copies: Sequence[Statement]) -> int:
    """Bytes that statements copy, each of the iterations of loops."""
    count = 0
    for s in copies:
        if isinstance(s, CopyBulk):
            count += s.nbytes
        elif isinstance(s, CopyBox):
            count += s.nbytes * s.blocks
        inner = sum([_bytes_in(body) for body in bodies(s)])
        if inner and isinstance(s, Loop):
            assert isinstance(s.extent, Extent) and isinstance(s.extent.size, int), "bytes are known"
            inner *= s.extent.size
        count += inner
    return count


__all__ = [
    "ARRIVED",
    "EMPTY",
    "FULL",
    "IS_FIRST",
    "LATER",
    "PRODUCER",
    "STAGE",
    "STEP",
    "BoxPipeline",
    "Boxes",
    "Bulk",
    "Copies",
    "CopyGroups",
    "HeldOperands",
    "Pipeline",
    "StagedOperand",
    "StepBody",
    "Stores",
    "pipeline",
]  # fmt: skip
