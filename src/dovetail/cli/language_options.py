"""Options that the commands of language models share."""

from __future__ import annotations

import argparse

from dovetail.cli.command import Argument
from dovetail.cli.options import PRECISION
from dovetail.errors import OptionError
from dovetail.language import LanguageModel
from dovetail.models.kv_cache import CACHE_KINDS

FILE = Argument("model", "a GGUF file, or a folder with a checkpoint", {"metavar": "FILE"})
KV_CACHE = Argument(
    "--kv-cache",
    "how keys and values are stored: f32, f16, or q8 with a byte for each number (f32, with --precision fast f16)",
    {"choices": CACHE_KINDS, "default": None},
)
ADAPTER = Argument("--adapter", "a GGUF file with a LoRA adapter for the model", {"metavar": "FILE"})
ADAPTER_SCALE = Argument(
    "--adapter-scale",
    "how many times the updates of the adapter are taken (1)",
    {"metavar": "NUMBER", "type": float, "default": 1.0},
    needs="--adapter",
)
THREADS = Argument("--threads", "how many threads; 0 for all (0)", {"metavar": "COUNT", "type": int, "default": 0})
LOADING = (KV_CACHE, ADAPTER, ADAPTER_SCALE, PRECISION, THREADS)
"""How a model is loaded."""


def loaded(args: argparse.Namespace) -> LanguageModel:
    """The model of a command line."""
    if args.threads < 0:
        raise OptionError(f"--threads {args.threads}", hint="it is 0 or more")
    return LanguageModel(
        args.model,
        kv_cache=args.kv_cache,
        adapter=args.adapter,
        adapter_scale=args.adapter_scale,
        precision=args.rounding,
        threads=args.threads,
    )


__all__ = ["FILE", "LOADING", "loaded"]
