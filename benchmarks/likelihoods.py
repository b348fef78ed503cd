"""SmolLM2's likelihoods and greedy text beside llama.cpp's, on the same file.

    PYTHONPATH=src:. python benchmarks/likelihoods.py [--most 384] [--text README.md] [--peer-python PYTHON]

The KL divergence is that from our exact mode, whose own from float64 is 1.2e-11 (docs/language-models.md): what an
engine rounds. Each reads the text token by token; then fast mode reads it as one prompt on tiles of AMX, which are
emulated in plain vector code where a machine has none. Greedy text counts the tokens before the first that differs from
exact. llama.cpp is skipped where --peer-python, this interpreter by default, has no llama-cpp-python.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path

import numpy as np
from decoders import PEERS, SMOLLM2, Engine, has_package

from dovetail.frontends.gguf.file import read_gguf
from dovetail.ir.literal import Array
from dovetail.kernels.device import CpuDevice
from dovetail.language import LanguageModel, programs
from dovetail.language.tokenizer import GgufTokenizer
from dovetail.targets.cpu import backend
from zoo.fetch import ROOT, FetchError, fetch

PROMPTS = (
    "The capital of France is",
    "<|im_start|>user\nName three planets.<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--most", type=int, default=384, help="tokens of the text")
    parser.add_argument("--text", type=Path, default=ROOT / "README.md")
    parser.add_argument("--greedy", type=int, default=48, help="tokens after each prompt")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peer-python", default=sys.executable)
    options = parser.parse_args()
    try:
        path = next(fetch(SMOLLM2).glob("*.gguf"))
    except FetchError as error:
        print(f"skipped: {error}")
        return 0
    names = ["exact", "fast"]
    if has_package(options.peer_python, PEERS["llama.cpp"]):
        names += ["llama.cpp", "llama.cpp fa"]
    else:
        print(f"llama.cpp is skipped: {options.peer_python} has no llama_cpp (pip install llama-cpp-python)")
    tokenizer = GgufTokenizer(read_gguf(path).fields)
    tokens = tokenizer.encode(options.text.read_text(encoding="utf-8"))[: options.most]
    prompts = [tokenizer.encode(prompt, special=True) for prompt in PROMPTS]
    exact: Array | None = None
    wanted: list[list[int]] = []
    for name in names:
        scores, texts = _read(name, path, tokens, prompts, options)
        found = _log_softmax(scores)
        if exact is None:
            exact, wanted = found, texts
        said = _compared(exact, found, tokens)
        same = [_common(text, other) for text, other in zip(texts, wanted, strict=True)]
        print(f"{name:13}{said}  greedy tokens the same {same} of {options.greedy} each", flush=True)
    if exact is not None:
        print(f"{'fast, prompt':13}{_compared(exact, _log_softmax(_on_tiles(path, tokens, options.threads)), tokens)}")
    return 0


def _on_tiles(path: Path, tokens: list[int], threads: int) -> Array:
    """Logits of fast mode after each token of a text that is one prompt, with products on tiles of AMX."""
    if not backend.host_device().has("amx_bf16"):
        capabilities = ("amx_bf16", "avx512_bf16", "f16_conversion", "vnni")
        backend.host_device = programs.host_device = lambda: CpuDevice(512, 32, capabilities, emulated=True)
    model = LanguageModel(path, precision="fast", threads=threads, cache="off")
    return model.session().extend_all(tokens, len(tokens))


def _read(
    name: str, path: Path, tokens: list[int], prompts: list[list[int]], options: argparse.Namespace
) -> tuple[Array, list[list[int]]]:
    """Logits after each token of the text, and what follows each prompt."""
    python = options.peer_python if PEERS[name] else sys.executable
    engine = Engine(name, python, path, options.threads, "cpu")
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "scores"
            asked = ["start", " ".join(["scores", str(file), *map(str, tokens)])]
            asked += [" ".join(["greedy", str(options.greedy), *map(str, prompt)]) for prompt in prompts]
            told = [engine.ask(words) for words in asked]
            for each in told:
                if "refused" in each:
                    raise SystemExit(f"{name}: {each['refused']}")
            scores = np.fromfile(file, np.float32).reshape(len(tokens), -1)
            return scores, [each["tokens"] for each in told[2:]]
    finally:
        engine.end()


def _log_softmax(scores: Array) -> Array:
    wide = scores.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))


def _compared(exact: Array, found: Array, tokens: list[int]) -> str:
    """The KL divergence from the exact likelihoods, and the perplexity of the text."""
    divergence = (np.exp(exact) * (exact - found)).sum(axis=-1)
    same = (exact.argmax(axis=-1) == found.argmax(axis=-1)).mean()
    after = found[np.arange(len(tokens) - 1), tokens[1:]]
    most = np.quantile(divergence, 0.99)
    return (
        f"KL mean {divergence.mean():.2e}  99 % below {most:.2e}  likeliest the same {same:.1%}"
        f"  perplexity {math.exp(-after.mean()):.3f}"
    )


def _common(one: list[int], other: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))


if __name__ == "__main__":
    sys.exit(main())
