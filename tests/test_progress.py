"""Progress: phases are heard in order by who listens, and by nobody else."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest

from dovetail import Builder, ops
from dovetail.dtypes import f32
from dovetail.passes.pipeline import PASSES
from dovetail.progress import listening, notice, phase
from dovetail.runtime.compile import compile


@dataclass
class Heard:
    """A listener that writes down what it hears."""

    said: list[str] = field(default_factory=list[str])
    done: list[float] = field(default_factory=list[float])

    def began(self, phase: str, *, still: bool) -> None:
        self.said.append(f"began {phase}{' still' if still else ''}")

    def reached(self, item: str, number: int, of: int, done: float) -> None:
        self.said.append(f"at {item} {number}/{of}")
        self.done.append(done)

    def ended(self) -> None:
        self.said.append("ended")

    def noticed(self, words: str) -> None:
        self.said.append(words)


def test_phases_are_heard_as_they_nest() -> None:
    heard = Heard()
    with listening(heard), phase("outer", still=True) as told:
        told.at(2, 4, "second")
        with phase("inner"):
            pass
    assert heard.said == ["began outer still", "at second 2/4", "began inner", "ended", "ended"]
    assert heard.done == [0.25]


def test_a_phase_that_fails_has_ended_all_the_same() -> None:
    heard = Heard()
    with listening(heard), pytest.raises(KeyError), phase("outer"):
        raise KeyError
    assert heard.said == ["began outer", "ended"]


def test_a_notice_is_heard_in_its_place() -> None:
    heard = Heard()
    notice("to nobody")
    with listening(heard), phase("outer"):
        notice("compiled again")
    assert heard.said == ["began outer", "compiled again", "ended"]


def test_nobody_hears_what_is_outside_or_in_another_thread() -> None:
    heard = Heard()

    def work() -> None:
        with phase("elsewhere") as told:
            told.at(1, 1)

    with listening(heard):
        other = threading.Thread(target=work)
        other.start()
        other.join()
    work()
    assert heard.said == []


def test_a_compilation_tells_its_phases_and_passes() -> None:
    b = Builder("small")
    x = b.input("x", f32[4])
    b.output("y", ops.relu(x + x))
    heard = Heard()
    with listening(heard):
        compile(b.graph(), target="cpu")
    phases = [said.removeprefix("began ") for said in heard.said if said.startswith("began ")]
    assert phases == ["optimise", "plan", "compile"]
    assert heard.said.count("ended") == len(phases)
    passes = [said.split()[1] for said in heard.said[: heard.said.index("ended")] if said.startswith("at ")]
    assert passes == [p.name for p in PASSES]
    shares = heard.done[: len(passes)]
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] < 1
