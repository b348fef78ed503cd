"""GGUF files: what is whole is read as it is; what is damaged or lies is one typed error."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest

from dovetail.errors import DovetailError, LoadError, UnsupportedError
from dovetail.frontends.gguf import file as gguf
from dovetail.frontends.gguf.decoder import read_decoder
from dovetail.frontends.gguf.file import read_gguf, read_head
from fuzz import mutations
from tests.block_arrays import random_blocks
from tests.gguf_files import decoder, text, written

FIELDS = {"general.architecture": "llama", "a.count": 7, "a.rate": 0.5, "a.on": True, "a.words": ["x", "", "é"]}
Q8 = random_blocks("q8_0", 3, 64)
TENSORS = {
    "w": ("q8_0", (3, 64), Q8),
    "v": ("f16", (2, 5), np.arange(10, dtype=np.float16)),
    "n": ("f32", (4,), np.arange(4, dtype=np.float32)),
}


def test_fields_and_tensors_are_those_that_were_written(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(written(FIELDS, TENSORS))
    found = read_gguf(path)
    assert found.fields == FIELDS
    assert {name: (t.kind, t.shape) for name, t in found.tensors.items()} == {n: t[:2] for n, t in TENSORS.items()}
    assert (found.array("w") == Q8).all() and (found.array("n") == np.arange(4)).all()
    assert found.array("v").tolist() == np.arange(10.0).reshape(2, 5).tolist()
    assert not found.array("w").flags.writeable and found.array("w").base is not None


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_alignments(alignment: int) -> None:
    raw = written({**FIELDS, "general.alignment": alignment}, TENSORS, alignment=alignment)
    fields, tensors = read_head(memoryview(raw))
    assert fields["general.alignment"] == alignment and all(t.start % alignment == 0 for t in tensors.values())


def test_bytes_that_are_no_text_are_kept() -> None:
    fields, _ = read_head(
        memoryview(b"GGUF" + struct.pack("<IQQ", 2, 0, 1) + text("k") + struct.pack("<I", 8) + text(b"\xff"))
    )
    assert str(fields["k"]).encode("utf-8", "surrogateescape") == b"\xff"


def patched(at: bytes, form: str, number: int) -> bytes:
    """The file with the number after some bytes replaced."""
    raw = bytearray(written(FIELDS, TENSORS))
    start = raw.index(at) + len(at)
    raw[start : start + struct.calcsize(form)] = struct.pack(form, number)
    return bytes(raw)


HUGE = (1 << 63, (1 << 64) - 1, 1 << 62, 1 << 40)
HEAD = b"GGUF" + struct.pack("<I", 3)
TYPED = text("w") + struct.pack("<IQQ", 2, 64, 3)
"""The line of w up to its type."""
LYING: dict[str, bytes] = {
    "empty": b"",
    "magic": b"GGML" + written(FIELDS, TENSORS)[4:],
    "cut in the header": written(FIELDS, TENSORS)[:20],
    "cut in the fields": written(FIELDS, TENSORS)[:60],
    "cut in the tensors": written(FIELDS, TENSORS)[:-128],
    **{f"{n} tensors": patched(HEAD, "<Q", n) for n in HUGE},
    **{f"{n} fields": patched(HEAD + struct.pack("<Q", 3), "<Q", n) for n in HUGE},
    **{f"a string of {n}": patched(text("general.architecture") + struct.pack("<I", 8), "<Q", n) for n in HUGE},
    **{f"an array of {n}": patched(text("a.words") + struct.pack("<II", 9, 8), "<Q", n) for n in HUGE},
    "an array of arrays": patched(text("a.words") + struct.pack("<I", 9), "<I", 9),
    "a field of an unknown type": patched(text("a.count"), "<I", 13),
    **{f"a tensor of {n}": patched(text("w") + struct.pack("<IQ", 2, 64), "<Q", n) for n in (0, *HUGE)},
    "sizes whose product wraps": patched(text("w") + struct.pack("<I", 2), "<Q", 1 << 61),
    "a row of no whole blocks": patched(text("w") + struct.pack("<I", 2), "<Q", 63),
    "rank 0": patched(text("w"), "<I", 0),
    "rank 5": patched(text("w"), "<I", 5),
    **{f"an offset of {n}": patched(TYPED + struct.pack("<I", 8), "<Q", n) for n in (1, 96, *HUGE)},
    "a name twice": written(FIELDS, TENSORS).replace(text("v"), text("w"), 1),
    "a name with an escape": written(FIELDS, {"\x1b[2J": TENSORS["n"]}),
    "alignment 0": written({**FIELDS, "general.alignment": 0}, TENSORS),
    "alignment 48": written({**FIELDS, "general.alignment": 48}, TENSORS),
    "alignment as text": written({**FIELDS, "general.alignment": "32"}, TENSORS),
}


@pytest.mark.parametrize("case", LYING)
def test_what_a_file_says_is_checked_before_it_is_used(case: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(LYING[case])
    with pytest.raises(LoadError) as caught:
        read_gguf(path)
    assert caught.value.hint and len(str(caught.value)) < 2000 and "\x1b" not in str(caught.value)


@pytest.mark.parametrize("kind", [16, 35, 999])
def test_types_that_are_not_read_are_named(kind: int) -> None:
    with pytest.raises(UnsupportedError, match=gguf.NOT_READ.get(kind, "999")):
        read_head(memoryview(patched(TYPED, "<I", kind)))


@pytest.mark.parametrize("version", [1, 4, 1 << 24])
def test_other_versions_are_refused(version: int) -> None:
    with pytest.raises(UnsupportedError, match="version"):
        read_head(memoryview(written(FIELDS, TENSORS, version)))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.gguf"):
        with pytest.raises(LoadError):
            read_gguf(path)


def test_more_elements_than_any_vocabulary_has_are_refused() -> None:
    listed = b"".join(text(f"k{i}") + struct.pack("<IIQ", 9, 0, 1 << 21) + bytes(1 << 21) for i in range(3))
    with pytest.raises(LoadError, match="elements"):
        read_head(memoryview(b"GGUF" + struct.pack("<IQQ", 3, 0, 3) + listed))


@pytest.mark.slow
def test_damaged_files_end_in_a_typed_error_or_are_read(tmp_path: Path) -> None:
    whole = [written(*decoder(kind=kind)) for kind in ("q8_0", "f16")]
    ends: dict[str, int] = {}
    for seed in range(120):
        r = random.Random(seed)
        path = tmp_path / "m.gguf"
        path.write_bytes(mutations.bytes_of(r.choice(whole), r))
        try:
            found = read_decoder(read_gguf(path))
            assert sum(a.nbytes for a in found.params.values()) <= path.stat().st_size
            end = "read"
        except DovetailError as error:
            assert error.hint
            end = type(error).__name__
        ends[end] = ends.get(end, 0) + 1
    assert ends["read"] > 10 and ends["LoadError"] > 10
