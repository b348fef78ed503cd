"""Tokens and prompts of decoders beside llama.cpp, OpenVINO GenAI and ONNX Runtime GenAI, on the same file.

    PYTHONPATH=src:. python benchmarks/decoders.py
        [--files q8_0 q4_0 q4_k_m f16 q4_1 q5_0 q5_k_m q6_k moe_q8_0 moe_q4_0 moe_q4_k_m smollm2]
        [--cached 512] [--prompt 512] [--threads 2] [--rounds 5] [--seconds 1] [--cpu] [--layers 28]
        [--peer-python PYTHON] [--vs llama.cpp]

Lines tell tokens a second, the time from loading to the first token, and memory.
Files have random weights in the shape of Qwen3-0.6B (written to build/decoders once), or are SmolLM2, as `make chat`
fetches it; those that begin with moe_ are small mixtures of experts with 8 layers, of whose 64 experts a token chooses
8, for llama.cpp alone. Each engine has a process of its own, and they take turns; times are medians, with --cpu those
of the processor, for machines that others use too. Ratios above 1 are in our favour, over the fastest of the peers.

--peer-python is an interpreter with the peers, if another one; those that it does not have are skipped, and without any
lines have no ratio. `CMAKE_ARGS=-DGGML_NATIVE=ON pip install llama-cpp-python --no-binary llama-cpp-python` builds
llama.cpp for this machine (wheels of it, such as xllamacpp's, are built for any core: without dot products of bytes,
AVX-512 or AMX); `pip install openvino-genai onnxruntime-genai` installs the others. Measured versions are in
docs/performance.md.

- Ours run in exact mode, in exact mode with a cache of f16, which is what the peers have, and in fast mode.
- llama.cpp runs with and without its flash attention (fa).
- OpenVINO GenAI reads GGUF files of Llama, Qwen2 and Qwen3 itself, and runs with its SDPA and with its paged attention,
  which its ARM build refuses. It computes in the precision of its choice (f16 or bf16 where cores have it), and in
  f32 where it cannot compile that; the line of loading tells. Its cache cannot be cut, so that 16 tokens after the
  cached ones are timed.
- ONNX Runtime GenAI reads no GGUF file: decode_steps/onnx_folder.py writes the graph that its model builder makes, with
  the blocks of the file (Q8_0, Q4_0, Q6_K bit for bit; lows of Q4_K rounded; f16 as f32, as it does on CPUs).

The share of the read bandwidth, which is measured in the same rounds, is that of the file's bytes
times the tokens a second: a token reads all of them, but for experts that it does not choose; the cache is not counted.
It is not told with --cpu.
Memory is what a process holds after its first token without pages of files, over the size of the file.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from asked import asked
from decode_steps.files import EXPERT_KINDS, EXPERT_LAYERS, KINDS, LAYERS, MORE_KINDS, token_bytes, write_qwen3
from decode_steps.onnx_folder import write_folder

from dovetail.bench.process import OnCores
from dovetail.targets.cpu.measure.bandwidth import BandwidthMeter
from zoo.fetch import ROOT, FetchError, fetch

HOME = ROOT / "build" / "decoders"
SERVE = Path(__file__).resolve().parent / "decode_steps" / "serve.py"
SMOLLM2 = "smollm2"
_READ = 256 << 20
"""Bytes that all threads read in turn where bandwidth is measured: more than caches hold."""
PEERS = {
    "exact": "",
    "exact f16": "",
    "fast": "",
    "llama.cpp": "llama_cpp",
    "llama.cpp fa": "llama_cpp",
    "openvino": "openvino_genai",
    "openvino paged": "openvino_genai",
    "onnxruntime": "onnxruntime_genai",
}
"""Our precisions and each peer, with the package that it needs."""
OURS = [name for name, package in PEERS.items() if not package]


class Engine:
    """A process that decodes."""

    def __init__(self, name: str, python: str, path: Path, threads: int, clock: str) -> None:
        self.name = name
        with OnCores(threads):
            self.process = subprocess.Popen(
                [python, str(SERVE), name, str(path), str(threads), clock],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            )  # fmt: skip

    def ask(self, words: str) -> dict[str, Any]:
        return asked(self.process, words)

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--files", nargs="*", default=[*KINDS, SMOLLM2], choices=[*KINDS, *MORE_KINDS, *EXPERT_KINDS, SMOLLM2]
    )
    parser.add_argument("--cached", type=int, nargs="*", help="tokens before the one that is timed")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt; 0 for none")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each engine")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn, about")
    parser.add_argument("--cpu", action="store_true", help="processor time")
    parser.add_argument("--layers", type=int, help=f"{LAYERS}, or {EXPERT_LAYERS} of mixtures of experts")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--vs", nargs="*", default=list(PEERS)[len(OURS) :], choices=list(PEERS)[len(OURS) :])
    options = parser.parse_args()
    peers = [name for name in options.vs if has_package(options.peer_python, PEERS[name])]
    for name in set(options.vs) - set(peers):
        print(f"{name} is skipped: {options.peer_python} has no {PEERS[name]}")
    for name in options.files:
        try:
            layers = options.layers or (EXPERT_LAYERS if name in EXPERT_KINDS else LAYERS)
            path = _file(name, layers)
        except FetchError as error:
            print(f"{name} is skipped: {error}")
            continue
        some = [peer for peer in peers if name not in EXPERT_KINDS or peer.startswith("llama.cpp")]
        if "onnxruntime" in some and name != SMOLLM2:
            write_folder(path, path.with_suffix(".onnxruntime"))
        read = token_bytes(name, layers) if name in EXPERT_KINDS else path.stat().st_size
        _measure(name, path, [*OURS, *some], options, read)
    return 0


def has_package(python: str, package: str) -> bool:
    """Whether an interpreter has a package."""
    asked = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return subprocess.run([python, "-c", asked], capture_output=True).returncode == 0


def _file(name: str, layers: int) -> Path:
    if name == SMOLLM2:
        return next(fetch(SMOLLM2).glob("*.gguf"))
    HOME.mkdir(parents=True, exist_ok=True)
    path = HOME / f"random-qwen3-{name}-{layers}.gguf"
    write_qwen3(path, name, layers)
    return path


def _measure(name: str, path: Path, names: list[str], options: argparse.Namespace, read: int) -> None:
    """Print the lines of one file, of which a token reads `read` bytes."""
    clock = "cpu" if options.cpu else "wall"
    pythons = {each: options.peer_python if PEERS[each] else sys.executable for each in names}
    engines = [Engine(each, pythons[each], path, options.threads, clock) for each in names]
    starts: dict[str, dict[str, Any]] = {}
    for engine in [*engines]:
        told = engine.ask("start")
        if "refused" in told:
            print(f"{name} {engine.name}: refused, {told['refused']}")
            engines.remove(engine)
            engine.end()
        else:
            starts[engine.name] = told
    size = path.stat().st_size
    for each, told in starts.items():
        print(
            f"bench load/{name} {each:12} first_token={told['load']:.2f}s cpu={told['load_cpu']:.2f}s"
            f" memory={told['anonymous'] / size:.2f} resident={told['resident'] >> 20}MB peak={told['peak'] >> 20}MB"
            + (f" computes in {told['precision']}" if told["precision"] else ""),
            flush=True,
        )
    meter = BandwidthMeter(options.threads)
    works = [f"step {cached} {options.seconds}" for cached in _cached(name, options)]
    works += [f"prompt {options.prompt}"] if options.prompt else []
    for work in works:
        runs: dict[str, list[float]] = defaultdict(list)
        reads: list[float] = []
        refused: set[str] = set()
        for turn in range(options.rounds):
            if not options.cpu:
                reads.append(meter.read(_READ // options.threads))
            for place in range(len(engines)):
                engine = engines[(turn + place) % len(engines)]
                if engine.name in refused:
                    continue
                told = engine.ask(work)
                if "refused" in told:
                    print(f"{name} {engine.name}: refused, {told['refused']}")
                    refused.add(engine.name)
                    runs.pop(engine.name, None)
                else:
                    runs[engine.name] += told["runs"]
        word, count, *_ = work.split()
        tokens = int(count) if word == "prompt" else 1
        print(_line(f"{word}/{name}/{count}", tokens, runs, options), flush=True)
        if word == "step" and reads:
            print(_share(f"{word}/{name}/{count}", read, runs, statistics.median(reads)), flush=True)
    for engine in engines:
        engine.end()


def _cached(name: str, options: argparse.Namespace) -> list[int]:
    return options.cached or ([32, 512, 2048] if name == SMOLLM2 else [32, 512])


def _share(what: str, size: int, runs: dict[str, list[float]], read: float) -> str:
    """The share of the read bandwidth that the weights of a token take."""
    told = " ".join([f"{each.replace(' ', '-')}={size / statistics.median(r) / read:.0%}" for each, r in runs.items()])
    return f"bench {what} share of {read / 1e9:.1f} GB/s that threads read: {told}"


def _line(what: str, tokens: int, runs: dict[str, list[float]], options: argparse.Namespace) -> str:
    rates = {each: tokens / statistics.median(found) for each, found in runs.items()}
    peer = max([each for each in rates if PEERS[each]], key=rates.__getitem__, default=None)
    told = " ".join([f"{each.replace(' ', '-')}={rate:.4g}" for each, rate in rates.items()])
    ratios = "" if peer is None else " ".join([f"{rates[ours] / rates[peer]:.2f}" for ours in OURS])
    clock = "of processor time" if options.cpu else "of the clock"
    return f"bench {what} threads={options.threads} tokens a second {clock}: {told}" + (
        f" {','.join(OURS)} over {peer}: {ratios}" if ratios else ""
    )


if __name__ == "__main__":
    sys.exit(main())
