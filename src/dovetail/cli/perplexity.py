"""`dovetail perplexity`: how well a language model predicts a text."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np

from dovetail.cli.command import SCHEMA_VERSION, Answer, Argument, Command
from dovetail.cli.language_options import FILE, LOADING, loaded
from dovetail.cli.options import JSON
from dovetail.errors import LoadError, OptionError
from dovetail.ir.literal import Array
from dovetail.language import LanguageModel


def run(args: argparse.Namespace) -> Answer:
    """Perplexity over windows of a text, each read from its own beginning."""
    if args.window < 2 or args.max_tokens < 0:
        raise OptionError(
            f"--window {args.window} --max-tokens {args.max_tokens}",
            hint="a window is 2 or more, --max-tokens 0 or more",
        )
    text = _text(args.text)
    model = loaded(args)
    tokens = model.tokenizer.encode(text)
    if args.max_tokens:
        tokens = tokens[: args.max_tokens]
    if len(tokens) < 2:
        raise OptionError(f"{len(tokens)} tokens", hint="give a text of two tokens or more")
    if model.shape.context < 2:
        raise OptionError("a model with one position", hint="it predicts nothing after a token")
    found = likelihoods(model, tokens, min(args.window, model.shape.context))
    mean, error = -found.mean(), found.std() / math.sqrt(found.size)
    if mean > _HIGHEST:
        raise OptionError(
            f"a perplexity of e to the {mean:.0f}", hint="the model's logits are far apart; check the file"
        )
    perplexity, within = math.exp(mean), math.exp(mean) * error
    if args.json:
        said = {"schema_version": SCHEMA_VERSION, "perplexity": perplexity, "error": within, "tokens": int(found.size)}
        return Answer(json.dumps(said))
    return Answer(f"perplexity {perplexity:.4f} ± {within:.4f} over {found.size:,} tokens")


_HIGHEST = 700.0
"""The log of the highest perplexity that is a number."""


def likelihoods(model: LanguageModel, tokens: list[int], window: int) -> Array:
    """Log-probabilities of tokens after those before them in their window; the first of each has none."""
    parts = [tokens[start : start + window] for start in range(0, len(tokens), window)]
    return np.concatenate([model.log_likelihoods(part) for part in parts if len(part) > 1])


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"{path} cannot be read as text", hint="give a file of UTF-8") from error


COMMAND = Command(
    "perplexity",
    "measure how well a language model predicts a text",
    (
        FILE,
        Argument("text", "a file of text", {"metavar": "TEXT"}),
        Argument("--window", "tokens that are read together (512)", {"metavar": "COUNT", "type": int, "default": 512}),
        Argument(
            "--max-tokens",
            "tokens of the text; 0 for all (0)",
            {"metavar": "COUNT", "type": int, "default": 0},
            old="--most",
        ),
        *LOADING,
        JSON,
    ),
    run,
)
