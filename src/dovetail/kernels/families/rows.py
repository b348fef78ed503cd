"""Rows: a body of elementwise steps and reductions as one kernel.

A tile is a row, or a bundle of rows. For each reduction there is one loop over the row; those that do not wait for each
other share it. A last loop writes the results. What a later loop needs again and is dear to compute is kept, in the
result's own row where it fits, else in the worker's scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.declare.fused import FusedOp
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import f32, f64
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.families.policy import FAMILIES
from dovetail.kernels.loops.axes import AxisFactors, Factors, find_axes, is_view
from dovetail.kernels.loops.body import Body, is_number, not_compiled, number, reads
from dovetail.kernels.loops.folds import Fold, finished, is_reduction, reduced_axes, reduction
from dovetail.kernels.loops.ir import Call, Expr, Kernel, KernelKind, Load, Statement, Store, sizes_in
from dovetail.kernels.loops.nest import Nest, Placed
from dovetail.kernels.spec import Job, TensorLocations, Tiles
from dovetail.ops.region import region
from dovetail.plan.plan import Step


def offer_rows(of: StepProblem[object]) -> Offer | Refused:
    """The kernel of a reduction, or of a fused op that has one in its body."""
    value = of.value
    if not (isinstance(value.op, FusedOp) or value.op is region or is_reduction(value)):
        return Refused("op_reduces", value.op.name)
    body = of.body
    if not any(is_reduction(v) for v in body.order):
        return Refused("body_reduces", "no reduction")
    odd = not_compiled(body, lambda v: is_reduction(v) or is_view(v))
    if odd is not None:
        return Refused("steps_are_compiled", odd, "elementwise steps, reductions and views")
    axes = find_axes(body, reduced_axes)
    if axes is None:
        return Refused("axes_are_shared", "views that split or merge axes of a row in another way")
    rows = {frozenset(axes.flat(v)) for v in body.order if is_reduction(v)}
    if len(rows) != 1:
        return Refused("reductions_share_a_row", f"{len(rows)} sets of rows", "1")
    (row,) = rows
    if any(r not in body.order or not row <= set(axes.flat(r)) for r in body.results):
        return Refused("results_are_computed_by_row", "a result without the axes of the rows")
    return Offer(lambda: _Rows(of.step, of.locations, body, axes, row).job())


@dataclass(slots=True)
class _Pass:
    """One loop over the row: reductions that end in it, results that it writes, and what it puts aside."""

    group: Factors
    folds: dict[Value, Fold] = field(default_factory=dict[Value, Fold])
    results: list[Value] = field(default_factory=list[Value])
    inside: dict[Value, None] = field(default_factory=dict[Value, None])
    """What is computed in every step of it."""
    aside: dict[Value, None] = field(default_factory=dict[Value, None])

    @property
    def roots(self) -> list[Value]:
        return [*(v.operands[0] for v in self.folds), *self.results]


class _Rows:
    """Writes one kernel."""

    def __init__(
        self, step: Step, locations: TensorLocations, body: Body, axes: AxisFactors, row: frozenset[int]
    ) -> None:
        self.step, self.body, self.axes, self.row = step, body, axes, row
        read = reads(body)
        operands = list(dict.fromkeys(body.arguments[body.views[v].root] for v in read))
        self.bindings: dict[str, Value] = {f"x{i}": v for i, v in enumerate(operands)}
        names = {v: name for name, v in self.bindings.items()}
        self.leaves = {
            v: Placed(
                names[body.arguments[body.views[v].root]],
                v.dtype,
                body.views[v].offset,
                axes.strides(v, body.views[v].strides),
            )
            for v in read
        }
        self.written: dict[Value, list[Placed]] = {}
        for i, (value, result) in enumerate(zip(step.results, body.results, strict=True)):
            self.bindings[f"y{i}"] = value
            target = Placed(f"y{i}", value.dtype, 0, axes.strides(result, locations(value).strides))
            self.written.setdefault(result, []).append(target)
        tensors = [*self.leaves.values(), *(t for targets in self.written.values() for t in targets)]
        order = [f for f in axes.flat(body.results[0]) if f in row]
        loops = {f for t in tensors for f in t.strides} - row
        alignment = locations.alignment(self.bindings)
        self.nest = Nest(axes.sizes, order, tensors, loops=loops, tiles=locations.target.tiles, alignment=alignment)
        self.kept: dict[Value, str] = {}
        self.inverse: dict[Value, str] = {}
        """The names of 1 / total, for totals that many elements are divided by."""
        self.put: dict[Value, Placed | Load] = {}
        """Where a value is stored that an earlier loop put aside."""
        self.ready: set[Value] = set()
        """What was put aside by the loops that are written so far."""

    def job(self) -> Job:
        passes = self._passes()
        self._put_aside(passes)
        statements: list[Statement] = []
        for one in passes:
            statements += self._written(one)
        body = self.nest.tile(statements)
        pointers = tuple(self.bindings)
        kernel = Kernel(
            "rows",
            pointers,
            tuple(p for p in pointers if p.startswith("y")),
            "tile",
            body,
            scratch=self.nest.scratch,
            sizes=sizes_in(body),
            kind=KernelKind.ROWS,
        )
        work: Size = 0
        for one in passes:
            work = work + product(self.nest.shape(one.group)) * self.nest.lanes * (1 + len(one.inside) // 4)
        return Job(kernel, self.bindings, Tiles(self.nest.tiles, work))

    def _group(self, value: Value) -> Factors:
        """The factors that a value has in addition to those of the row, in the order of loops."""
        return self.nest.group([f for f in self.axes.flat(value) if f not in self.row])

    def _is_of_the_row(self, value: Value) -> bool:
        """Whether it is one number for the whole row."""
        return not is_number(value) and self.row >= set(self.axes.flat(value))

    def _passes(self) -> list[_Pass]:
        """The loops in order: reductions by how many others they wait for, then the results."""
        level: dict[Value, int] = {}
        passes: dict[tuple[int, Factors], _Pass] = {}
        for value in self.body.order:
            level[value] = max((level.get(v, 0) for v in value.operands), default=0)
            if is_reduction(value):
                group = self._group(value.operands[0])
                passes.setdefault((level[value], group), _Pass(group)).folds[value] = reduction(value)
                level[value] += 1
        last = 1 + max(level.values())
        for result in self.written:
            group = self._group(result)
            passes.setdefault((last, group), _Pass(group)).results.append(result)
        ordered = [passes[key] for key in sorted(passes)]
        for one in ordered:
            one.inside = dict.fromkeys(self._stepwise(one.roots))
        return ordered

    def _stepwise(self, roots: Iterable[Value]) -> list[Value]:
        """What has to be computed in every step of a loop: nothing that is one number for the row."""
        stop = _Either(self.leaves, self._is_of_the_row)
        return [v for v in walk(roots, until=stop) if v not in stop and not is_number(v)]

    def _put_aside(self, passes: list[_Pass]) -> None:
        """Decide what an earlier loop stores for a later one."""
        first: dict[Value, _Pass] = {}
        for one in passes:
            for value in one.results:
                if value in first and value not in self.put:
                    self._put(value, first[value], self.written[value][0])
            pending = one.roots
            met: dict[Value, None] = {}
            while pending:
                value = pending.pop()
                own = value in one.inside and self._group(value) == one.group
                if value in met or value not in one.inside or (own and value in self.put):
                    continue
                if own and value in first and self._is_dear(value):
                    host = self._host(value, passes[-1])
                    room = self.nest.can_reserve(one.group)
                    if room and self.nest.policy.is_shared and value not in self.written:
                        host = None  # registers are nearer
                    if host is not None or room:
                        self._put(value, first[value], host)
                        continue
                met[value] = None
                pending += value.operands
            one.inside = {v: None for v in one.inside if v in met}
            first.update({v: one for v in one.inside if v not in first and self._group(v) == one.group})

    def _put(self, value: Value, where: _Pass, host: Placed | None) -> None:
        where.aside[value] = None
        if host is not None:
            self.put[value] = host
        else:
            room = self.nest.reserve(value.dtype, where.group)
            self.put[value] = Load(room, self.nest.aside(room, where.group))

    def _host(self, value: Value, last: _Pass) -> Placed | None:
        """A result that is written in the last loop only and whose row can hold the value until then."""
        if value in self.written:
            return self.written[value][0]
        if len(last.results) > 1:
            return None  # one result would be written over what another still reads
        taken = [p for p in self.put.values() if isinstance(p, Placed)]
        for result in last.results:
            target = self.written[result][0]
            fits = target.dtype is value.dtype and set(self.axes.flat(result)) == set(self.axes.flat(value))
            if fits and result not in self.put and not any(target is t for t in taken):
                return target
        return None

    def _is_dear(self, value: Value) -> bool:
        """Whether computing it again costs more than storing and loading it."""
        below = self._stepwise([value])
        loads = {v for u in below for v in u.operands if v in self.leaves and not self._is_of_the_row(v)}
        return len(loads) > 1 or sum(_COST.get(v.op.name, 1) for v in below) >= FAMILIES.kept_cost

    def _written(self, one: _Pass) -> list[Statement]:
        """The statements of a loop, and of what is done before and after it."""
        nest, group = self.nest, one.group
        statements = [*self._keep_before(one)]
        exprs: dict[Value, Expr] = {}
        # What is put aside comes first, so that a step that needs it here takes it as it is computed.
        for value in (*(v for v in self.body.order if v in one.aside), *one.roots):
            self._expr(value, group, exprs)
        stores: list[Statement] = []
        for value in one.aside:
            place = self.put[value]
            stores.append(
                nest.store(place, group, exprs[value])
                if isinstance(place, Placed)
                else Store(place.tensor, place.at, exprs[value])
            )
        for value in one.results:
            stores += [nest.store(t, group, exprs[value]) for t in self.written[value] if self.put.get(value) is not t]
        names = {v: f"f{len(self.kept) + i}" for i, v in enumerate(one.folds)}
        count = product(tuple(self.axes.sizes[f] for f in group))
        statements += nest.each([nest.keep(names[v], fold.first(fold.total, count)) for v, fold in one.folds.items()])
        statements += self._loop(one, names, exprs, stores)
        ends: list[Statement] = []
        for value, fold in one.folds.items():
            self.kept[value] = f"{names[value]}v"
            total = nest.read(names[value], fold.total)
            ends.append(nest.keep(self.kept[value], finished(value, total, count)))
        self.ready |= one.aside.keys()
        return [*statements, *nest.each(ends)]

    def _loop(
        self,
        one: _Pass,
        names: dict[Value, str],
        values: dict[Value, Expr],
        stores: list[Statement],
    ) -> tuple[Statement, ...]:
        nest = self.nest
        before: list[Statement] = []
        body: list[Statement] = [*stores]
        after: list[Statement] = []
        for value, fold in one.folds.items():
            name, x = names[value], values[value.operands[0]]
            if fold.in_blocks and nest.sums_in_blocks(one.group):
                before.append(nest.keep(f"{name}p", fold.first(fold.part, 1)))
                part = nest.read(f"{name}p", fold.part)
                body.append(nest.keep(f"{name}p", fold.take(part, x)))
                after.append(nest.keep(name, fold.take(nest.read(name, fold.total), part)))
            else:
                body.append(nest.keep(name, fold.take(nest.read(name, fold.total), x)))
        return nest.summed(one.group, before, body, after) if before else nest.over(one.group, body, reassociate=True)

    def _keep_before(self, one: _Pass) -> tuple[Statement, ...]:
        """What is one number for the row and not kept yet is computed before the loop, not in every step of it."""
        if not self.nest.shape(one.group):
            return ()
        read = [u for v in one.inside for u in v.operands if not is_number(u) and self._is_of_the_row(u)]
        statements: list[Statement] = []
        exprs: dict[Value, Expr] = {}
        for value in dict.fromkeys(read):
            if value not in self.leaves and value not in self.kept:
                name = f"k{len(self.kept)}"
                statements.append(self.nest.keep(name, self._expr(value, (), exprs)))
                self.kept[value] = name
        for total in dict.fromkeys(v.operands[1] for v in one.inside if _is_share(v)):
            if total not in self.inverse:
                self.inverse[total] = f"q{len(self.inverse)}"
                inverse = Call("reciprocal", (self._expr(total, (), exprs),), total.dtype)
                statements.append(self.nest.keep(self.inverse[total], inverse))
        return self.nest.each(statements)

    def _expr(self, root: Value, group: Factors, exprs: dict[Value, Expr]) -> Expr:
        """Return a value at the element where the loops over a group stand; each operand is computed once."""
        ready = {v for v in self.ready if self._group(v) == group}
        known = ready | self.kept.keys() | self.leaves.keys() | exprs.keys()
        for value in walk([root], until=known):
            if value in exprs:
                continue
            if value in self.kept:
                exprs[value] = self.nest.read(self.kept[value], value.dtype)
            elif value in ready:
                place = self.put[value]
                exprs[value] = self.nest.load(place, group) if isinstance(place, Placed) else place
            elif value in self.leaves:
                exprs[value] = self.nest.load(self.leaves[value], group)
            elif is_number(value):
                exprs[value] = number(value)
            elif _is_share(value) and value.operands[1] in self.inverse:
                inverse = self.nest.read(self.inverse[value.operands[1]], value.dtype)
                exprs[value] = Call("mul", (exprs[value.operands[0]], inverse), value.dtype)
            elif value.op.elementwise:
                name = "exp_falling" if _is_falling(value) else value.op.name
                exprs[value] = Call(name, tuple(exprs[v] for v in value.operands), value.dtype)
            else:
                exprs[value] = exprs[value.operands[0]]  # a view arranges factors anew, and loops run over factors
        return exprs[root]


def _is_falling(value: Value) -> bool:
    """exp(x - max x), which is 1 at most."""
    if value.op is not ops.exp or value.operands[0].op is not ops.sub:
        return False
    x, top = value.operands[0].operands
    return top.op is ops.reduce_max and top.operands[0] is x


def _is_share(value: Value) -> bool:
    """exp(x - max x) / sum of them. The sum is at least 1, so that multiplying by its inverse overflows nowhere."""
    if value.op is not ops.div or value.dtype not in (f32, f64):
        return False
    raised, total = value.operands
    if total.op is not ops.reduce_sum or total.operands[0] is not raised or not _is_falling(raised):
        return False
    return raised.operands[0].operands[1].attrs["axes"] == total.attrs["axes"]


class _Either:
    """Values of a mapping, and those of which a condition holds."""

    def __init__(self, known: Iterable[Value], holds: Callable[[Value], bool]) -> None:
        self.known = frozenset(known)
        self.holds = holds

    def __contains__(self, value: object) -> bool:
        return value in self.known or (isinstance(value, Value) and self.holds(value))


_COST = {"exp": 10, "log": 10, "tanh": 10, "erf": 10, "sigmoid": 10, "pow": 20, "div": 4, "sqrt": 4, "rsqrt": 6}
