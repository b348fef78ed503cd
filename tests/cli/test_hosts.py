"""`--hosts`: how many there are, which one this is and where rank 0 listens, as options or as launchers say it."""

from __future__ import annotations

import pytest

from dovetail.cli import hosts
from dovetail.runtime.hosts import Member
from tests.cli.commands import SMALL, Shell

RUN = ["run", SMALL["bert"], "--random", "0", "--mesh", "dp=2"]
VARIABLES = ("WORLD_SIZE", "RANK", "SLURM_NTASKS", "SLURM_PROCID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> list[Member]:
    """Stands for the parent; what it was told."""
    asked: list[Member] = []

    def supervise(mine: Member, *rest: object) -> None:
        asked.append(mine)

    monkeypatch.setattr(hosts, "supervise", supervise)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return asked


@pytest.mark.parametrize(
    ("variables", "options", "place"),
    [
        ({}, ["--hosts", "2", "--rank", "1", "--coordinator", "h:7"], (2, 1, "h:7")),
        (
            {"WORLD_SIZE": "4", "RANK": "3", "MASTER_ADDR": "h", "MASTER_PORT": "7", "TORCHELASTIC_RUN_ID": "x"},
            ["--hosts", "auto"],
            (4, 3, "h:8"),
        ),
        (
            {"SLURM_NTASKS": "2", "SLURM_PROCID": "0", "MASTER_ADDR": "h", "MASTER_PORT": "7"},
            ["--hosts", "auto"],
            (2, 0, "h:7"),
        ),
        ({"WORLD_SIZE": "4", "RANK": "3"}, ["--hosts", "auto", "--rank", "1", "--coordinator", "h:7"], (4, 1, "h:7")),
    ],
    ids=["options", "torchrun", "SLURM", "options win"],
)
def test_a_place_in_a_run_of_several_hosts(
    shell: Shell,
    members: list[Member],
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    options: list[str],
    place: tuple[int, int, str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert shell(*RUN, *options).code == 0
    assert [(one.hosts, one.rank, one.coordinator) for one in members] == [place]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--hosts", "two", "--rank", "0"], "--hosts two"),
        (["--hosts", "2", "--coordinator", "h:7"], "--hosts without --rank"),
        (["--hosts", "2", "--rank", "0"], "set MASTER_ADDR and MASTER_PORT"),
        (["--hosts", "2", "--rank", "0", "--coordinator", "h"], "--coordinator h"),
        (["--hosts", "2", "--rank", "2", "--coordinator", "h:7"], "rank 2 of 2 hosts"),
        (["--hosts", "auto", "--coordinator", "h:7"], "torchrun or SLURM set WORLD_SIZE and RANK"),
    ],
)
def test_places_that_cannot_be_are_refused(shell: Shell, members: list[Member], options: list[str], words: str) -> None:
    assert words in shell.fails(1, *RUN, *options) and not members
