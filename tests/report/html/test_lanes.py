"""A placement as a picture: what the page is given for its lanes and joints."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dovetail.report.html.lanes import MeshEntry, MeshJoint, MeshRemedy, lanes_picture
from dovetail.report.html.page import page
from tests.golden import Golden
from tests.report.html.models import HOSTILE, compiled, source_of


def joint(kind: str, place: str, axes: tuple[str, ...] = ("tp",), remedies: tuple[int, ...] = ()) -> MeshJoint:
    return MeshJoint(kind, axes, 4, "f32[8, 64]", 2048, 3e-5, place, f"matmul at {place} sums", remedies)


def entry(layers: int) -> MeshEntry:
    """A gather that a remedy takes away, and two sums a layer."""
    sums = [joint("all-reduce", f"layers.{i}/{part}") for i in range(layers) for part in ("attention", "feed_forward")]
    joints = (joint("all-gather", "embedding", ("dp", "tp"), (0,)), *sums, joint("all-gather", "head"))
    remedy = MeshRemedy("embedding", "-", "tp", 2 * layers + 1, 3e-5, 4096)
    return MeshEntry((("dp", 2), ("tp", 4)), joints, (remedy,), 3e-5 * len(joints), 16384, 2048)


def test_layers_that_repeat_are_one_run() -> None:
    assert lanes_picture(entry(28))["runs"] == [[1, 2, 28]]
    assert lanes_picture(entry(1))["runs"] == []
    # A layer that moves more is none of them.
    whole = entry(6)
    odd = replace(whole.joints[7], bytes=9)
    joints = (*whole.joints[:7], odd, *whole.joints[8:])
    found = lanes_picture(MeshEntry(whole.axes, joints, (), 0.0, 0, 0))
    assert all(not start <= 7 < start + period * count for start, period, count in found["runs"])


def test_what_the_page_is_given(golden: Golden) -> None:
    golden.file("tests/golden/lanes.json", json.dumps(lanes_picture(entry(3)), indent=1) + "\n")


@pytest.mark.slow
def test_names_of_a_placement_cannot_be_markup() -> None:
    axis, place = HOSTILE[0], HOSTILE[1]
    mesh = MeshEntry(((axis, 2),), (joint("all-reduce", place, (axis,)),), (), 0.0, 0, 0)
    shown = page({**source_of(compiled("bert")), "mesh": lanes_picture(mesh)})
    assert axis not in shown and place not in shown
