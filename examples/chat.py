"""Talk to a small language model: `make chat`, or `python examples/chat.py model.gguf "a question"`.

The model's turns are ChatML, as SmolLM2 was trained with them. Weights stay in the file's blocks, and a question reads
only what is new: the cache keeps the turns before.
"""

from __future__ import annotations

import sys
import time

from dovetail.language import LanguageModel

SYSTEM = "You are a helpful assistant. Answer briefly."


def turn(role: str, text: str = "") -> str:
    """A turn that is complete, or one that the model completes."""
    return f"<|im_start|>{role}\n{text}<|im_end|>\n" if text else f"<|im_start|>{role}\n"


def answer(model: LanguageModel, history: list[int], question: str) -> list[int]:
    """Print an answer as it comes; the history with both turns."""
    asked = model.tokenizer.encode(turn("user", question) + turn("assistant"), special=True)
    history = history + asked
    count, started = 0, time.perf_counter()
    words: list[str] = []
    for piece in model.generate(history, max_tokens=256):
        print(piece, end="", flush=True)
        words.append(piece)
        count += 1
    print(f"\n  ({count / (time.perf_counter() - started):.1f} pieces a second)")
    return history + model.tokenizer.encode("".join(words)) + model.tokenizer.encode("<|im_end|>\n", special=True)


def main(arguments: list[str]) -> None:
    """One question from the command line, or all that are typed."""
    if not arguments:
        print("usage: chat.py model.gguf [question]; `make chat` fetches a model")
        return
    path, *questions = arguments
    model = LanguageModel(path)
    history = model.tokenizer.encode(turn("system", SYSTEM), special=True)
    try:
        while True:
            question = questions.pop(0) if questions else "" if arguments[1:] else input("> ")
            if not question:
                return
            history = answer(model, history, question)
    except (EOFError, KeyboardInterrupt):
        print()


if __name__ == "__main__":
    main(sys.argv[1:])
