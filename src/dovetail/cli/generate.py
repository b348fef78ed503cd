"""`dovetail generate`: text that continues a prompt, by a language model."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

from dovetail.cli.command import Answer, Argument, Command
from dovetail.cli.language_options import FILE, LOADING, loaded
from dovetail.cli.progress import tell
from dovetail.errors import LoadError, OptionError
from dovetail.language import Sampling
from dovetail.language.json_schema import Schema
from dovetail.language.slots import check_tokens


def run(args: argparse.Namespace) -> Answer:
    """Load the model, and hand its text on as it comes."""
    if args.most < 0:
        raise OptionError(f"--most {args.most}", hint="it is 0 or more")
    sampling = sampling_of(args)
    schema = None if args.schema is None else _schema(args.schema)
    model = loaded(args)
    # The prompt is read here: what is wrong with it is told before any text.
    tokens = model.tokenizer.encode(args.prompt, special=args.special)
    check_tokens(model.shape, tokens)
    pieces = model.generate(
        tokens, max_tokens=args.most, sampling=sampling, stop=args.stop, schema=schema, speculate=args.speculate
    )
    return Answer("", pieces=_timed(pieces, args.times))


def sampling_of(args: argparse.Namespace) -> Sampling:
    """How the arguments draw tokens."""
    return Sampling(
        args.temperature,
        args.top_k,
        args.top_p,
        args.min_p,
        args.repetition_penalty,
        args.seed,
        args.presence_penalty,
        args.frequency_penalty,
    )


def _schema(path: str) -> Schema:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(f"{path} cannot be read as JSON", hint="give a file with a JSON schema") from error


def _timed(pieces: Iterator[str], told: bool) -> Iterator[str]:
    """The pieces; afterwards, if asked for, how fast they came."""
    started = time.perf_counter()
    first, count = 0.0, 0
    for piece in pieces:
        count += 1
        first = first or time.perf_counter()
        yield piece
    if told and count > 1:
        seconds = time.perf_counter() - first
        tell(f"first piece after {first - started:.2f} s, then {(count - 1) / seconds:.1f} pieces/s")


COMMAND = Command(
    "generate",
    "continue a prompt with a language model",
    (
        FILE,
        Argument("prompt", "the text to continue", {"metavar": "PROMPT"}),
        Argument("--most", "how many tokens at most (128)", {"metavar": "COUNT", "type": int, "default": 128}),
        Argument(
            "--temperature",
            "how evenly tokens are drawn; 0 takes the likeliest (0)",
            {"metavar": "NUMBER", "type": float, "default": 0.0},
        ),
        Argument(
            "--top-k",
            "draw among the COUNT likeliest tokens; 0 for all (0)",
            {"metavar": "COUNT", "type": int, "default": 0},
        ),
        Argument(
            "--top-p",
            "draw among the likeliest tokens that reach this probability (1)",
            {"metavar": "SHARE", "type": float, "default": 1.0},
        ),
        Argument(
            "--min-p",
            "draw among tokens with this share of the likeliest one's probability (0)",
            {"metavar": "SHARE", "type": float, "default": 0.0},
        ),
        Argument(
            "--repetition-penalty",
            "make tokens that came before less likely; 1 for not at all (1)",
            {"metavar": "NUMBER", "type": float, "default": 1.0},
        ),
        Argument(
            "--presence-penalty",
            "lower the logits of tokens that the answer has by this (0)",
            {"metavar": "NUMBER", "type": float, "default": 0.0},
        ),
        Argument(
            "--frequency-penalty",
            "lower them by this for each time that it has them (0)",
            {"metavar": "NUMBER", "type": float, "default": 0.0},
        ),
        Argument("--seed", "what draws start from (0)", {"metavar": "NUMBER", "type": int, "default": 0}),
        Argument(
            "--stop",
            "end before this text; may be given several times",
            {"metavar": "TEXT", "action": "append", "default": []},
        ),
        Argument("--special", "read names of control tokens in the prompt as these tokens", {"action": "store_true"}),
        Argument(
            "--schema",
            "a file with a JSON schema that the text satisfies",
            {"metavar": "FILE"},
        ),
        Argument(
            "--speculate",
            "guess up to COUNT tokens from the text before and check them at once; changes no token (0)",
            {"metavar": "COUNT", "type": int, "default": 0},
        ),
        *LOADING,
        Argument("--times", "tell how fast text came, on stderr", {"action": "store_true"}),
    ),
    run,
)
