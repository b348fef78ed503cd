"""Attend, lanes along queries: the pieces of a block of keys, each a function of its own.

Queries are laid out as columns, so that a vector holds one feature of as many queries as it has lanes. Keys and values
are read where they lie, one number at a time for all lanes. Nothing is ever summed across lanes.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.codegen.llvm.simd import LOG2_E, STORED, VectorText
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.spec import Part

DEPTH = 4
"""How many features one round of the loop over them takes, at least."""
FURTHER = 2
"""So many times as many where keys are multiplied as they are loaded: it takes few registers."""
MOST_POINTERS = 8
"""Keys that have pointers of their own: there are 16 registers for them and all else."""
KEYS = 4
"""Keys whose values are taken in one round, there."""
BLOCK = 64
"""Keys whose scores are kept at once: with their values they fit the first cache."""
LINE = 64
"""Bytes that come from memory together."""


def key_rows(vectors: CpuDevice, wide: int) -> int:
    """Keys or features that are summed at once, for so many vectors of queries: half of the registers are sums.

    Where keys are multiplied lane by lane, each is held in a register of its own.
    """
    return vectors.registers // 4 if _by_lane(vectors) else vectors.registers // 2 // wide


def _by_lane(vectors: CpuDevice) -> bool:
    """Whether numbers are loaded as vectors and multiplied lane by lane, as Neon does."""
    return vectors.lanes == DEPTH and vectors.registers >= 32


def make_scores(
    vectors: CpuDevice, wide: int, d: int, dv: int, *, with_top: bool, with_mask: bool = False, asks: bool = True
) -> Part:
    """s[j, i] = sum over c of q[c, i] * k[j, c] for a few keys and `wide` vectors of queries.

    A key's own `mask` is added. If it `asks`, the next keys and the values of these are fetched meanwhile.
    With `top`, the highest scores are kept there.
    """
    t = VectorText(vectors.lanes)
    size = 4 * vectors.lanes
    keys = key_rows(vectors, wide)
    rows = [t.at("%k", t.let(f"mul i64 {j}, %stride") if j else 0) for j in range(keys)]
    for j in range(keys if asks else 0):
        following = t.at("%k", t.let(f"mul i64 {j + keys}, %stride"))
        value = t.at("%v", t.let(f"mul i64 {j}, %value_stride") if j else 0)
        for place, width in ((following, d), (value, dv)):
            for at in range(0, 4 * width, LINE):
                t.prefetch(t.at(place, at))

    def add(sums: list[str], queries: str, at: Sequence[str], feature: int, held: Sequence[str] = ()) -> None:
        vs = [t.load(t.at(queries, (feature * wide + i) * size), size) for i in range(wide)]
        _add_products(t, sums, vs, [t.at(row, 4 * feature) for row in at], [t.lane(x, feature) for x in held])

    # Where there is a register for each, pointers move: an index would cost an instruction more.
    moving = rows if t.spreads_in_place and keys <= MOST_POINTERS else []
    depth = DEPTH * (FURTHER if moving else 1)
    rounds = d // depth
    with t.carried("0", str(rounds), ["zeroinitializer"] * (keys * wide), moving) as (c, held):
        sums = held[: keys * wide]
        queries = t.at("%q", t.let(f"mul i64 {c}, {depth * wide * size}"))
        features = t.let(f"mul i64 {c}, {4 * depth}")
        at = held[keys * wide :] or [t.at(row, features) for row in rows]
        lanes = [t.load(row) for row in at] if _by_lane(vectors) else []
        for i in range(depth):
            add(sums, queries, at, i, lanes)
        held[:] = [*sums, *(t.fixed(t.at(row, 4 * depth)) for row in at[: len(moving)])]
    sums = held[: keys * wide]
    for c in range(rounds * depth, d):
        add(sums, "%q", rows, c)
    for j in range(keys if with_mask else 0):
        mask = t.spread_from(t.at("%mask", 4 * j))
        sums[j * wide : (j + 1) * wide] = [t.add(x, mask) for x in sums[j * wide : (j + 1) * wide]]
    for i, x in enumerate(sums):
        t.store(x, t.at("%s", i * size), size)
    for i in range(wide if with_top else 0):
        place = t.at("%top", i * size)
        # Compared last, it would be stored lane by lane where it is higher, and the next load would have to wait.
        highest = [t.larger(sums[i], t.load(place, size)), *sums[i + wide :: wide]]
        while len(highest) > 1:
            highest = [t.larger(x, y) for x, y in zip(highest[::2], highest[1::2], strict=True)]
        t.store(highest[0], place, size)
    how = "".join(f"_{n}" for n, is_so in (("top", with_top), ("mask", with_mask), ("near", not asks)) if is_so)
    name = f"attend_scores_{vectors.lanes}_{vectors.registers}_{wide}_{d}_{dv}{how}"
    given = "ptr noalias readonly %q, ptr noalias readonly %k, i64 %stride, ptr noalias %s"
    given += ", ptr noalias readonly %v, i64 %value_stride, ptr noalias %top, ptr noalias readonly %mask"
    return finished(name, given, t)


def make_values(vectors: CpuDevice, wide: int, features: int) -> Part:
    """o[c, i] = o[c, i] * old[i] + sum over j of p[j, i] * v[j, c] for a few features."""
    t = VectorText(vectors.lanes)
    size = 4 * vectors.lanes

    def add(sums: list[str], p: str, row: str) -> None:
        ps = [t.load(t.at(p, i * size), size) for i in range(wide)]
        whole = features // t.lanes * t.lanes if _by_lane(vectors) else 0
        held = [t.load(t.at(row, 4 * c)) for c in range(0, whole, t.lanes)]
        spread = [t.lane(held[c // t.lanes], c % t.lanes) for c in range(whole)]
        _add_products(t, sums, ps, [t.at(row, 4 * c) for c in range(features)], spread)

    kept = [t.load(t.at("%old", i * size), size) for i in range(wide)]
    sums = [t.mul(t.load(t.at("%o", i * size), size), kept[i % wide]) for i in range(features * wide)]
    done = "0"
    if t.spreads_in_place:
        rounds = t.let(f"sdiv i64 %count, {KEYS}")
        done = t.let(f"mul i64 {rounds}, {KEYS}")
        with t.carried("0", rounds, sums) as (i, sums):
            first = t.let(f"mul i64 {i}, {KEYS}")
            p = t.fixed(t.at("%p", t.let(f"mul i64 {first}, {wide * size}")))
            row = t.at("%v", t.let(f"mul i64 {first}, %stride"))
            for j in range(KEYS):
                row = t.fixed(t.at(row, "%stride" if j else 0))
                add(sums, t.at(p, j * wide * size), row)
    with t.carried(done, "%count", sums) as (j, sums):
        add(sums, t.at("%p", t.let(f"mul i64 {j}, {wide * size}")), t.at("%v", t.let(f"mul i64 {j}, %stride")))
    for i, x in enumerate(sums):
        t.store(x, t.at("%o", i * size), size)
    name = f"attend_values_{vectors.lanes}_{wide}_{features}"
    given = "ptr noalias readonly %p, ptr noalias readonly %v, i64 %stride, i64 %count, ptr noalias %o"
    return finished(name, f"{given}, ptr noalias readonly %old", t)


def _add_products(
    t: VectorText, sums: list[str], xs: Sequence[str], places: Sequence[str], held: Sequence[str]
) -> None:
    """Add the products of vectors with the number at each place; the first are `held` in all lanes already.

    Every second one is spread by the multiplication that loads it: more of them would ask too much of the first cache.
    """
    wide = len(xs)
    for j, place in enumerate(places):
        here = slice(j * wide, (j + 1) * wide)
        if t.spreads_in_place and j % 2:
            sums[here] = [t.fma_spread(x, place, total) for x, total in zip(xs, sums[here], strict=True)]
            continue
        number = held[j] if j < len(held) else t.spread_from(place)
        sums[here] = [t.fma(x, number, total) for x, total in zip(xs, sums[here], strict=True)]


def make_weights(vectors: CpuDevice, wide: int, *, twos: bool) -> Part:
    """s = exp(s - top), or with `twos` 2**(s - top), and their sum is added to l.

    A row whose top is -inf has seen no key: its weights are 0.
    """
    t = VectorText(vectors.lanes)
    size = 4 * vectors.lanes
    low = t.number(float("-inf"))
    tops = [t.load(t.at("%top", i * size), size) for i in range(wide)]
    tops = [t.select(t.compare("oeq", x, low), t.number(0.0), x) for x in tops]
    with t.carried("0", "%count", [t.load(t.at("%l", i * size), size) for i in range(wide)]) as (j, sums):
        row = t.at("%s", t.let(f"mul i64 {j}, {wide * size}"))
        for i in range(wide):
            at = t.at(row, i * size)
            p = weight(t, t.sub(t.load(at, size), tops[i]), twos=twos)
            sums[i] = t.add(sums[i], p)
            t.store(p, at, size)
    for i in range(wide):
        t.store(sums[i], t.at("%l", i * size), size)
    name = f"attend_weights_{vectors.lanes}_{wide}{'_twos' if twos else ''}"
    return finished(name, "ptr noalias %s, i64 %count, ptr noalias readonly %top, ptr noalias %l", t)


def weight(t: VectorText, x: str, *, twos: bool) -> str:
    """What a score weighs that is so far from the highest; with `twos` one step less is half of it."""
    return t.exp2_of_negative(x if twos else t.mul(x, t.number(LOG2_E)))


def make_columns(vectors: CpuDevice, stored: str) -> Part:
    """to[c, r] = factor * x[r, c] for as many rows as a vector has lanes; rows beyond the last repeat it."""
    t = VectorText(vectors.lanes)
    lanes, item = vectors.lanes, STORED[stored]
    last = t.let("sub i64 %rows, 1")
    rows: list[str] = []
    for r in range(lanes):
        inside = t.let(f"icmp slt i64 {r}, {last}")
        row = t.let(f"select i1 {inside}, i64 {r}, i64 {last}")
        rows.append(t.at("%x", t.let(f"mul i64 {row}, %stride")))
    factor = t.spread("%factor")
    dense = t.let(f"icmp eq i64 %step, {item}")
    squares = t.let(f"select i1 {dense}, i64 {t.let(f'udiv i64 %count, {lanes}')}, i64 0")
    with t.loop("0", squares) as i:
        first = t.let(f"mul i64 {i}, {lanes}")
        at = t.let(f"mul i64 {first}, {item}")
        found = [t.load_as(t.at(row, at), stored) for row in rows]
        to = t.at("%to", t.let(f"mul i64 {first}, %apart"))
        for c, x in enumerate(t.transposed(found)):
            t.store(t.mul(x, factor), t.at(to, t.let(f"mul i64 {c}, %apart") if c else 0))
    with t.loop(t.let(f"mul i64 {squares}, {lanes}"), "%count") as c:
        at = t.let(f"mul i64 {c}, %step")
        to = t.at("%to", t.let(f"mul i64 {c}, %apart"))
        for r, row in enumerate(rows):
            x = t.number_at(t.at(row, at), stored)
            t.put_number(t.let(f"fmul float {x}, %factor"), t.at(to, 4 * r), "float")
    given = "ptr noalias readonly %x, i64 %stride, i64 %step, i64 %rows, i64 %count, float %factor"
    return finished(f"attend_columns_{lanes}_{stored}", f"{given}, ptr noalias %to, i64 %apart", t)


def make_out(vectors: CpuDevice, dv: int, stored: str) -> Part:
    """y[r, c] = o[c, r] * factor[r] for the first rows of one vector; 0 where the factor is 0."""
    t = VectorText(vectors.lanes)
    lanes, size, item = vectors.lanes, 4 * vectors.lanes, STORED[stored]
    factor = t.load("%factor", size)
    none = t.compare("oeq", factor, t.number(0.0))

    def scaled(c: str) -> str:
        x = t.mul(t.load(t.at("%o", t.let(f"mul i64 {c}, %apart")), size), factor)
        return t.select(none, t.number(0.0), x)

    def square(first: str) -> None:
        turned = t.transposed([scaled(t.let(f"add i64 {first}, {i}")) for i in range(lanes)])
        to = t.at("%y", t.let(f"mul i64 {first}, {item}"))
        whole = t.let(f"icmp eq i64 %rows, {lanes}")
        with t.when(whole):
            for r, x in enumerate(turned):
                t.store_as(x, t.at(to, t.let(f"mul i64 {r}, %stride") if r else 0), stored)
        with t.when(t.let(f"xor i1 {whole}, true")):
            for r, x in enumerate(turned):
                t.store(x, t.at("%buffer", r * size), size)
            with t.loop("0", "%rows") as r:
                x = t.load(t.at("%buffer", t.let(f"mul i64 {r}, {size}")), size)
                t.store_as(x, t.at(to, t.let(f"mul i64 {r}, %stride")), stored)

    if dv >= lanes:
        with t.loop("0", str(dv // lanes)) as i:
            square(t.let(f"mul i64 {i}, {lanes}"))
        if dv % lanes:
            square(str(dv - lanes))
    else:
        with t.loop("0", str(dv)) as c:
            t.store(scaled(c), "%buffer", size)
            with t.loop("0", "%rows") as r:
                x = t.number_at(t.at("%buffer", t.let(f"mul i64 {r}, 4")), "float")
                row = t.at("%y", t.let(f"mul i64 {r}, %stride"))
                t.put_number(x, t.at(row, t.let(f"mul i64 {c}, {item}")), stored)
    given = "ptr noalias readonly %o, i64 %apart, ptr noalias readonly %factor, ptr noalias %y, i64 %stride, i64 %rows"
    return finished(f"attend_out_{lanes}_{dv}_{stored}", f"{given}, ptr noalias %buffer", t)


def make_copy(vectors: CpuDevice, d: int, stored: str) -> Part:
    """to[r, c] = x[r, c] as f32, rows one behind the other."""
    t = VectorText(vectors.lanes)
    item = STORED[stored]
    with t.loop("0", "%rows") as r:
        row = t.at("%x", t.let(f"mul i64 {r}, %stride"))
        to = t.at("%to", t.let(f"mul i64 {r}, {4 * d}"))
        dense = t.let(f"icmp eq i64 %step, {item}")
        whole = t.let(f"select i1 {dense}, i64 {d // vectors.lanes}, i64 0")
        with t.loop("0", whole) as i:
            first = t.let(f"mul i64 {i}, {vectors.lanes}")
            x = t.load_as(t.at(row, t.let(f"mul i64 {first}, {item}")), stored)
            t.store(x, t.at(to, t.let(f"mul i64 {first}, 4")))
        with t.loop(t.let(f"mul i64 {whole}, {vectors.lanes}"), str(d)) as c:
            x = t.number_at(t.at(row, t.let(f"mul i64 {c}, %step")), stored)
            t.put_number(x, t.at(to, t.let(f"mul i64 {c}, 4")), "float")
    given = "ptr noalias readonly %x, i64 %stride, i64 %step, i64 %rows, ptr noalias %to"
    return finished(f"attend_copy_{vectors.lanes}_{d}_{stored}", given, t)


def make_rows(vectors: CpuDevice, d: int) -> Part:
    """to[r, c] = x[r, c], rows of f32 one behind the other that lie apart in x."""
    t = VectorText(vectors.lanes)
    whole = d // vectors.lanes * vectors.lanes
    with t.loop("0", "%rows") as r:
        row = t.at("%x", t.let(f"mul i64 {r}, %stride"))
        to = t.at("%to", t.let(f"mul i64 {r}, {4 * d}"))
        for c in range(0, whole, vectors.lanes):
            t.store(t.load(t.at(row, 4 * c)), t.at(to, 4 * c))
        with t.loop(str(whole), str(d)) as c:
            at = t.let(f"mul i64 {c}, 4")
            t.put_number(t.number_at(t.at(row, at), "float"), t.at(to, at), "float")
    given = "ptr noalias readonly %x, i64 %stride, i64 %rows, ptr noalias %to"
    return finished(f"attend_rows_{vectors.lanes}_{d}", given, t)


def finished(name: str, given: str, t: VectorText) -> Part:
    """The function as a module of its own."""
    t("ret void")
    head = f"define void @{name}({given}) nounwind {{"
    return Part(name, "\n".join([*t.used, head, "entry:", *t.slots, *t.lines, "}"]))


__all__ = [
    "Part", "finished", "key_rows", "make_columns", "make_copy", "make_out", "make_rows", "make_scores",
    "make_values", "make_weights", "weight",
]  # fmt: skip
