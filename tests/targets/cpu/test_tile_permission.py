"""Tiles of AMX are used where the system lets a process, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dovetail.cli import doctor_text
from dovetail.targets.cpu import isa, tile_permission
from dovetail.targets.cpu.isa import Host
from dovetail.targets.cpu.tile_permission import tile_state, without_tiles

FEATURES = "+avx512f,+avx512vl,+amx-bf16,+amx-tile,+amx-int8,+avx512bf16,-sse4a"
FOUND = {"avx512f": True, "avx512vl": True, "amx-tile": True, "amx-bf16": True, "avx512bf16": True}


class Features(dict[str, bool]):
    """What LLVM would tell of a machine."""

    def flatten(self) -> str:
        return FEATURES


@pytest.fixture(autouse=True)
def _asked_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(isa.llvm, "get_host_cpu_features", lambda: Features(FOUND))
    monkeypatch.setattr(tile_permission, "USES_TILES", True)
    tile_state.cache_clear()
    yield
    tile_state.cache_clear()


def whole(monkeypatch: pytest.MonkeyPatch, *, granted: bool) -> Host:
    monkeypatch.setattr(tile_permission, "_is_granted", lambda: granted)
    return isa._whole("x86_64-unknown-linux-gnu", FOUND)  # pyright: ignore[reportPrivateUsage]


def test_granted_tiles_are_a_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    found = whole(monkeypatch, granted=True)
    assert found.device.has("amx_bf16") and "+amx-tile" in found.features and tile_state() == "granted"


def test_refused_tiles_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM is told as well: it makes no code with them."""
    found = whole(monkeypatch, granted=False)
    assert not found.device.has("amx_bf16") and not found.device.has("amx_int8")
    assert "+amx" not in found.features and "-amx-tile" in found.features and "+avx512bf16" in found.features
    assert tile_state() == "refused"


def test_nothing_is_asked_where_tiles_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_permission, "USES_TILES", False)
    found = whole(monkeypatch, granted=True)
    assert tile_state() == "not used" and not found.device.has("amx_bf16")


def test_other_features_stay() -> None:
    assert without_tiles("+a,+amx-tile,-b") == "+a,-amx-tile,-b"


@pytest.mark.parametrize(
    ("state", "told"), [("refused", ", AMX refused by the system"), ("not used", ", AMX not used"), (None, "")]
)
def test_doctor_tells(state: str | None, told: str) -> None:
    here = {"cpu": "sapphirerapids", "vector_bits": 512, "vector_registers": 32, "capabilities": ["vnni"], "amx": state}
    said = doctor_text._processor({**here, "caches": [], "llvm": "22 x"})  # pyright: ignore[reportPrivateUsage]
    assert f", vnni{told}, caches unknown" in said and ("AMX" in said) == bool(told)
