"""How tiles are cut into chunks that threads claim."""

from __future__ import annotations

import pytest

from dovetail.targets.runtime.calls.launch_args import WORTH_SHARING, chunk_of


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("tiles", [1, 7, 1000])
def test_little_work_is_not_handed_out(threads: int, tiles: int) -> None:
    assert chunk_of(tiles, WORTH_SHARING // (2 * tiles), threads) >= tiles


def test_large_tiles_are_claimed_one_by_one_and_many_tiles_in_a_few_goes() -> None:
    assert chunk_of(8, WORTH_SHARING, 2) == 1
    assert chunk_of(1600, WORTH_SHARING, 2) == 100


@pytest.mark.parametrize(("tiles", "threads", "chunk"), [(32, 2, 16), (33, 2, 17), (32, 1, 32), (3, 4, 1)])
def test_neighbours_that_share_what_they_lay_out_stay_together(tiles: int, threads: int, chunk: int) -> None:
    assert chunk_of(tiles, WORTH_SHARING, threads, keeps=True) == chunk
