"""How many parts the pixels of a layer are cut into, so that the threads of the device finish together.

No part changes how a result is summed: bits do not depend on the number of threads.
"""

from __future__ import annotations

from dovetail.ir.dim import Size
from dovetail.kernels.device import CpuDevice

ENOUGH = 0.85
"""The share of their time that threads must be busy: smaller parts read the weights more often."""


def shared_parts(parts: int, images: Size, tiles: int, most: int, device: CpuDevice) -> int:
    """The smallest number of parts, from `parts` on and at most `most`, that keeps threads busy; else the best.

    Each part of an image is `tiles` tiles. A number of images that is not known counts as one.
    """
    others = max(1, tiles * images if isinstance(images, int) else tiles)

    def busy(count: int) -> float:
        rounds = -(-count * others // device.threads)
        return count * others / (rounds * device.threads)

    enough = 2 * max(parts, -(-device.threads // others))
    choices = range(parts, max(parts, min(most, enough)) + 1)
    return next((count for count in choices if busy(count) >= ENOUGH), max(choices, key=busy))


__all__ = ["shared_parts"]
