"""The programs of a decoder: a prompt, a token, a token of each of several sequences, and states without logits.

On a card there is also one that copies rows of caches, and programs of a token choose the likeliest next one.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from dovetail.errors import OptionError
from dovetail.frontends.decoder_families import DecoderFile
from dovetail.ir.value import Value
from dovetail.models.decoder import cached_decoder
from dovetail.models.decoder_shape import DecoderShape
from dovetail.models.kv_cache import CACHE_KINDS, CacheKind, copied_rows
from dovetail.runtime.compile import compile
from dovetail.runtime.in_memory import Described
from dovetail.runtime.program import Program
from dovetail.targets.cpu.isa import host_device
from dovetail.targets.runtime.arrays.page_advice import trim
from dovetail.targets.target import Target

_GRAPHS: Mapping[str, Mapping[str, Any]] = {
    "prompt": {"seq": "s", "wanted": "w"},
    "step": {},
    "batch": {"batch": "b"},
    "states": {"seq": "s", "gives": "states"},
}
"""What each program is built with."""
_OF_A_TOKEN = ("step", "batch")


class Programs:
    """Programs of one decoder, which share its weights. Each is compiled when it is first used."""

    def __init__(self, of: DecoderFile, kv_cache: CacheKind | None = None, **options: Any) -> None:
        """`options` are those of `dovetail.compile`."""
        if kv_cache is not None and kv_cache not in CACHE_KINDS:
            raise OptionError(f"a KV cache of the kind {kv_cache!r}", hint=f"it is one of {', '.join(CACHE_KINDS)}")
        self.shape: DecoderShape = of.shape
        # Activations that are rounded make other bits of other rows anyway: then prompts take the faster attention.
        self.is_exact = options.get("precision", "exact") == "exact"
        self.on_cpu = options.get("target", "cpu") == "cpu"
        self.on_tiles = self.on_cpu and not self.is_exact and host_device().has("amx_bf16")
        """Whether products of prompts are computed on tiles of bf16."""
        # Next to activations of 8 bits the rounding of a cache to 11 is small, and a token reads half the bytes.
        is_narrow = self.on_cpu and not self.is_exact and host_device().has("f16_conversion")
        self.kind: CacheKind = kv_cache or ("f16" if is_narrow else "f32")
        target = options.get("target", "cpu")
        self.on_card = (target.name if isinstance(target, Target) else target) == "cuda"
        """Whether programs run in memory of their own: KV caches stay there, and tokens are chosen there.

        On a CPU NumPy finds the likeliest of logits sooner than a kernel.
        """
        self._of, self._options = of, options
        self._compiled: dict[str, Program] = {}
        self._lock = threading.Lock()

    @property
    def prompt(self) -> Program:
        """Several tokens of one sequence."""
        return self._program("prompt")

    @property
    def step(self) -> Program:
        """One token of one sequence."""
        return self._program("step")

    @property
    def batch(self) -> Program:
        """One token of each of several sequences."""
        return self._program("batch")

    @property
    def states(self) -> Program:
        """The last layer's states of several tokens of one sequence."""
        return self._program("states")

    @property
    def copy(self) -> Program:
        """The first rows of the caches of one sequence, written to those of another."""
        return self._program("copy")

    def prepare(self) -> None:
        """Compile what a sequence needs before it is needed."""
        for name in ("prompt", "step"):
            self._program(name)

    def _program(self, name: str) -> Program:
        with self._lock:
            if name not in self._compiled:
                program = compile(self._described(name), **self._options)
                # Before weights take their memory, what compiling took is freed.
                program.reports.release()
                trim()
                program.bind({param: self._of.params[param] for param in map(_name, program.graph.signature)})
                trim()
                self._compiled[name] = program
            return self._compiled[name]

    def _described(self, name: str) -> Described:
        """The graph of a program; layers are alike, and building all of them takes as long as reading a program."""
        of = self._of
        if name == "copy":
            sizes = (self.kind, of.shape.layers, of.shape.kv_heads, of.shape.width)
            return Described(f"copied_rows {sizes}", lambda: copied_rows(*sizes))
        how: dict[str, Any] = {**_GRAPHS[name], "by_token": self.is_exact, "cache": self.kind}
        if self.on_card and name in _OF_A_TOKEN:
            how["chooses"] = True
        given = (self.shape, sorted(of.kinds.items()), sorted(of.ranks.items()), sorted(how.items()))
        return Described(f"cached_decoder {given}", lambda: cached_decoder(self.shape, of.kinds, ranks=of.ranks, **how))


def _name(value: Value) -> str:
    return str(value.attrs["name"])


__all__ = ["Programs"]
