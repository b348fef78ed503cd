"""Which products of a plan cuBLASLt computes: those where runs on the device have shown that it is faster.

The decision is made when parameters are bound, once for a product, a card and a library, and kept for later processes.
Programs in the store have our own kernels alone: without the library, they run as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from dovetail.dataclass import dataclass
from dovetail.errors import DovetailError, OutOfMemoryError
from dovetail.ir.dtype import f32, f64
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused
from dovetail.kernels.loops.ir import KernelKind
from dovetail.passes.specialize import fresh_symbols
from dovetail.plan.plan import Plan, Step
from dovetail.settings import TUNE_ALWAYS, TUNE_OFF
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.code.code import digest
from dovetail.targets.cuda.driver.driver import Driver, KernelFunction
from dovetail.targets.cuda.library.call import NAME, LibraryProduct, library_of
from dovetail.targets.cuda.library.cublaslt import (
    ALGORITHM_WORDS,
    WORKSPACE_BYTES,
    Algorithm,
    Described,
    Failed,
    identity,
)
from dovetail.targets.cuda.library.weights import are_cold
from dovetail.targets.cuda.runs.bound_plan import LoadedKernel
from dovetail.targets.gpu.kernel import GpuKernel, Kernels
from dovetail.targets.gpu.launch_fusion.launch_choices import Need
from dovetail.targets.runtime.building.step_signature import stored_as
from dovetail.targets.runtime.building.store import CodeStore, StoreKey
from dovetail.targets.runtime.calls.result_roots import chained, fresh_results
from dovetail.version import __version__

if TYPE_CHECKING:
    from dovetail.targets.cuda.library.product import LibraryStep
    from dovetail.targets.gpu.select import Selection

KIND = "library"
"""Of the entries of the store."""
LEAST_SECONDS = 1e-5
"""A product that takes less by its estimate is not measured, unless all are."""
SHARE = 0.75
"""The part of the peak of tensor cores, or of the bandwidth of memory, from which on our kernels have been as fast as
the library."""
GAIN = 0.95
"""The part of our time that the library may take."""
GEMMS = (KernelKind.GEMM, KernelKind.SPLIT_K, KernelKind.STREAM_K, KernelKind.SUM_OF_PARTS)
"""The kinds of kernels that compute a product, or a part of one."""
OURS = (
    {KernelKind.GEMM},
    {KernelKind.SPLIT_K, KernelKind.SUM_OF_PARTS},
    {KernelKind.STREAM_K, KernelKind.SUM_OF_PARTS},
)
"""Those that compute one by themselves."""

REORDERS = Need(
    "sums_may_be_reordered", "strict=False", "compile without strict: the library has another order of sums"
)
IS_APART = Need(
    "kernels_are_of_the_step_alone", "kernels of the product alone", "none in the model: steps next to it share them"
)
IS_PLAIN = Need("weights_are_not_in_blocks", "weights without blocks", "dequantise the weights")
IS_STATIC = Need("sizes_are_known", "sizes that are known", "compile it for the sizes that matter: sizes={…}")
MATTERS = Need("time_may_be_saved", "a product that is long, and slow for the device", 'tune="always" measures all')
HAS_ROOM = Need("there_is_memory_for_trials", "half of the memory that is free", "free device arrays")
WORKS = Need("the_library_multiplies", "no error", "another version of nvidia-cublas")
IS_FASTER = "library_is_faster"
"""The condition that times decide."""

LoadKernels: TypeAlias = Callable[[Sequence[GpuKernel]], Mapping[str, KernelFunction]]
"""Compiles and loads kernels, by their texts."""
_REFUSED = ("condition", "found", "expected", "hint")
_measuring = Lock()
"""Held while a product is measured: another one would change its times."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether the library computes a product: its times, or the condition that refuses it."""

    own: float = 0.0
    """Seconds of our kernels; 0 where nothing was measured."""
    library: float = 0.0
    """The same of the library's fastest algorithm, with the kernels that it needs next to it."""
    algorithm: Algorithm | None = None
    """What computes it; None where our kernels do."""
    refused: Refused | None = None

    @classmethod
    def timed(cls, own: float, library: float, algorithm: Algorithm) -> Decision:
        """Return the decision by two times."""
        if library <= GAIN * own:
            return cls(own, library, algorithm)
        time, expected = f"{library * 1e6:.1f} µs", f"at most {GAIN:.0%} of {own * 1e6:.1f} µs"
        return cls(own, library, None, Refused(IS_FASTER, time, expected))


class LibraryChoice:
    """Finds the products of a plan that the library computes."""

    def __init__(
        self, plan: Plan, device: Driver, store: CodeStore | None, tune: str, where: str, ptx: Mapping[str, str]
    ) -> None:
        """`where` is the library, and `ptx` that of each kernel by its text."""
        self.plan, self.device, self.store, self.tune, self.where, self.ptx = plan, device, store, tune, where, ptx
        self._fresh = chained(plan, fresh_results(plan).values())
        self._decisions: dict[str, Decision] = {}
        """Decisions by the names of their entries."""

    @cached_property
    def is_late(self) -> bool:
        """Whether a run finds sizes while it runs, and prepares no launches."""
        return any([True for step in self.plan.phase("run") for _ in fresh_symbols(step.value)])

    def moves(self, value: Value) -> bool:
        """Whether the address of a tensor may change from run to run: that of an input, or of an output."""
        root = self.plan.root_of(value)
        slot = self.plan.slots.get(root)
        if root in self._fresh or root in self.plan.graph.inputs:
            return True
        return slot is not None and slot.donor is not None and self.moves(slot.donor)

    def refused(self, step: Step, kernels: Sequence[GpuKernel], *, joined: bool) -> Refused | None:
        """Return the condition that refuses a GEMM by its kernels alone, without code generation."""
        if self.plan.options.get("strict"):
            return REORDERS.refused("strict=True")
        if any([stored_as(v) is not None for v in step.operands]):
            return IS_PLAIN.refused("blocks")
        read = {v for kernel in kernels for v in kernel.values.values()}
        written = {v for kernel in kernels for n, v in kernel.bindings.items() if n in kernel.kernel.written}
        alone = read <= {*step.operands, *step.results} and written == {*step.results} and not joined
        kinds, names = {kernel.kernel.kind for kernel in kernels}, sorted({kernel.kernel.name for kernel in kernels})
        if not alone or kinds not in OURS or any([kernel.checks or kernel.counters for kernel in kernels]):
            return IS_APART.refused("steps that share its launch" if joined else ", ".join(names))
        if self.is_late:
            return IS_STATIC.refused("sizes that a run finds")
        tensors = [(v, self.plan.locate(v)) for v in (*step.operands, *step.results)]
        numbers = [n for v, at in tensors for n in (*v.shape, at.offset, *at.strides, at.root.tensor.bytes)]
        if not all([isinstance(n, int) and n >= 0 for n in numbers]):
            return IS_STATIC.refused("symbols")
        seconds = self.seconds(kernels)
        if self.tune != TUNE_ALWAYS and 0 < seconds < LEAST_SECONDS:
            return MATTERS.refused(f"{seconds * 1e6:.1f} µs by the estimate")
        return None

    def seconds(self, kernels: Sequence[GpuKernel]) -> float:
        """An estimate of our kernels; 0 where there is none."""
        return sum([kernel.launch.cycles for kernel in kernels]) / self.device.description.hertz

    def cold(self, steps: Sequence[Kernels]) -> bool:
        """Whether each run of a program reads its weights from memory: L2 does not hold all that its kernels read."""
        return are_cold(self.plan, steps, self.device.description.l2_bytes)

    def key(self, step: Step, kernels: Sequence[GpuKernel], *, cold: bool) -> StoreKey:
        """Return the key of a decision: the GEMM and the layout of its tensors, our code, the card and the library."""
        tensors = [(v, self.plan.locate(v), self.moves(v)) for v in (*step.operands, *step.results)]
        about = [f"{v.tensor} at {at.offset} by {at.strides}{' moves' * moves}" for v, at, moves in tensors]
        code = [(self.ptx[kernel.text], kernel.launch, kernel.kernel.maps) for kernel in kernels]
        parts = {
            "product": "; ".join(about),
            "code": digest(repr(code).encode()),
            "weights": "in memory" if cold else "in L2",
            "card": self.device.name,
            "driver": str(self.device.version),
            "library": identity(self.where),
            "dovetail": __version__,
        }
        return StoreKey(KIND, parts)

    def kept(self, key: StoreKey) -> Decision | None:
        """Return the decision of an earlier process."""
        content = None if self.store is None else self.store.get(key)
        return None if content is None else parsed(content)

    def replaced(
        self,
        steps: Sequence[Kernels],
        functions: Mapping[str, KernelFunction],
        selection: Callable[[], Selection],
        load: LoadKernels,
    ) -> tuple[tuple[Kernels, ...], Mapping[str, KernelFunction | LibraryProduct]]:
        """The kernels of each step, and what each text stands for, with products by the library where it is faster."""
        making = _Replacing(self, functions, selection, load, cold=self.cold(steps))
        replaced = [*steps]
        joined = False
        for index, (step, kernels) in enumerate(zip(self.plan.phase("run"), steps, strict=True)):
            if is_product(kernels) and self.refused(step, kernels, joined=joined) is None:
                replaced[index] = making.kernels(step, kernels)
            joined = kernels is None
        return tuple(replaced), making.functions

    def decided(self, key: StoreKey, measured: Callable[[], Decision]) -> Decision:
        """Return the decision on a GEMM; measure it where tuning allows that and no decision is stored."""
        if key.name not in self._decisions:
            known = None if self.tune == TUNE_ALWAYS else self.kept(key)
            measures = self.tune == TUNE_ALWAYS or (self.tune != TUNE_OFF and self.store is not None)
            if known is None and measures:
                with _measuring:
                    self.keep(key, measured())
            else:
                self._decisions[key.name] = known or Decision()
        return self._decisions[key.name]

    def in_vain(self, product: LibraryStep, kernels: Sequence[GpuKernel]) -> Refused | None:
        """Why no time can be saved, by the estimates."""
        dtype, device = product.problem.a.dtype, self.device.description
        cycles, card = device.multiprocessors * device.hertz, device.timings.card
        peak = CLAIMS.machine.peak(dtype, "contract") * cycles / (card.multiprocessors * card.hertz)
        multiplied, moved = (
            product.flops / peak,
            product.problem.nbytes / (device.bytes_per_cycle * cycles or float("inf")),
        )
        seconds = self.seconds(kernels) or multiplied
        if seconds < LEAST_SECONDS:
            return MATTERS.refused(f"{seconds * 1e6:.1f} µs by the estimate")
        if moved >= SHARE * seconds:
            return MATTERS.refused(f"{moved / seconds:.0%} of the bandwidth by the estimate")
        if dtype in (f32, f64) or not product.is_even or multiplied < SHARE * seconds:
            return None
        return MATTERS.refused(f"{multiplied / seconds:.0%} of the peak by the estimate")

    def keep(self, key: StoreKey, decision: Decision) -> None:
        """Keep a decision, but for one that depends on what else is in memory."""
        self._decisions[key.name] = decision
        passes = decision.refused is not None and decision.refused.condition == HAS_ROOM.condition
        if self.store is not None and not passes:
            self.store.put(key, json.dumps(asdict(decision)).encode())


class _Replacing:
    """The kernels of a plan while some of them give way to the library."""

    def __init__(
        self,
        of: LibraryChoice,
        functions: Mapping[str, KernelFunction],
        selection: Callable[[], Selection],
        load: LoadKernels,
        *,
        cold: bool,
    ) -> None:
        self.of, self._load, self._cold = of, load, cold
        self.functions: dict[str, KernelFunction | LibraryProduct] = {**functions}
        self._selection = cache(selection)
        self._steps: dict[Value, LibraryStep | Refused] = {}

    def kernels(self, step: Step, kernels: tuple[GpuKernel, ...]) -> tuple[GpuKernel, ...]:
        """The kernels of a step: ours, or what the library needs. Whatever fails, ours."""
        of = self.of
        key = of.key(step, kernels, cold=self._cold)
        try:
            algorithm = of.decided(key, lambda: self._measured(step, kernels)).algorithm
            return kernels if algorithm is None else self._by_library(step, algorithm, key)
        except (Failed, DovetailError) as error:
            if of.device.lost is not None:
                raise
            of.keep(key, Decision(refused=WORKS.refused(str(error))))
            return kernels

    def _by_library(self, step: Step, algorithm: Algorithm, key: StoreKey) -> tuple[GpuKernel, ...]:
        product, text, driver = self._library_step(step), f"{NAME} {key.name}", self.of.device
        if isinstance(product, Refused):
            raise Failed(f"{product.condition}: {product.found}")
        if text not in self.functions:
            library = library_of(driver, self.of.where)
            self.functions[text] = LibraryProduct.checked(driver, library, product.problem, algorithm)
        kernels = product.kernels(algorithm, text)
        self._loaded(step, kernels)
        return kernels

    def _library_step(self, step: Step) -> LibraryStep | Refused:
        """A step as the library computes it. Code generation is imported for it."""
        from dovetail.targets.cuda.library.product import library_step

        if step.value not in self._steps:
            self._steps[step.value] = library_step(step, self._selection(), self.of.moves)
        return self._steps[step.value]

    def _loaded(self, step: Step, kernels: Sequence[GpuKernel]) -> list[LoadedKernel]:
        missing = [kernel for kernel in kernels if kernel.text not in self.functions]
        self.functions |= self._load(missing) if missing else {}
        return [LoadedKernel(step, kernel, self.functions[kernel.text]) for kernel in kernels]

    def _measured(self, step: Step, kernels: tuple[GpuKernel, ...]) -> Decision:
        of, product = self.of, self._library_step(step)
        if isinstance(product, Refused):
            return Decision(refused=product)
        refused = None if of.tune == TUNE_ALWAYS else of.in_vain(product, kernels)
        if refused is not None:
            return Decision(refused=refused)
        try:
            return self._timed(step, kernels, product)
        except OutOfMemoryError as error:
            return Decision(refused=HAS_ROOM.refused(f"{error.needed:,} bytes"))

    def _timed(self, step: Step, kernels: tuple[GpuKernel, ...], product: LibraryStep) -> Decision:
        """Time our kernels and every algorithm that the library proposes, alternately."""
        from dovetail.targets.cuda.library.trial import Trial

        driver = self.of.device
        described = Described(library_of(driver, self.of.where), product.problem)
        algorithms = described.proposed()
        if not algorithms:
            raise Failed("no algorithm is proposed")
        candidates = [self._loaded(step, kernels)]
        for algorithm in algorithms:
            self.functions[NAME] = LibraryProduct(driver, described, algorithm)
            candidates.append(self._loaded(step, product.kernels(algorithm, NAME)))
        del self.functions[NAME]
        trial = Trial(driver, self.of.plan, candidates, cold=self._cold)
        try:
            own, *others = trial.seconds()
        finally:
            trial.close()
        best = min(range(len(others)), key=others.__getitem__)
        return Decision.timed(own, others[best], algorithms[best])


def is_product(kernels: Kernels) -> TypeGuard[tuple[GpuKernel, ...]]:
    """Whether kernels compute a product, by themselves or with steps next to it."""
    return any([kernel.kernel.kind in GEMMS for kernel in kernels or ()])


def parsed(content: bytes) -> Decision | None:
    """A decision that was kept; None for other content."""
    try:
        fields = json.loads(content)
        algorithm = None if fields["algorithm"] is None else _algorithm(fields["algorithm"])
        refused = None if fields["refused"] is None else Refused(*[str(fields["refused"][name]) for name in _REFUSED])
        return Decision(float(fields["own"]), float(fields["library"]), algorithm, refused)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _algorithm(fields: Any) -> Algorithm:
    algorithm = Algorithm(tuple(map(int, fields["words"])), int(fields["workspace"]))
    fits = len(algorithm.words) == ALGORITHM_WORDS and all([0 <= word < 1 << 64 for word in algorithm.words])
    if not fits or not 0 <= algorithm.workspace <= WORKSPACE_BYTES:
        raise ValueError(fields)
    return algorithm


__all__ = [
    "GAIN", "HAS_ROOM", "IS_APART", "IS_FASTER", "IS_PLAIN", "IS_STATIC", "KIND", "LEAST_SECONDS", "MATTERS",
    "REORDERS", "WORKS", "Decision", "LibraryChoice", "is_product", "parsed",
]  # fmt: skip
