"""Graphs for other programs: StableHLO text, and files that `jax.export` reads, also for devices that are not here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from dovetail import library
from dovetail.declare.fused import FusedOp
from dovetail.errors import OptionError
from dovetail.ir.graph import Graph
from dovetail.passes.claims import Claims
from dovetail.passes.pipeline import FUSING
from dovetail.targets.xla import claims as xla
from dovetail.targets.xla.package import jax, jax_export, wide_types
from dovetail.targets.xla.target import TARGET
from dovetail.targets.xla.trace import Tracer

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")

UNFUSED = FUSING - {"fuse"}
"""The passes that text is made without: its fused ops are those that a model is written with."""


def _claims(declared: Iterable[FusedOp[...]] = ()) -> Claims:
    """What XLA is handed, and fused ops by name."""
    fused = {op.name: () for op in (*library.ALL, *declared)}
    return replace(xla.CLAIMS, native={**xla.CLAIMS.native, **fused}, fuses_itself=False)


COMPOSED = replace(TARGET, claims=_claims)
"""Plans whose fused ops are kept, to be written and not to be run."""


def stablehlo(graph: Graph) -> str:
    """The text of a function of all parameters, then all inputs; it gives the outputs. Indices are not checked.

    A fused op is a composite with its body: `stablehlo.composite "dovetail.rms_norm"`.
    """
    function, shapes = function_of(graph, composites=True)
    with wide_types():
        return function.trace(shapes).lower(lowering_platforms=("cpu",)).as_text(debug_info=True)


def exported(graph: Graph, platforms: Sequence[str] = PLATFORMS) -> bytes:
    """A file for `jax.export.deserialize`: a function of one list, parameters and then inputs.

    Fused ops are spelled out: JAX lowers no composite for several platforms at once.
    """
    strange = [p for p in platforms if p not in PLATFORMS]
    if strange or not platforms:
        raise OptionError(f"a platform {', '.join(strange)!r}", hint=f"platforms are {', '.join(PLATFORMS)}")
    function, shapes = function_of(graph)
    with wide_types():
        return bytes(jax_export.export(function, platforms=tuple(platforms))(shapes).serialize())


def function_of(graph: Graph, *, composites: bool = False) -> tuple[Any, list[Any]]:
    """A graph as a function of JAX of one list, parameters and then inputs; and their shapes."""
    leaves = [*graph.parameters, *graph.inputs]
    unknown = sorted({str(s) for v in leaves for s in v.shape if not isinstance(s, int)})
    if unknown:
        raise OptionError(
            f"{graph.name} has sizes that are not known: {', '.join(unknown)}",
            hint=f"give each a number: --size {unknown[0]}=8",
        )

    def computed(arrays: Sequence[Any]) -> list[Any]:
        tracer = Tracer(graph.where, composites=composites)
        return tracer.values(list(graph.outputs.values()), dict(zip(leaves, arrays, strict=True)))

    shapes = [jax.ShapeDtypeStruct(v.shape, v.dtype.numpy) for v in leaves]
    return jax.jit(computed, keep_unused=True), shapes


__all__ = ["COMPOSED", "PLATFORMS", "UNFUSED", "exported", "function_of", "stablehlo"]
