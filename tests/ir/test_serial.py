"""Saved graphs: everything comes back, and no file does harm."""

from __future__ import annotations

import os
import struct
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dovetail import ops
from dovetail.errors import GraphError, LoadError, UnsupportedError, VerifyError
from dovetail.ir import leaf, serial_table
from dovetail.ir.dtype import ALL, DType, bf16, bool_, f32, i64
from dovetail.ir.graph import Builder, Graph
from dovetail.ir.serial import from_buffer, load, save, to_bytes
from dovetail.ir.serial_table import Entry
from dovetail.ir.type import TensorType
from tests import strategies
from tests.ir.graphs import VOCABULARY, assert_identical, kitchen_sink, nested

HEAD = 8 + 4 + 8 + 8 + 16


def model() -> Graph:
    """Parameters of several dtypes, one of them empty and one transposed; constants large and small."""
    builder = Builder("model")
    x = builder.input("x", f32["b", 40])
    weight = np.arange(40 * 3, dtype=np.float32).reshape(3, 40).T
    w = builder.param("w", f32[40, 3], weight)
    flags = builder.param("a \ud800 name\n", bool_[5], np.array([True, False, True, True, False]))
    nothing = builder.param("nothing", bf16[0, 3], np.zeros((0, 3), ml_dtypes.bfloat16))
    builder.params["unused"] = np.arange(7, dtype=np.int64)
    table = leaf.constant(np.linspace(0, 1, 40, dtype=np.float32))
    builder.output("y", ops.matmul(x + table, w) * 0.5)
    builder.output("flags", flags)
    builder.output("nothing", nothing)
    builder.output("again", ops.concat(table, table, axis=0))
    return builder.graph()


def assert_same_arrays(found: Graph, expected: Graph) -> None:
    assert list(found.params) == list(expected.params)
    for name, array in expected.params.items():
        other = found.params[name]
        assert (other.dtype, other.shape) == (array.dtype, array.shape), name
        assert other.tobytes() == array.tobytes(), name
        assert not other.flags.writeable
        assert other.flags.aligned and other.flags.c_contiguous


@pytest.mark.parametrize("graph", [model(), nested(), Graph.of(kitchen_sink())], ids=lambda g: g.name)
def test_graphs_come_back(graph: Graph, tmp_path: Path) -> None:
    again = from_buffer(to_bytes(graph), VOCABULARY)
    assert_identical(again, graph)
    assert_same_arrays(again, graph)
    path = tmp_path / "graph.dovetail"
    save(graph, path)
    assert path.read_bytes() == to_bytes(graph)
    assert_identical(load(path, VOCABULARY), graph)
    assert_same_arrays(load(str(path), VOCABULARY), graph)
    assert [p.name for p in tmp_path.iterdir()] == ["graph.dovetail"]


@pytest.mark.slow
@given(strategies.graphs(symbolic=True, empty=True))
def test_random_graphs_come_back(drawn: tuple[Graph, Any]) -> None:
    again = from_buffer(to_bytes(drawn[0]), VOCABULARY)
    assert_identical(again, drawn[0])
    assert_same_arrays(again, drawn[0])


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_every_dtype_comes_back_bit_for_bit(dtype: DType) -> None:
    random = np.random.default_rng(0)
    bits = random.integers(0, 2 if dtype is bool_ else min(256, 2**dtype.bits), 50 * dtype.itemsize, dtype=np.uint8)
    array = bits.view(dtype.numpy).reshape(5, 10)
    graph = replace(Graph.of(leaf.param("w", TensorType(dtype, (5, 10)))), params={"w": array})
    both = replace(graph, outputs={**graph.outputs, "c": leaf.constant(array, dtype)})
    again = from_buffer(to_bytes(both), VOCABULARY)
    assert_identical(again, both)
    assert_same_arrays(again, both)


def test_arrays_in_another_byte_order_are_turned_round() -> None:
    array = np.array([1, 256, -5], ">i4")
    graph = replace(Graph.of(leaf.param("w", TensorType(ALL[3], (3,)))), params={"w": array})
    found = from_buffer(to_bytes(graph), VOCABULARY).params["w"]
    assert found.tolist() == [1, 256, -5]
    assert found.dtype == np.dtype(np.int32)


def test_the_layout_is_what_is_written_down() -> None:
    """Read with nothing but struct: head, text, table, arrays at multiples of 64."""
    array = np.array([[1.5, -2.0]], np.float32)
    content = to_bytes(replace(Graph.of(leaf.param("w", f32[1, 2])), params={"w": array}))
    magic, version, text_length, table_length = struct.unpack_from("<8sIQQ", content)
    assert (magic, version) == (b"DOVETAIL", 1)
    text = content[HEAD : HEAD + text_length].decode()
    assert text == "graph graph() {\n  param w: f32[1, 2]\n  return y = w\n}\n"
    table = content[HEAD + text_length : HEAD + text_length + table_length]
    assert table[:7] == struct.pack("<BIBB", 1, 1, 3, 2)
    assert table[7:11] == b"wf32"
    assert struct.unpack_from("<QQ", table, 11) == (1, 2)
    offset, length = struct.unpack_from("<QQ", table, 27)
    assert offset % 64 == 0
    assert struct.unpack_from("<2f", content, offset) == (1.5, -2.0)
    assert len(content) == offset + length


def test_equal_constants_are_stored_once() -> None:
    array = np.arange(10_000, dtype=np.float32)
    one = to_bytes(Graph.of(leaf.constant(array)))
    two = to_bytes(Graph.of({"a": ops.neg(leaf.constant(array)), "b": ops.exp(leaf.constant(array.copy()))}))
    assert len(two) - len(one) < 1_000


def test_parameters_are_mapped_and_outlive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "large"
    array = np.arange(2_000_000, dtype=np.float32)
    save(replace(Graph.of(leaf.param("w", f32[2_000_000])), params={"w": array}), path)
    tracemalloc.start()
    graph = load(path, VOCABULARY)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
    path.unlink()
    np.testing.assert_array_equal(graph.params["w"], array)


def test_saving_replaces_whole_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "graph"
    save(nested(), path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LoadError, match="No space left"):
        save(model(), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["graph"]


def test_graphs_that_cannot_be_saved(tmp_path: Path) -> None:
    path = tmp_path / "graph"
    with pytest.raises(VerifyError):
        save(Graph("empty", (), {}), path)
    with pytest.raises(UnsupportedError, match="'w' has the dtype"):
        save(replace(nested(), params={"w": np.zeros(3, np.longdouble)}), path)
    for wrong in (tmp_path / "no" / "folder", tmp_path, "/", "a\0b"):
        with pytest.raises(LoadError, match="cannot be written"):
            save(nested(), wrong)
    assert not list(tmp_path.iterdir())


def test_files_that_are_none(tmp_path: Path) -> None:
    for wrong in (tmp_path / "missing", "a\0b"):
        with pytest.raises(LoadError, match="cannot be read"):
            load(wrong, VOCABULARY)
    with pytest.raises(LoadError, match="is not a file"):
        load(tmp_path, VOCABULARY)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(LoadError, match="is not a file"):
        load(pipe, VOCABULARY)
    empty = tmp_path / "empty"
    empty.touch()
    with pytest.raises(LoadError, match="a file of 0 bytes"):
        load(empty, VOCABULARY)


def refused(content: bytes) -> LoadError:
    started = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(LoadError) as caught:
            from_buffer(content, VOCABULARY)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.hint
    assert peak < 4_000_000 + 40 * len(content)
    assert time.process_time() - started < 5
    return caught.value


GOOD = to_bytes(model())


def test_every_cut_is_found() -> None:
    for length in [*range(0, HEAD + 40), *range(HEAD + 40, len(GOOD), 7), len(GOOD) - 1]:
        with pytest.raises(LoadError):
            from_buffer(GOOD[:length], VOCABULARY)


@pytest.mark.slow
def test_every_flipped_byte_is_found() -> None:
    for at in range(len(GOOD)):
        broken = bytearray(GOOD)
        broken[at] ^= 0x41
        with pytest.raises(LoadError):
            from_buffer(broken, VOCABULARY)


def test_what_is_behind_the_end_is_found() -> None:
    assert "3 bytes behind the last array" in refused(GOOD + b"abc").message
    assert "behind the last array" in refused(to_bytes(nested()) + b"\0").message


def test_other_files_and_other_versions() -> None:
    assert "starts with b'PK" in refused(b"PK\x03\x04" + bytes(100)).message
    newer = bytearray(GOOD)
    struct.pack_into("<I", newer, 8, 2)
    error = refused(bytes(newer))
    assert "version 2" in error.message
    assert "version 1" in error.hint


def test_absurd_lengths_are_refused_before_anything_is_read() -> None:
    for lengths in [(2**63, 0), (0, 2**63), (2**64 - 1, 2**64 - 1), (2**27, 2**27 + 1), (len(GOOD), 0)]:
        broken = bytearray(GOOD)
        struct.pack_into("<QQ", broken, 12, *lengths)
        expected = "a text and table of" if sum(lengths) > 2**28 else f"bytes of at least {HEAD + sum(lengths)}"
        assert expected in refused(bytes(broken)).message


def test_the_number_of_arrays_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serial_table, "MOST_ARRAYS", 4)
    assert "more than 4 arrays" in refused(GOOD).message
    with pytest.raises(GraphError, match="5 arrays"):
        to_bytes(model())


def forged(text: bytes, rows: bytes, arrays: bytes = b"") -> bytes:
    """A file whose head is right, whatever the rest is."""
    head = struct.pack("<8sIQQ16s", b"DOVETAIL", 1, len(text), len(rows), serial_table.digest(text, rows))
    before = head + text + rows
    return before + (bytes(-len(before) % 64) + arrays if arrays else b"")


TEXT = b"graph g() {\n  param w: f32[4]\n  return y = w\n}\n"
ARRAY = np.arange(4, dtype=np.float32).tobytes()


def row(
    *,
    kind: int = 1,
    name: bytes = b"w",
    dtype: bytes = b"f32",
    shape: tuple[int, ...] = (4,),
    offset: int | None = None,
    length: int = 16,
    digest: bytes | None = None,
) -> bytes:
    """The row of an array that follows the table, if the row is the only one."""
    size = 7 + len(name) + len(dtype) + 8 * len(shape) + 32
    start = HEAD + len(TEXT) + size
    place = start + -start % 64 if offset is None else offset
    front = struct.pack("<BIBB", kind, len(name), len(dtype), len(shape)) + name + dtype
    sizes = struct.pack(f"<{len(shape)}Q", *shape)
    return front + sizes + struct.pack("<QQ16s", place, length, digest or serial_table.digest(ARRAY))


def test_a_forged_file_that_is_right_is_read() -> None:
    graph = from_buffer(forged(TEXT, row(), ARRAY), VOCABULARY)
    assert graph.params["w"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (row()[:-1], "ends"),
        (row() + b"\0", "ends"),
        (row(kind=7), "of kind 7"),
        (row(kind=0), "a constant behind a parameter or with a name"),
        (row(name=b""), "without a name"),
        (row(name=b"\xff"), "cannot be read"),
        (row(dtype=b"f31"), "cannot be read"),
        (row(dtype=b"\xff"), "cannot be read"),
        (row(dtype=b"object"), "cannot be read"),
        (row(shape=(1,) * 65, length=4), "rank 65"),
        (row(shape=(2**63,)), "63 bits"),
        (row(shape=(2**62, 2**62), length=0), "an array that cannot be"),
        (row(shape=(2**32, 2**32), length=0), "an array that cannot be"),
        (row(shape=(5,)), "16 bytes for an array of f32[5]"),
        (row(length=2**60), "bytes for an array of f32[4]"),
        (row(shape=(2**40,), length=2**42), "bytes of at least"),
        (row(offset=0), "an array at 0"),
        (row(offset=2**64 - 16), "an array at 18446744073709551600"),
        (row(offset=64 * 5), "an array at 320"),
        (row(digest=bytes(16)), "does not match its checksum"),
        (row(dtype=b"bool", shape=(16,)), "in an array of bool"),
        (row(dtype=b"i32"), "the array of 'w' is int32[4], and its type is f32[4]"),
        (row(shape=(2, 2)), "the array of 'w' is float32[2, 2]"),
        (row() + row(), "two arrays for the parameter 'w'"),
        (b"\x01" + struct.pack("<I", 2**32 - 1) + b"\x03\x01" + b"w" * 50, "ends"),
    ],
    ids=range(25),
)  # fmt: skip
def test_tables_that_lie_are_refused(rows: bytes, message: str) -> None:
    error = refused(forged(TEXT, rows, ARRAY))
    assert message in str(error), str(error)


def test_arrays_that_overlap_are_refused() -> None:
    both = row() + row(name=b"v")
    start = HEAD + len(TEXT) + len(both)
    place = start + -start % 64
    overlapping = row(offset=place) + row(name=b"v", offset=place)
    assert f"an array at {place} where {place + 64} follows" in refused(forged(TEXT, overlapping, ARRAY)).message
    apart = forged(TEXT, row(offset=place) + row(name=b"v", offset=place + 64), ARRAY + bytes(48) + ARRAY)
    assert list(from_buffer(apart, VOCABULARY).params) == ["w", "v"]
    hidden = forged(TEXT, row(offset=place) + row(name=b"v", offset=place + 64), ARRAY + b"\1" + bytes(47) + ARRAY)
    assert "bytes between two arrays" in refused(hidden).message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\xff\xfe", "not UTF-8"),
        (b"graph g() { return y = x }", "'x' is not known here"),
        (b"graph g() { %0 = unheard_of() return y = %0 }", "no op named 'unheard_of'"),
        (b"graph g() { %0 = const f32[4] blob 0 return y = %0 }", "blob 0 of 0"),
        (b"graph g() { return }", "has no outputs"),
        (b"graph g() { %0 = argument() {index=0, type=f32[1]} return y = %0 }", "outside of a sub-graph"),
        (b"graph g() { %0 = input() {name=\"x\", type=f32[1]} return y = %0 }", "not among the inputs"),
        (b"graph g() { " + b"%0 = anything() {a=(" * 10_000, "expected"),
    ],
    ids=range(8),
)  # fmt: skip
def test_texts_that_are_no_graphs_are_refused(text: bytes, message: str) -> None:
    assert message in str(refused(forged(text, b"")))


@pytest.mark.slow
def test_many_rows_take_little_time() -> None:
    many = b"".join(row(name=b"%d" % i, shape=(0,), length=0, digest=serial_table.digest(b"")) for i in range(2_000))
    assert "an array at" in refused(forged(TEXT, many)).message


@given(st.data())
def test_random_damage_is_refused_or_harmless(drawn: st.DataObject) -> None:
    """With the checksum of the head put right, so that the table and the text are really read."""
    text_length, table_length = struct.unpack_from("<QQ", GOOD, 12)
    start, end = HEAD, HEAD + text_length + table_length
    broken = bytearray(GOOD)
    for _ in range(drawn.draw(st.integers(1, 4))):
        at = drawn.draw(st.integers(start, end - 1))
        broken[at] = drawn.draw(st.sampled_from([0, 1, 0x22, 0x30, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    middle = start + text_length
    struct.pack_into("<16s", broken, 28, serial_table.digest(bytes(broken[start:middle]), bytes(broken[middle:end])))
    try:
        graph = from_buffer(broken, VOCABULARY)
    except LoadError:
        return
    saved = to_bytes(graph)
    assert to_bytes(from_buffer(saved, VOCABULARY)) == saved


def test_bool_arrays_are_stored_as_zero_and_one() -> None:
    odd: NDArray[Any] = np.array([0, 1, 2, 255], np.uint8).view(np.bool_)
    graph = replace(Graph.of(leaf.param("w", bool_[4])), params={"w": odd})
    found = from_buffer(to_bytes(graph), VOCABULARY).params["w"]
    assert found.view(np.uint8).tolist() == [0, 1, 1, 1]


def test_the_vocabulary_is_what_is_passed() -> None:
    content = to_bytes(Graph.of(ops.relu(leaf.input("x", f32[2]))))
    with pytest.raises(LoadError, match="no op named 'relu'") as caught:
        from_buffer(content, (ops.neg,))
    assert caught.value.where == "the bytes"


def test_a_row_is_packed_and_unpacked_alike() -> None:
    entries = [Entry("constant", "", i64[3], bytes(16)), Entry("parameter", "p", f32[0, 2], b"d" * 16)]
    head = serial_table.pack(b"text", entries)
    first = serial_table.aligned(len(head))
    content = head + bytes(first - len(head)) + bytes(24) + bytes(40)
    text, found = serial_table.unpack(memoryview(content))
    assert text == "text"
    assert [(e.kind, e.name, e.type, e.digest, e.offset) for e in found] == [
        ("constant", "", i64[3], bytes(16), first),
        ("parameter", "p", f32[0, 2], b"d" * 16, first + 64),
    ]
