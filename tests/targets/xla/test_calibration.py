"""The links of a mesh: fitted to times of a clock of the test's own, kept, and used by prices."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail import Builder, Graph, ops, save
from dovetail.cli.main import main
from dovetail.ir.dtype import f32
from dovetail.mesh import explain_placement
from dovetail.settings import Settings
from dovetail.targets.xla.explain import calibration
from dovetail.targets.xla.explain.calibration import TimedCollective, calibrate, fit, links_of, measured, stored
from dovetail.targets.xla.explain.collective import Link, Links
from dovetail.targets.xla.placement import Placement

pytest.importorskip("jax")
rings: Any = pytest.importorskip("dovetail.targets.xla.explain.rings")

MESH = {"dp": 2, "one": 1, "tp": 4}
TRUE = {"dp": Link(40e-6, 2e9), "tp": Link(3e-6, 25e9)}


class Clock:
    """Programs move it on: a call takes 1 ms, each collective what its link says, and every third call half as much
    again."""

    def __init__(self, links: dict[str, Link] = TRUE) -> None:
        self.now, self.calls, self.links = 50.0, 0, links

    def __call__(self) -> float:
        return self.now

    def program(self, kind: str, axis: str, bytes: int, turns: int) -> Callable[[], object]:
        link, n = self.links[axis], MESH[axis]
        # Written out by hand: rings send (n - 1) / n of the whole in n - 1 pieces, and twice for a sum.
        once = (n - 1) * (link.start_seconds + bytes / n / link.bytes_per_second)
        took = 1e-3 + turns * (2 * once if kind == "all-reduce" else once)

        def run() -> None:
            self.calls += 1
            self.now += took * (1.5 if self.calls % 3 == 0 else 1.0)

        return run


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.delenv("DOVETAIL_MACHINE", raising=False)
    monkeypatch.setenv("DOVETAIL_CACHE", str(tmp_path / "cache"))

    def programs(placement: Placement, *asked: Any) -> Callable[[], object]:
        return clock.program(*asked)

    clock = Clock()
    monkeypatch.setattr(rings, "program", programs)
    monkeypatch.setattr(calibration, "CLOCK", clock)
    return Settings(cache=str(tmp_path / "cache"))


def product() -> Graph:
    builder = Builder("network")
    x, w = builder.input("x", f32[8, 64]), builder.param("w", f32[64, 128])
    builder.output("y", ops.matmul(x, w))
    return builder.graph()


def test_a_fit_finds_the_start_and_the_bandwidth_of_each_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(calibration, "CLOCK", clock)
    found = measured(MESH, clock.program)
    assert found.keys() == TRUE.keys(), "an axis of one device has no link"
    for axis, fitted in found.items():
        assert fitted is not None and fitted.misfit < 1e-6
        assert fitted.link.start_seconds == pytest.approx(TRUE[axis].start_seconds, rel=1e-6)
        assert fitted.link.bytes_per_second == pytest.approx(TRUE[axis].bytes_per_second, rel=1e-6)


def test_a_fit_of_uneven_times_says_how_far_it_is_off() -> None:
    timed = [
        TimedCollective("all-gather", n, 0.75e-9 * n * uneven)
        for n, uneven in ((10**5, 1.2), (10**6, 0.8), (10**7, 1.2))
    ]
    found = fit(timed, 4)
    assert found is not None and 0.05 < found.misfit < 0.5 and found.link.start_seconds >= 0
    assert fit([], 4) is None and fit(timed[:1], 4) is None, "two unknowns take two times"
    assert fit([TimedCollective("all-gather", 1000 * n, 1e-3 / n) for n in (1, 2, 4)], 4) is None, (
        "less time for more bytes"
    )


def test_measured_links_are_kept_and_price_collectives(settings: Settings) -> None:
    def explained() -> Any:
        return explain_placement(product(), mesh=MESH, place={"w": "tp", "x": "dp tp"})

    before = explained()
    assert stored(MESH, settings) is None and links_of(MESH) == Links() == before.links
    assert "calibration: built-in, a start of 5 µs and 50 GB/s for each axis" in before.text()
    made = calibrate(MESH, settings)
    assert made.refused == "" and stored(MESH, settings) == made.calibration
    after = explained()
    assert made.calibration is not None and after.links == made.calibration.links
    assert f"calibration: measured on {made.calibration.date} on 8 × " in after.text()
    assert "dp 40.0 µs and 2 GB/s, tp 3.0 µs and 25 GB/s" in after.text()
    (one,) = after.collectives
    assert one.bytes == 4 * 128 * 4 and after.seconds == pytest.approx(2 * 3 * (3e-6 + 4 * 128 / 25e9))
    assert after.json()["calibration"] == after.links.source != before.json()["calibration"] == "built-in"
    assert links_of({"dp": 4, "tp": 2}) == Links(), "another mesh has other links"


def test_the_same_prices_everywhere_are_asked_for_by_name(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrate(MESH, settings)
    monkeypatch.setenv("DOVETAIL_MACHINE", "built-in")
    assert links_of(MESH) == Links()


def links(start: Any, rate: Any) -> dict[str, Any]:
    return {"axes": {"dp": {"link": {"start_seconds": start, "bytes_per_second": rate}, "misfit": 0}}}


WRONG: list[dict[str, Any]] = [
    {"version": 0},
    {"mesh": {"dp": 8}},
    {"axes": []},
    {"axes": {"dp": {"link": {}, "misfit": 0}}},
    *(links(start, rate) for start, rate in ((-1, 1), (1, 0), (1, 1e999), ("x", 1))),
]


@pytest.mark.parametrize("change", WRONG)
def test_what_is_no_calibration_is_not_read(change: dict[str, Any], settings: Settings) -> None:
    calibrate(MESH, settings)
    (file,) = Path(settings.cache).iterdir()
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    calibration._stored.cache_clear()  # pyright: ignore[reportPrivateUsage]
    assert links_of(MESH) == Links()
    file.write_bytes(b"\xff{")
    calibration._stored.cache_clear()  # pyright: ignore[reportPrivateUsage]
    assert links_of(MESH) == Links()


def test_what_cannot_be_measured_says_why(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert calibrate({"dp": 1}, settings).refused == "no axis has several devices"
    assert calibrate(MESH, Settings(cache="off")).refused == "the cache is switched off"

    def instant(*asked: Any) -> Callable[[], object]:
        return lambda: None

    monkeypatch.setattr(rings, "program", instant)
    assert calibrate(MESH, settings).refused == "times over dp, tp do not grow with the bytes"
    assert stored(MESH, settings) is None


@pytest.mark.parametrize("axis", ["dp", "tp"])
@pytest.mark.parametrize("kind", calibration.KINDS)
def test_what_is_timed_is_that_many_collectives(kind: str, axis: str) -> None:
    """One after the other: neither left out nor merged."""
    from dovetail.targets.xla.explain.compiled import read_text

    placement = Placement.of(MESH)
    found = list(read_text(rings.compiled(placement, kind, axis, 1 << 12, 5)[0].as_text(), placement))
    assert [(c.kind, c.axes, c.bytes) for c in found] == [(kind, (axis,), 1 << 12)] * 5
    rings.program(placement, kind, axis, 1 << 12, 1)()


def test_the_command(settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(product(), tmp_path / "model.txt")
    asked = ["doctor", "--mesh", "dp=2,one=1,tp=4"]
    assert main(asked) == 0
    assert "doctor --calibrate --mesh dp=2,one=1,tp=4 measures it" in " ".join(capsys.readouterr().out.split())
    assert main([*asked, "--calibrate"]) == 0
    assert "tp a start 3.0 µs, 25 GB/s, within 0%" in " ".join(capsys.readouterr().out.split())
    assert main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mesh"]["calibration"]["axes"].keys() == TRUE.keys()
    explain = ["place", str(tmp_path / "model.txt"), "--mesh", "dp=2,one=1,tp=4", "--place", "w: tp"]
    assert main(explain) == 0
    assert "calibration: measured on " in capsys.readouterr().out
    assert main(["doctor", "--calibrate", "--mesh", "dp=64"]) == 1
    assert "a mesh of 64 devices (dp 64), and JAX finds 8" in capsys.readouterr().err
