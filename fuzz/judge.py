"""Whether a program computes what its graph means: float64 judges numbers, and bits where bits are promised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import dovetail
from dovetail import Graph, Program, Value
from dovetail.ir import leaf
from dovetail.ir.dtype import f32
from dovetail.ir.literal import Array
from dovetail.ir.solve import Found, solve_symbols
from dovetail.ir.type import TensorType
from dovetail.passes.specialize import specialize
from dovetail.targets.reference.interpreter import evaluate
from fuzz.case import Case, Way
from tests.tolerances import roundoff

NOISE = 16.0
"""Our error may be this many times the error of the reference computed in the graph's own types."""
FLOOR = 64.0
"""Below this many units of roundoff of the largest value, errors are chance."""
HEADROOM = 2.0**-14
"""The share of the range of f32 above which Winograd's transforms of a convolution may overflow: by input, 100 times,
and by output, 64 times the largest number. `strict=True` rules them out."""
SHAKEN = 4
"""Runs with inputs moved by a few units of roundoff, where a difference is suspected to be the graph's own."""


class Wrong(AssertionError):
    """A program that computed something else."""


def check(case: Case, way: Way, folder: Path) -> bool:
    """Compile a case the default way and a drawn way; raise `Wrong` where either is. False if float64 cannot judge.

    `folder` is the warm cache of this process.
    """
    with np.errstate(all="ignore"):
        judge = _Judge(case)
        judge.meaning()
        first = dovetail.compile(case.graph, threads=2, cache=str(folder))
        found = first.run(case.feeds)
        judge.numbers(found, "compiled by default")
        _same_bits(found, first.run(case.feeds), "a second run")
        again = dovetail.compile(case.graph, threads=2, cache=str(folder))
        _same_bits(found, again.run(case.feeds), "the program from the cache")
        _other_way(case, way, judge)
    return judge.certain


def compare(case: Case, found: Mapping[str, Array]) -> None:
    """Raise `Wrong` unless outputs are near those of float64."""
    _Judge(case).numbers(found, "compiled by default")


def _other_way(case: Case, way: Way, judge: _Judge) -> None:
    graph = _round_trip(case.graph, way.round_trip)
    if way.specialised:
        graph = specialize(graph, _sizes(graph, case.feeds), partial=True)
    found = _compiled(graph, way, way.threads).run(case.feeds)
    judge.numbers(found, f"compiled with {way}")
    _same_bits(found, _compiled(graph, way, 3 - way.threads).run(case.feeds), f"{3 - way.threads} threads with {way}")


def _compiled(graph: Graph, way: Way, threads: int) -> Program:
    return dovetail.compile(
        graph,
        engine=way.engine,
        without=way.without,
        strict=way.strict,
        threads=threads,
        cache="off",
        verify_each_pass=True,
    )


def _round_trip(graph: Graph, how: str) -> Graph:
    if how == "text":
        text = dovetail.graphs.print_graph(graph)
        read = dovetail.graphs.parse(text)
        if dovetail.graphs.print_graph(read) != text:
            raise Wrong("the printed graph reads as another graph")
        # Text has no arrays of parameters.
        return replace(read, params=graph.params)
    if how == "file":
        with TemporaryDirectory() as folder:
            dovetail.save(graph, path := Path(folder) / "graph.dovetail")
            return dovetail.load(path)
    return graph


def _sizes(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, int]:
    """The numbers that the arrays of a run give to the symbols of a graph."""
    arrays = {**graph.params, **feeds}
    leaves = (*graph.inputs, *graph.parameters)
    named = [(str(value.attrs["name"]), value) for value in leaves]
    return solve_symbols([Found(name, value.tensor, arrays[name].shape) for name, value in named])


def _same_bits(found: Mapping[str, Array], other: Mapping[str, Array], what: str) -> None:
    for name, array in found.items():
        if array.dtype != other[name].dtype or array.shape != other[name].shape:
            raise Wrong(f"{name} of {what} is {other[name].dtype}{other[name].shape}, not {array.dtype}{array.shape}")
        if array.tobytes() != other[name].tobytes() and not _equal_but_nan(array, other[name]):
            raise Wrong(f"{name} of {what} has other bits")


def _equal_but_nan(x: Array, y: Array) -> bool:
    """Bits are promised for numbers; which NaN a machine gives is its own affair."""
    nan = (x != x) & (y != y)
    same = [np.ascontiguousarray(a).view(np.uint8).reshape(*a.shape, a.itemsize) for a in (x, y)]
    return bool((nan | (same[0] == same[1]).all(-1)).all())


class _Judge:
    """The float64 values of a case, and how far from them its own types may be."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._exact = evaluate(case.graph, case.feeds, lift=True)
        self._own = evaluate(case.graph, case.feeds)
        self.certain = True

    def meaning(self) -> None:
        """Raise `Wrong` where another runtime means something else by the model than the reference does.

        What the largest of a NaN and a number is, ONNX does not say: a model in which a NaN arises is not compared.
        """
        if self._case.wanted and any(np.isnan(array).any() for array in self._inside):
            return
        for name, array in self._case.wanted.items():
            self._near(name, self._case.graph.outputs[name], array, "by the other runtime")

    @cached_property
    def _inside(self) -> list[Array]:
        """Every float tensor of the graph, in its own type."""
        graph = self._case.graph
        values = [v for v in graph.values if v.op is not leaf.INPUT and v.op is not leaf.PARAM]
        tensors = {f"v{at}": v for at, v in enumerate(values) if isinstance(v.type, TensorType)}
        found = evaluate(replace(graph, outputs=tensors, donated={}), self._case.feeds)
        return [array for array in found.values() if array.dtype.kind == "f"]

    @property
    def _largest(self) -> float:
        return max((float(np.abs(a[np.isfinite(a)]).max(initial=0.0)) for a in self._inside), default=0.0)

    def numbers(self, found: Mapping[str, Array], what: str) -> None:
        """Raise `Wrong` unless every output is near."""
        for name, value in self._case.graph.outputs.items():
            got, exact = found[name], self._exact[name]
            if got.dtype != value.dtype.numpy or got.shape != exact.shape:
                raise Wrong(f"{name}, {what}, is {got.dtype}{got.shape}, not {value.dtype.name}{exact.shape}")
            self._near(name, value, got, what)

    def _near(self, name: str, value: Value, got: Array, what: str) -> None:
        apart = self._far(name, value, got)
        if apart.any():
            # Where large numbers cancel, errors are those of the large numbers.
            apart = self._far(name, value, got, self._largest)
        if not apart.any():
            return
        if self._overflows(value):
            self.certain = False
            return
        if (apart & ~self._shaky(name, value)).any():
            raise Wrong(self._sentence(name, apart, got, what))
        self.certain = False

    def _overflows(self, value: Value) -> bool:
        """Whether numbers are so near the end of their range that the transforms of a fast convolution leave it."""
        convolves = any(v.op.name.startswith("conv") for v in self._case.graph.values)
        return convolves and value.dtype is f32 and self._largest > HEADROOM * float(np.finfo(np.float32).max)

    def _far(self, name: str, value: Value, got: Array, largest: float = 0.0) -> Array:
        """Where an output is neither near float64 nor like it in being no number."""
        exact, own = self._exact[name], self._own[name]
        if not value.dtype.is_float:
            return np.asarray(got != own) & np.asarray(got != exact.astype(got.dtype))
        wide, near = got.astype(np.float64), own.astype(np.float64)
        finite = np.isfinite(exact) & np.isfinite(near)
        most = max(largest, float(np.abs(exact[finite]).max(initial=0.0)))
        noise = float(np.abs(near - exact)[finite].max(initial=0.0))
        allowed = NOISE * noise + FLOOR * roundoff(value.dtype) * most
        same_class = (np.isnan(exact) & np.isnan(near) & ~np.isnan(wide)) | (
            np.isinf(exact) & (exact == near) & (wide != exact)
        )
        return np.asarray(np.where(finite, ~(np.abs(wide - exact) <= allowed), same_class))

    def _shaky(self, name: str, value: Value) -> Array:
        """Where the smallest change of the inputs moves float64 as far: a comparison or a rounding on its edge."""
        exact = self._exact[name]
        moved = np.zeros(exact.shape, np.bool_)
        random = np.random.default_rng(0)
        for _ in range(SHAKEN):
            feeds = {n: _moved(a, random) for n, a in self._case.feeds.items()}
            params = {n: _moved(a, random) for n, a in self._case.graph.params.items()}
            other = evaluate(self._case.graph, feeds, lift=True, params=params)[name]
            moved |= self._far(name, value, other.astype(value.dtype.numpy), self._largest)
        return moved

    def _sentence(self, name: str, apart: Array, got: Array, what: str) -> str:
        at = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(apart)))
        exact, own = np.atleast_1d(self._exact[name]), np.atleast_1d(self._own[name])
        return (
            f"{name}, {what}: {int(apart.sum())} of {apart.size} elements are off, first {list(at)}: "
            f"{np.atleast_1d(got)[at]!s}, where float64 has {exact[at]!s} and the reference {own[at]!s}"
        )


def _moved(array: Array, random: np.random.Generator) -> Array:
    """An array moved by a few units in the last place of float32: as far as sums move what they give to a rounding."""
    if not np.issubdtype(array.dtype, np.floating):
        return array
    return (array * (1 + random.choice((-1e-6, 0.0, 1e-6), array.shape))).astype(array.dtype)
