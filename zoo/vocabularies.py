"""Tokenizers beside llama.cpp's: the vocabularies and test strings that llama-cpp-python's source archive ships.

`python -m zoo.vocabularies` fetches the archive once (77 MB, pinned by its hash), and compares all ids.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from dovetail.frontends.gguf.file import read_gguf
from dovetail.language.tokenizer import GgufTokenizer
from zoo.fetch import HOME, by_pip, digest, unpack
from zoo.pin import SOURCE, pin

NAMES = (
    "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gpt-2", "llama-bpe", "llama-spm", "mpt", "phi-3",
    "qwen2", "qwen35", "refact", "starcoder",
)  # fmt: skip
"""Vocabularies with test strings whose tokenizers are read."""
REFUSED = ("bert-bge", "gemma-4")
"""Those whose tokenizers are not."""
_BETWEEN = "\n__ggml_vocab_test__\n"
_VERSION = "0.3.36"
PIN = pin(
    "llama-cpp-python",
    _VERSION,
    "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
    76589250,
    f"llama_cpp_python-{_VERSION}/vendor/llama.cpp/models",
    *[f"ggml-vocab-{name}.gguf{end}" for name in (*NAMES, *REFUSED) for end in ("", ".inp", ".out")],
    tag=SOURCE,
)


def fetched(home: Path = HOME) -> Path:
    """The folder with the vocabularies, fetched if it is not there yet."""
    folder = home / "vocabularies"
    mark = folder / "fetched"
    if not mark.is_file() or mark.read_text(encoding="ascii") != PIN.sha256:
        with TemporaryDirectory() as scratch:
            by_pip(PIN, Path(scratch))
            archive = Path(scratch) / PIN.wheel
            if digest(archive) != PIN.sha256:
                raise SystemExit(f"{archive.name} is not the one that is pinned")
            unpack(archive, PIN, folder)
        mark.write_text(PIN.sha256, encoding="ascii")
    return folder


def differences(folder: Path, name: str) -> Iterator[tuple[str, list[int], list[int]]]:
    """The strings of a vocabulary whose ids differ, with both."""
    path = folder / f"ggml-vocab-{name}.gguf"
    tokenizer = GgufTokenizer(read_gguf(path).fields)
    texts = path.with_suffix(".gguf.inp").read_bytes().decode("utf-8").split(_BETWEEN)
    lines = path.with_suffix(".gguf.out").read_text(encoding="ascii").split("\n")
    for text, line in zip(texts, lines[: len(texts)], strict=True):
        found, wanted = tokenizer.encode(text, bos=False), [int(i) for i in line.split()]
        if found != wanted:
            yield text, found, wanted


def main(arguments: list[str]) -> int:
    """Compare all ids; the exit code says whether they are equal. A folder may be given in place of fetching."""
    folder = Path(arguments[0]) if arguments else fetched()
    failures = 0
    for name in NAMES:
        found = list(differences(folder, name))
        print(f"{name:16} {'equal' if not found else f'{len(found)} differ, such as {found[0][0]!r}'}")
        failures += bool(found)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
