"""Tokens a second of one stream and of several that decode in one batch, with random weights in blocks.

    PYTHONPATH=src:. python benchmarks/streams.py [--formats q8_0 q4_0] [--streams 1 4 8] [--layers 6] [--cached 32]

The shape is that of Qwen3-0.6B with fewer layers and a small vocabulary. One thread, its processor time, the least of
rounds in which all take turns.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from dovetail.frontends.gguf.decoder import read_decoder
from dovetail.frontends.gguf.file import read_gguf
from dovetail.language.programs import Programs
from dovetail.language.slots import Slots
from tests.gguf_files import decoder, written


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--formats", nargs="*", default=["q8_0", "q4_0"])
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 4, 8])
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--cached", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    slots: dict[tuple[str, str], Slots] = {}
    for format in given.formats:
        for precision in ("exact", "fast"):
            slots[format, precision] = _slots(format, precision, given.layers, max(given.streams), given.cached)
    best: dict[tuple[str, str, int], float] = {}
    for _ in range(given.rounds):
        for kind, of in slots.items():
            for streams in given.streams:
                seconds = _seconds(of, streams, given.cached)
                best[*kind, streams] = min(seconds, best.get((*kind, streams), seconds))
    print(f"{'tokens a second':16}" + "".join([f"{n:>8}" for n in given.streams]) + "   over one")
    for kind in slots:
        rates = [n / best[*kind, n] for n in given.streams]
        told = "".join([f"{rate / rates[0]:8.2f}" for rate in rates])
        print(f"{' '.join(kind):16}" + "".join([f"{rate:8.1f}" for rate in rates]) + told)
    return 0


def _slots(format: str, precision: str, layers: int, count: int, cached: int) -> Slots:
    fields, tensors = decoder(
        "qwen3", format, hidden=1024, heads=16, kv_heads=8, width=128, inner=3072, layers=layers, vocabulary=512
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        path.write_bytes(written(fields, tensors))
        found = Slots(Programs(read_decoder(read_gguf(path)), threads=1, precision=precision), count)
    for slot in range(count):
        found.extend(slot, [slot + 1] * cached)
    return found


def _seconds(of: Slots, streams: int, cached: int) -> float:
    """The processor time of one token for each stream."""
    for slot in range(streams):
        of.trim(slot, cached)
    of.step(dict.fromkeys(range(streams), 7))
    start = time.thread_time()
    of.step(dict.fromkeys(range(streams), 7))
    return time.thread_time() - start


if __name__ == "__main__":
    raise SystemExit(main())
