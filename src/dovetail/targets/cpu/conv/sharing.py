"""How many parts the pixels of a layer are cut into, so that every thread of the device has a tile.

No part changes how a result is summed: bits do not depend on the number of threads.
"""

from __future__ import annotations

from dovetail.ir.dim import Size
from dovetail.kernels.device import CpuDevice


def shared_parts(parts: int, images: Size, tiles: int, most: int, device: CpuDevice) -> int:
    """Parts that give each thread a tile, where `parts` leave some idle; at most `most`.

    Each part of an image is `tiles` tiles. A number of images that is not known counts as one.
    """
    others = max(1, tiles * images if isinstance(images, int) else tiles)
    return parts if parts * others >= device.threads else max(parts, min(most, -(-device.threads // others)))


__all__ = ["shared_parts"]
