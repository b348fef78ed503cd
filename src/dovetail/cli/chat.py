"""`dovetail chat`: a conversation with a language model, by the chat template that its file brings."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

from dovetail.cli import generate
from dovetail.cli.command import Answer, Argument, Command
from dovetail.cli.language_options import loaded
from dovetail.cli.progress import tell
from dovetail.errors import OptionError
from dovetail.language import LanguageModel
from dovetail.language.generation import Request
from dovetail.language.templates import Message

_TAKEN = ("model", "prompt", "--special", "--stop", "--times")
"""Arguments of `generate` that a conversation has not, or in another form."""


def run(args: argparse.Namespace) -> Answer:
    """Load the model; then answer the question, or all that are typed."""
    if args.max_tokens < 1:
        raise OptionError(f"--max-tokens {args.max_tokens}", hint="it is 1 or more")
    sampling = generate.sampling_of(args)
    model = loaded(args)
    history: list[Message] = [{"role": "system", "content": args.system}] if args.system else []
    # A file without a template is told before any question.
    assert model.template is not None
    # Compiled later, the tokens a second of the first answer would count that.
    model.programs.prepare()
    return Answer("", pieces=_conversation(model, history, args.question, Request(args.max_tokens, sampling)))


def _conversation(model: LanguageModel, history: list[Message], question: str | None, asked: Request) -> Iterator[str]:
    """Answers piece by piece; the cache keeps the turns before, so that a question reads only what is new."""
    for text in [question] if question is not None else _typed():
        history.append({"role": "user", "content": text})
        prompt = model.tokenizer.encode(model.chat_prompt(history), special=True)
        said: list[str] = []
        count, started, first = 0, time.perf_counter(), 0.0
        for piece in model.pieces(prompt, asked):
            count += piece.token is not None
            first = first or time.perf_counter()
            if piece.text:
                said.append(piece.text)
                yield piece.text
        yield "\n"
        history.append({"role": "assistant", "content": "".join(said)})
        if count > 1:
            rate = (count - 1) / max(time.perf_counter() - first, 1e-9)
            tell(f"  ({len(prompt)} tokens read, first after {first - started:.2f} s, {rate:.1f} tokens a second)")


def _typed() -> Iterator[str]:
    """The questions that are typed, up to an empty one or the end."""
    try:
        while question := (input("> ") if sys.stdin.isatty() else sys.stdin.readline()).strip():
            yield question
    except (EOFError, KeyboardInterrupt):
        return


COMMAND = Command(
    "chat",
    "talk to a language model",
    (
        Argument("model", "a GGUF file with a chat template, or a folder with a checkpoint", {"metavar": "FILE"}),
        Argument("question", "one question; without it those that are typed", {"metavar": "QUESTION", "nargs": "?"}),
        Argument("--system", "what the model is told before", {"metavar": "TEXT", "default": ""}),
        *[argument for argument in generate.COMMAND.arguments if argument.name not in _TAKEN],
    ),
    run,
)
