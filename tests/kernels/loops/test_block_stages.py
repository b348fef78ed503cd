"""Copies of what a stage before has left in shared memory."""

from __future__ import annotations

import pytest

from dovetail.ir.dtype import bool_, f32
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import CopyAsync, Extent, Load, Loop, Name, Number, Store, Tensor, When
from dovetail.kernels.loops.launch_fusion.block_stages import without_copies_from_shared


@pytest.mark.parametrize(("nbytes", "step"), [(16, 4), (8, 4), (4, 4), (4, 64)])
def test_copies_have_their_own_number_of_elements(nbytes: int, step: int) -> None:
    """One element also of a source whose elements are no neighbours, as of a transposed factor."""
    row, k = Name("row"), Name("k")
    source = Tensor("left", f32, (128, step), space="shared")
    target = Tensor("tile", f32, (256, 4), space="shared")
    copy = CopyAsync(target, (k, row), source, (row, k), Number(True, bool_), nbytes)
    there, outside = without_copies_from_shared((copy,))
    assert isinstance(there, When) and isinstance(outside, When)
    for found in (there, outside):
        loops = [s for s in everything(found.body) if isinstance(s, Loop)]
        assert [s.extent for s in loops] == ([] if nbytes == 4 else [Extent(nbytes // 4)])
    (store,) = [s for s in everything(there.body) if isinstance(s, Store)]
    assert isinstance(store.value, Load) and store.value.tensor == source
    if nbytes == 4:
        assert (store.at, store.value.at) == ((k, row), (row, k))
