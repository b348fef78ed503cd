"""What a contraction computes, whichever kernel takes it: products of one left operand with an elementwise epilogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.dtype import bf16, f16, f32
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused, StepProblem
from dovetail.kernels.loops.body import Body, is_compiled, is_number, number, reads
from dovetail.kernels.loops.ir import Call, Expr

SUMMED_IN_F32 = (f32, f16, bf16)


@dataclass(frozen=True, slots=True)
class Contraction:
    """One left operand, the columns that it is multiplied with, and what becomes of the sums."""

    body: Body
    products: tuple[Value, ...]
    parts: int
    """Into how many parts the columns of a product are taken; 1 where they stay whole."""
    operands: tuple[Value, ...]
    """What the epilogue reads in addition to the sums."""
    ends: Value | None = None
    """Where groups of rows end, each of which has a matrix of its own; None where all rows have the same."""

    @property
    def result(self) -> Value:
        return self.body.results[0]

    @property
    def left(self) -> Value:
        return self.products[0].operands[0]

    @property
    def rights(self) -> tuple[Value, ...]:
        return tuple(dict.fromkeys(p.operands[1] for p in self.products))

    @property
    def streams(self) -> tuple[tuple[int, Size], ...]:
        """For each stream of columns in a panel the right operand, and its first column."""
        width = self.result.shape[-1]
        at = {right: i for i, right in enumerate(self.rights)}
        return tuple((at[p.operands[1]], part * width) for p in self.products for part in range(self.parts))

    def operand(self, view: Value) -> Value:
        """The operand of the step that a view is one of."""
        return self.body.arguments[self.body.views[view].root]


def find_contraction(of: StepProblem[object]) -> Contraction | Refused:
    """Return the contraction where its products are floats with f32 accumulators."""
    contraction = of.once(find_products)
    if isinstance(contraction, Contraction) and contraction.products[0].dtype not in SUMMED_IN_F32:
        return Refused("sums_are_f32", contraction.products[0].dtype.name, ", ".join(d.name for d in SUMMED_IN_F32))
    return contraction


def find_products(of: StepProblem[object]) -> Contraction | Refused:
    """A step as products of one left operand with an elementwise epilogue."""
    body = of.body
    result = body.results[0]
    products = tuple(v for v in body.order if v.op is ops.matmul)
    cuts = [v for v in body.order if v.op is ops.part]
    parts = int(cuts[0].attrs["parts"]) if cuts else 1
    others = [v for v in body.order if v not in products and v not in cuts]
    factors = [v for p in products for v in p.operands]
    if not products:
        return Refused("body_has_a_product", "no matmul")
    if any(v not in body.views or body.views[v].offset != 0 for v in factors):
        return Refused("factors_are_operands", "a factor that is computed, or starts within an operand")
    if len({p.operands[0] for p in products}) > 1:
        return Refused("products_share_the_left_operand", "several")
    known = {*body.order, *body.views}
    for v in others:
        if not is_compiled(v, body.scalars) or not all(x in known or is_number(x) for x in v.operands):
            return Refused("epilogue_is_compiled", v.op.name, "elementwise steps")
    if cuts and (len(products) > 1 or any(v.attrs["axis"] != -1 or v.attrs["parts"] != parts for v in cuts)):
        return Refused("parts_are_equal_columns", f"{len(cuts)} parts of {len(products)} products")
    widest = (*result.shape[:-1], result.shape[-1] * parts)
    for p in products:
        if p.shape != widest:
            return Refused("products_have_the_shape_of_the_result", str(p.type), str(result.type))
    if any(r.shape != result.shape for r in body.results) or (len(body.results) > 1 and parts > 1):
        return Refused("results_have_one_shape", ", ".join(str(r.type) for r in body.results))
    read = {x for v in others for x in v.operands}
    return Contraction(body, products, parts, tuple(v for v in reads(body) if v in read))


def epilogue_of(contraction: Contraction, known: Mapping[Value, Sequence[Expr]]) -> list[Expr]:
    """The results at one element; `known` has the sums and what is read, each once for every part of the columns."""
    exprs: dict[Value, Sequence[Expr]] = dict(known)
    for value in contraction.body.order:
        if value in exprs:
            continue
        exprs |= {x: [number(x)] for x in value.operands if is_number(x)}
        if value.op is ops.part:
            exprs[value] = [exprs[value.operands[0]][value.attrs["index"]]]
            continue
        count = max(len(exprs[x]) for x in value.operands)
        exprs[value] = [
            Call(value.op.name, tuple(exprs[x][i % len(exprs[x])] for x in value.operands), value.dtype)
            for i in range(count)
        ]
    return [exprs[result][0] for result in contraction.body.results]


__all__ = ["SUMMED_IN_F32", "Contraction", "epilogue_of", "find_contraction", "find_products"]
