"""One batch of random graphs in this process: hypothesis draws, the judge judges, what fails is shrunk and kept."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, given, settings

from fuzz.case import Case, Way, restore, store, ways
from fuzz.judge import check
from fuzz.keep import remove
from fuzz.sources import SOURCES

TEST = '''
    """A case that `make fuzz` found: {why}"""

    from pathlib import Path

    from fuzz.run import again


    def test_case() -> None:
        again(Path(__file__).parent)
'''


@dataclass(slots=True)
class Batch:
    """What became of some graphs."""

    graphs: int = 0
    uncertain: int = 0
    """Graphs that float64 could not judge: the smallest change of an input moves them as far."""
    failure: str = ""
    """The folder with what failed."""


def run_batch(source: str, seed: int, count: int, home: Path, told: Callable[[], None]) -> Batch:
    """Draw `count` graphs of a source from a seed. `told` is called after each, to show that nothing hangs."""
    batch = Batch()
    current = home / f"{source}-{seed}"
    cache = home / "cache" / f"{source}-{seed}"

    @hypothesis.seed(seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=[*HealthCheck],  # pyright: ignore[reportArgumentType]
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
    )
    @given(case=SOURCES[source](), way=ways())
    def once(case: Case, way: Way) -> None:
        # Before it runs: a crash of native code leaves no other trace.
        store(case, way, current)
        batch.graphs += 1
        batch.uncertain += not check(case, way, cache)
        told()

    try:
        once()
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        # The shrunk case is the last that ran.
        (current / "error.txt").write_text("".join(traceback.format_exception(error)))
        (current / "test_case.py").write_text(dedent(TEST).lstrip().format(why=lines[0][:200].replace('"', "'")))
        batch.failure = f"{current}: {type(error).__name__}: {lines[0][:300]}"
    else:
        remove(current)
    remove(cache)
    return batch


def again(folder: Path) -> None:
    """Judge a kept case once more."""
    case, way = restore(folder)
    check(case, way, folder / "cache")
