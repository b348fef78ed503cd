"""What classes of the loop language declare of their fields, and what passes see of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, field, fields
from typing import Any, cast, get_args

import pytest

from dovetail.dataclass import dataclass
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import bf16, bool_, f32, i32
from dovetail.kernels.loops import ir
from dovetail.kernels.loops.analysis import loads_in, reads_what_it_wrote
from dovetail.kernels.loops.ir import (
    BARRIER,
    BODY,
    PART,
    SETS,
    ZERO,
    Alloc,
    AllReduce,
    AtomicUpdate,
    AwaitPhase,
    AwaitProducts,
    Barrier,
    Call,
    CopyAsync,
    CopyBox,
    CopyBulk,
    Expr,
    Extent,
    FromLane,
    GridBarrier,
    Kernel,
    Load,
    LoadMatrices,
    Loop,
    MultiplyMatrices,
    MultiplyShared,
    Name,
    Number,
    Prefetch,
    Receipt,
    Receive,
    Roles,
    Set,
    Statement,
    Store,
    SubGrid,
    Tensor,
    TensorMap,
    ThreadIndex,
    When,
    barriers,
    bodies,
    defs,
    everything,
    expand,
    needs,
    pointers_in,
    reading,
    reads,
    rewrite,
    sizes_in,
    uses,
    walk,
    with_bodies,
    writes,
    writing,
)
from dovetail.kernels.loops.launch_fusion.composed import Renaming
from dovetail.kernels.loops.persistent.bodies import in_phase, without
from dovetail.kernels.matrix_instruction import MMA_F16

STATEMENTS: tuple[type[Any], ...] = get_args(ir.Statement)
EXPRESSIONS: tuple[type[Any], ...] = get_args(ir.Expr)
RECORDS = (Tensor, TensorMap, Receipt)
N = symbol("n")


def tensor(pointer: str, axes: int = 1, *, dtype: Any = f32, offset: Any = 0, space: ir.Space = "global") -> Tensor:
    return Tensor(pointer, dtype, (4,) * axes, offset, space)


@dataclass(frozen=True, slots=True)
class Toy:
    """A statement that no pass has heard of."""

    feature = "matrices"

    name: str = field(metadata=SETS)
    source: Tensor = field(metadata=reading("source_at"))
    source_at: tuple[Expr, ...] = field(metadata=PART)
    target: Tensor = field(metadata=writing("target_at"))
    target_at: tuple[Expr, ...] = field(metadata=PART)
    barrier: str = field(metadata=BARRIER)
    body: tuple[Statement, ...] = field(metadata=BODY)
    width: int = 8


INNER = Set("inner", Load(tensor("deep"), (Name("i"),)))
TOY = Toy(
    "toy", tensor("from"), (Name("i"),), tensor("to"), (Call("add", (Name("j"), Extent(N)), ir.i64),), "b", (INNER,)
)
BODY_OF_TOY = cast(Sequence[Statement], (Loop("i", Extent(4), (cast(Any, TOY),)),))


@pytest.mark.parametrize("kind", [*STATEMENTS, *EXPRESSIONS, *RECORDS], ids=lambda kind: kind.__name__)
def test_every_class_declares_all_of_its_fields(kind: type[Any]) -> None:
    roles = {f.name: f.metadata["role"].kind for f in fields(kind) if "role" in f.metadata}
    for f in fields(kind):
        # Fields whose types have parts or names in them say which.
        is_plain = not any([word in str(f.type) for word in ("Expr", "Statement", "Tensor", "Receipt", "str", "Size")])
        assert is_plain or f.name in roles, f"{kind.__name__}.{f.name}"
    for name, role in [(f.name, f.metadata["role"]) for f in fields(kind) if "role" in f.metadata]:
        assert not role.at or roles[role.at] == "part", f"{name} is at {role.at}"


def test_a_field_that_may_have_parts_must_say_what_it_is() -> None:
    @dataclass(frozen=True, slots=True)
    class Silent:
        """It does not say that it has an expression."""

        value: Expr

    with pytest.raises(TypeError, match=r"Silent\.value does not say what it is"):
        list(walk(cast(Any, (Silent(ZERO),))))


@pytest.mark.parametrize("kind", STATEMENTS, ids=lambda kind: kind.__name__)
def test_every_statement_says_what_it_needs(kind: type[Any]) -> None:
    assert kind.feature in get_args(ir.Feature)
    assert "feature" not in {f.name for f in fields(kind)}


def test_a_new_statement_is_seen_by_everything() -> None:
    assert [type(s).__name__ for s in everything(BODY_OF_TOY)] == ["Loop", "Toy", "Set"]
    assert [x.pointer for x, _ in reads(BODY_OF_TOY)] == ["from", "deep"]
    assert [x.pointer for x, _ in writes(BODY_OF_TOY)] == ["to"]
    assert pointers_in(BODY_OF_TOY) == {"from", "to", "deep"}
    assert defs(BODY_OF_TOY) == {"i", "toy", "inner"}
    assert uses(BODY_OF_TOY) == {"i", "j"}
    assert [name for _, name in barriers(BODY_OF_TOY)] == ["b"]
    assert needs(BODY_OF_TOY) == {"threads", "matrices"}
    assert sizes_in(cast(Any, BODY_OF_TOY)) == (N,)
    assert bodies(cast(Any, TOY)) == [(INNER,)]


def test_passes_look_into_a_new_statement() -> None:
    renamed = Renaming(lambda n: f"{n}_1", {"from": "x"}).body(cast(Any, BODY_OF_TOY))
    (loop,) = renamed
    assert isinstance(loop, Loop)
    toy = cast(Any, loop.body[0])
    assert (toy.name, toy.source.pointer, toy.target.pointer, toy.barrier) == ("toy_1", "x", "to_1", "b_1")
    assert toy.body == (Set("inner_1", Load(tensor("deep_1"), (Name("i_1"),))),)
    assert toy.source_at == (Name("i_1"),) and toy.width == 8
    (kept,) = without(cast(Any, BODY_OF_TOY), Set)
    assert cast(Any, kept).body[0].body == ()


def test_a_rewrite_keeps_what_it_does_not_change() -> None:
    shared = Call("mul", (Name("i"), Name("i")), ir.i64)
    body = (Store(tensor("y"), (ZERO,), Call("add", (shared, shared), ir.i64)), Set("k", Name("j")))
    assert rewrite(body, lambda part: None) is body
    found = rewrite(body, lambda part: ThreadIndex("lane") if part == Name("i") else None)
    assert found[1] is body[1], "a statement without the name is itself"
    value = cast(Any, found[0]).value
    assert value.operands[0] is value.operands[1], "what is used twice stays one object"
    assert value.operands[0] == Call("mul", (ThreadIndex("lane"), ThreadIndex("lane")), ir.i64)


def test_a_rewrite_does_not_take_a_part_for_one_that_is_gone() -> None:
    renaming = Renaming(lambda n: n + "'", {})
    found = [renaming.of(Name(f"n{i}")) for i in range(1000)]  # each is gone before the next one is made
    assert [x.name for x in found] == [f"n{i}'" for i in range(1000)]


def test_statements_take_the_place_of_one() -> None:
    body = (When(Number(True, bool_), (Barrier(), Set("a", ZERO))), Barrier())
    found = expand(body, lambda s: [s, s] if isinstance(s, Barrier) else None)
    assert found == (When(Number(True, bool_), (Barrier(), Barrier(), Set("a", ZERO))), Barrier(), Barrier())
    assert expand(body, lambda s: None)[0] is body[0]
    assert with_bodies(body[1], lambda inner: ()) is body[1]


def test_all_bodies_of_all_statements_are_walked() -> None:
    leaf = [Set(str(i), ZERO) for i in range(6)]
    body: tuple[Statement, ...] = (
        Loop("i", ZERO, (leaf[0],)),
        When(ZERO, (leaf[1],)),
        Roles(4, (leaf[2],), (leaf[3],)),
        SubGrid(1, 32, 0, (leaf[4],)),
        GridBarrier(1, (leaf[5],)),
    )
    assert [s for s in everything(body) if isinstance(s, Set)] == leaf
    assert all([isinstance(s.value, Number) for s in everything(expand(body, _numbered)) if isinstance(s, Set)])


def _numbered(s: Statement) -> list[Statement] | None:
    return [Set(s.name, Number(1, f32))] if isinstance(s, Set) else None


LOADED = (Load(tensor("index", dtype=ir.i64), (Name("i"),)),)
X, Y, A, B = (tensor(name) for name in "xyab")
AT, FIRST = LOADED, (ZERO,)
MAP = TensorMap("x", 0, (8, 8), (16,), 8)
EVERY: dict[str, tuple[Statement, str, str]] = {
    "store": (Store(Y, AT, Load(X, FIRST)), "index x", "y"),
    "prefetch": (Prefetch(X, AT, Extent(16)), "index x", ""),
    "atomic": (AtomicUpdate(tensor("y", dtype=i32), AT, "add", Load(X, FIRST)), "index x y", "y"),
    "copy": (CopyAsync(Y, FIRST, X, AT, Number(True, bool_)), "index x", "y"),
    "bulk": (CopyBulk(Y, FIRST, X, AT, 16, "b", ZERO), "index x", "y"),
    "box": (CopyBox(Y, FIRST, MAP, (ZERO, *AT), "b", ZERO), "index x", "y"),
    "load": (LoadMatrices(Y, FIRST, X, AT), "index x", "y"),
    "multiply": (MultiplyMatrices(Y, FIRST, A, AT, B, FIRST, MMA_F16), "index a b y", "y"),
    "multiply_shared": (MultiplyShared(Y, A, AT, B, FIRST, 8, True, True, 0), "index a b y", "y"),
    "await_products": (AwaitProducts(Y, 8), "y", "y"),
    "receive": (Receive((Receipt(tensor("x", space="stamped"), AT, Y, 4),)), "index x", "y"),
    "from_lane": (FromLane("a", "b", LOADED[0], f32), "index", ""),
    "await_phase": (AwaitPhase("b", ZERO, LOADED[0]), "index", ""),
    "loop": (Loop("i", LOADED[0], ()), "index", ""),
    "when": (When(LOADED[0], ()), "index", ""),
}


@pytest.mark.parametrize("case", EVERY)
def test_tensors_that_a_statement_reads_and_writes(case: str) -> None:
    statement, *names = EVERY[case]
    read, written = ({*each.split()} for each in names)
    inside: tuple[Statement, ...] = (Loop("k", Extent(2), (When(Number(True, bool_), (statement,)),)),)
    assert {t.pointer for t, _ in reads(inside)} == read
    assert {t.pointer for t, _ in writes(inside)} == written
    assert pointers_in(inside) == read | written


def test_an_index_goes_with_its_tensor() -> None:
    copy = CopyAsync(tensor("y", 2), (ZERO, Name("i")), tensor("x", 2), (Name("j"), ZERO), Number(True, bool_))
    assert reads((copy,)) == [(tensor("x", 2), (Name("j"), ZERO))]
    assert writes((copy,)) == [(tensor("y", 2), (ZERO, Name("i")))]
    box = CopyBox(tensor("y"), (ZERO,), TensorMap("x", 6, (8, 8), (16,), 8), (Name("c"), Name("r")), "b", ZERO)
    ((source, at),) = reads((box,))
    assert (source.pointer, source.strides, source.offset, at) == ("x", (2, 16), 6, (Name("c"), Name("r")))


def test_names_that_statements_set_and_read() -> None:
    body: tuple[Statement, ...] = (
        FromLane("a", "b", Name("c"), f32),
        AllReduce("d", "add", f32),
        Loop("i", Name("e"), (Set("f", Name("i")),)),
        Alloc("room", bf16, 4, "shared"),
        Receive((), "pause_1"),
        Receive(()),
    )
    assert defs(body) == {"a", "d", "i", "f"}
    assert uses(body) == {"b", "c", "d", "e", "i", "pause_1"}


def test_every_class_is_made_again_by_its_fields() -> None:
    """A rewrite passes fields by position."""
    for kind in (*STATEMENTS, *EXPRESSIONS, *RECORDS):
        assert all([f.init and not f.kw_only for f in fields(kind)])
        assert all([f.default_factory is MISSING for f in fields(kind)])


def test_phases_of_a_new_pass_are_awaited_wherever_they_are() -> None:
    roles = Roles(4, (AwaitPhase("b", ZERO, ZERO),), ())
    (found,) = in_phase((roles,))
    assert isinstance(found, Roles) and found.body != roles.body


def test_a_scalar_that_is_loaded_where_it_was_stored_is_found_at_any_depth() -> None:
    y = tensor("y")
    store = Store(y, (ZERO,), Name("a", f32))
    roles = Roles(1, (Set("a", Load(y, (ZERO,))),), ())
    assert reads_what_it_wrote(Kernel("k", ("y",), ("y",), "tile", (store, roles)))
    loop = Loop("i", Extent(4), (Set("a", Load(y, (ZERO,))),), kind="parallel")
    assert not reads_what_it_wrote(Kernel("k", ("y",), ("y",), "tile", (store, loop)))
    assert len(list(loads_in(Load(tensor("x"), LOADED)))) == 2
