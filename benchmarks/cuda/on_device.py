"""What a GPU has to show, in a few minutes: conformance, first calls, calls, compute-sanitizer, products by cuBLASLt,
encoders and decoders with layers as launches and as persistent kernels, and models in f16 and f32.

    PYTHONPATH=src:. python3 benchmarks/cuda/on_device.py [part ...] [--within 360]

Parts run one after the other, each in processes of its own with a time limit. A part that fails or is late says so, and
the next one runs; its last lines are printed all the same.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES = 45
"""Lines of a part that are printed, the last ones."""


@dataclass(frozen=True, slots=True)
class Part:
    """A command and how long it may take."""

    command: tuple[str, ...]
    seconds: float


PARTS = {
    "conformance": Part(
        ("-m", "tests.conformance", "--target", "cuda", "--brief", "--seconds", "60", "--within", "150"), 190
    ),
    "first_call": Part(("benchmarks/cuda/first_call.py", "minilm_1x16"), 45),
    "calls": Part(("benchmarks/cuda/calls.py", "minilm_1x16"), 100),
    "sanitize": Part(("-m", "tests.targets.cuda.sanitized", "--within", "90"), 100),
    "encoders": Part(("benchmarks/cuda/encoders.py", "--shape", "vit_base", "whisper_tiny", "vit_tiny"), 100),
    "decoders": Part(("benchmarks/cuda/decode.py", "--cached", "512", "--both"), 60),
    "products": Part(("benchmarks/cuda/models.py", "products"), 60),
    "models": Part(("benchmarks/cuda/models.py", "bert_1x128", "resnet50_1", "--from-numpy"), 100),
    "models_f32": Part(("benchmarks/cuda/models.py", "bert_1x128", "resnet50_1", "--dtype", "f32"), 100),
}


def run(part: Part, limit: float) -> tuple[str, str]:
    """How a part ended, and what it printed."""
    own = {"PYTHONPATH": "src:.", "DOVETAIL_CACHE": "off", "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, *part.command],
        cwd=ROOT,
        env={**os.environ, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit)
        return f"status {process.returncode}", output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its own processes too
        return "late", process.communicate()[0]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", nargs="*", help=", ".join(PARTS))
    parser.add_argument("--within", type=float, default=360.0, help="seconds for all parts")
    args = parser.parse_args()
    unknown = {*args.part} - {*PARTS}
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    end = time.monotonic() + args.within
    for name, part in PARTS.items():
        if args.part and name not in args.part:
            continue
        begun = time.monotonic()
        limit = min(part.seconds, end - begun)
        ended, output = run(part, limit) if limit > 0 else ("not run", "")
        lines = [line[:400] for line in output.splitlines() if line.strip()]
        print(f"== {name}: {ended}, {time.monotonic() - begun:.0f} s", *lines[-LINES:], sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
