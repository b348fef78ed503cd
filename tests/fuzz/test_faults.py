"""Faults on purpose, a few of each; `make faults` makes a thousand."""

from __future__ import annotations

import os
import signal
import sys
import time
import weakref
from pathlib import Path

import pytest

import dovetail
from fuzz import faults
from fuzz import forked as forking
from fuzz.faults import FAULTS
from fuzz.forked import forked

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the limits of a process are those of Linux"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]
FEW = {
    "kill": 12,
    "training": 6,
    "full_disk": 5,
    "bad_folders": 4,
    "forks": 5,
    "signals": 10,
    "service": 30,
    "serving": 60,
}
"""Faults of several hosts take half a minute each, and JAX."""


def test_all_faults_are_tried() -> None:
    assert {*FEW} == {*FAULTS} - {"hosts"}


@pytest.mark.heavy
@pytest.mark.parametrize("name", FEW)
def test_nothing_breaks(name: str, tmp_path: Path) -> None:
    assert FAULTS[name][0](FEW[name], tmp_path) == []


def test_a_child_that_hangs_or_fails_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "PATIENCE", 0.2)
    assert forked(lambda: time.sleep(60)) is None
    assert forked(lambda: os._exit(3)) == 3
    assert forked(lambda: None) == 0


def test_a_signal_that_a_callback_swallows_breaks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile, struck, before = dovetail.compile, list[int](), (signal.getsignal(signal.SIGALRM), sys.unraisablehook)

    class Dying:
        """Its weak reference's callback is where the signal arrives."""

    def strikes(_: object) -> None:
        if signal.getsignal(signal.SIGALRM) is not before[0]:
            struck.append(1)
            signal.raise_signal(signal.SIGALRM)

    def dying(*given: object, **options: object) -> dovetail.Program:
        thing = Dying()
        watch = weakref.ref(thing, strikes)
        del thing
        assert watch() is None
        return compile(*given, **options)  # pyright: ignore

    monkeypatch.setattr(dovetail, "compile", dying)
    assert faults.signals(3, tmp_path) == []
    assert struck
    assert (signal.getsignal(signal.SIGALRM), sys.unraisablehook) == before


@pytest.mark.slow
def test_a_broken_graph_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def half(folder: Path) -> None:
        (folder / "graph").write_bytes(b"half")

    monkeypatch.setattr(faults, "writing", half)
    assert "the saved graph is broken" in faults.kill(3, tmp_path)[0]


@pytest.mark.exhaustive
def test_memory_that_grows_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bytearray] = []
    compile = dovetail.compile

    def leaks(*given: object, **options: object) -> dovetail.Program:
        kept.append(bytearray(os.urandom(2 << 20)))
        return compile(*given, **options)  # pyright: ignore

    monkeypatch.setattr(dovetail, "compile", leaks)
    monkeypatch.setattr(faults, "WARM", 10)
    assert "MB more after" in faults.service(20, tmp_path)[0]
