"""Tokens a second of one stream and of several that decode in one batch, with random weights in blocks.

    PYTHONPATH=src:. python benchmarks/streams.py [--formats q8_0 q4_0] [--streams 1 4 8] [--layers 28] [--cached 32]
        [--threads 2]

The shape is that of Qwen3-0.6B. With few layers weights stay in caches, and one stream does not wait for memory.
Medians of rounds in which all take turns, by the clock.
"""

from __future__ import annotations

import argparse
import statistics
import time

from decode_steps.files import LAYERS, write_qwen3

from dovetail.frontends.gguf.decoder import read_decoder
from dovetail.frontends.gguf.file import read_gguf
from dovetail.language.programs import Programs
from dovetail.language.slots import Slots
from zoo.fetch import ROOT

HOME = ROOT / "build" / "decoders"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--formats", nargs="*", default=["q8_0", "q4_0"])
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 4, 8])
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cached", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    slots: dict[tuple[str, str], Slots] = {}
    for format in given.formats:
        for precision in ("exact", "fast"):
            slots[format, precision] = _slots(format, precision, given)
    times: dict[tuple[str, str, int], list[float]] = {}
    for _ in range(given.rounds):
        for kind, of in slots.items():
            for streams in given.streams:
                times.setdefault((*kind, streams), []).append(_seconds(of, streams, given.cached))
    print(f"{'tokens a second':16}" + "".join([f"{n:>8}" for n in given.streams]) + "   over one")
    for kind in slots:
        rates = [n / statistics.median(times[*kind, n]) for n in given.streams]
        told = "".join([f"{rate / rates[0]:8.2f}" for rate in rates])
        print(f"{' '.join(kind):16}" + "".join([f"{rate:8.1f}" for rate in rates]) + told)
    return 0


def _slots(format: str, precision: str, given: argparse.Namespace) -> Slots:
    HOME.mkdir(parents=True, exist_ok=True)
    path = HOME / f"random-qwen3-{format}-{given.layers}.gguf"
    write_qwen3(path, format, given.layers)
    count = max(given.streams)
    found = Slots(Programs(read_decoder(read_gguf(path)), threads=given.threads, precision=precision), count)
    for slot in range(count):
        found.extend(slot, [slot + 1] * given.cached)
    return found


def _seconds(of: Slots, streams: int, cached: int) -> float:
    """The time of one token for each stream."""
    for slot in range(streams):
        of.trim(slot, cached)
    of.step(dict.fromkeys(range(streams), 7))
    start = time.perf_counter()
    of.step(dict.fromkeys(range(streams), 7))
    return time.perf_counter() - start


if __name__ == "__main__":
    raise SystemExit(main())
