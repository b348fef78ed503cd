"""Why cuBLASLt computes a GEMM or does not, for a report: both times, or the named condition that refuses it."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.dataclass import dataclass
from dovetail.kernels.choice import Refused
from dovetail.plan.plan import Plan, Step
from dovetail.settings import OFF, TUNE_ALWAYS
from dovetail.targets.cuda.code.code import ptx_of
from dovetail.targets.cuda.driver.driver import Driver
from dovetail.targets.cuda.library.call import NAME
from dovetail.targets.cuda.library.choice import IS_FASTER, KIND, LEAST_SECONDS, Decision, LibraryChoice, is_product
from dovetail.targets.cuda.library.cublaslt import INSTALL, place
from dovetail.targets.gpu.kernel import GpuKernel, Kernels
from dovetail.targets.gpu.launch_fusion.launch_choices import LAUNCH, Need
from dovetail.targets.runtime.building.store import CodeStore
from dovetail.targets.target import Considered

IS_ON = Need("libraries_are_on", "auto", 'compile with libraries="auto", which is the default')
IS_INSTALLED = Need("the_library_is_installed", "cuBLASLt for the driver", INSTALL)
HAS_CACHE = Need("there_is_a_cache", "a folder that keeps what was measured", 'name one with cache, or tune="always"')
HAS_BOUND = Need("a_bind_measured_it", "parameters that are bound on this card", "run the program once")


@dataclass(frozen=True, slots=True)
class Libraries:
    """Explains which GEMMs cuBLASLt computes on a device."""

    mode: str
    """Of the settings: whether it may compute any."""
    tune: str
    store: CodeStore | None
    device: Driver

    def considered(self, plan: Plan, steps: Sequence[Kernels]) -> Sequence[Sequence[Considered]]:
        """Return the rows of each step: none for steps that are no GEMM, or where no library could save time."""
        where = place(self.device.version // 1000)
        choice = LibraryChoice(plan, self.device, self.store, self.tune, where or "", {})
        cold = choice.cold(steps)
        answers: list[Sequence[Considered]] = []
        joined = False
        for step, kernels in zip(plan.phase("run"), steps, strict=True):
            answers.append(self._of(choice, step, kernels, joined=joined, cold=cold) if is_product(kernels) else ())
            joined = kernels is None
        return answers

    def _of(
        self, choice: LibraryChoice, step: Step, kernels: tuple[GpuKernel, ...], *, joined: bool, cold: bool
    ) -> Sequence[Considered]:
        refused = choice.refused(step, kernels, joined=joined)
        if self.mode == OFF:
            return () if refused is not None else _refused(IS_ON.refused(OFF))
        if not choice.where:
            is_long = refused is None and choice.seconds(kernels) >= LEAST_SECONDS
            return _refused(IS_INSTALLED.refused("none")) if is_long else ()
        if refused is not None:
            return _refused(refused)
        if self.store is None and self.tune != TUNE_ALWAYS:
            return _refused(HAS_CACHE.refused("none"))
        decision = self._kept(choice, step, kernels, cold=cold)
        return _refused(HAS_BOUND.refused("none")) if decision is None else _decided(decision)

    def _kept(
        self, choice: LibraryChoice, step: Step, kernels: tuple[GpuKernel, ...], *, cold: bool
    ) -> Decision | None:
        """Return the stored decision on a GEMM on this card."""
        card = {"card": self.device.name, "driver": str(self.device.version)}
        words = () if self.store is None else self.store.keys(KIND)
        if not any(card.items() <= w.items() for w in words):
            return None  # PTX, which takes seconds, is not needed
        choice.ptx = {**choice.ptx, **ptx_of(kernels, self.device, self.store)}
        return choice.kept(choice.key(step, kernels, cold=cold))


def _refused(why: Refused) -> tuple[Considered, ...]:
    return (Considered.of(NAME, why, KIND),)


def _decided(decision: Decision) -> tuple[Considered, ...]:
    """Return the rows of cuBLASLt and of our kernels, with their times if they were measured."""
    if decision.refused is not None and decision.refused.condition != IS_FASTER:
        return _refused(decision.refused)
    both = f"cuBLASLt {decision.library * 1e6:.1f} µs, dovetail {decision.own * 1e6:.1f} µs"
    if decision.refused is None:
        ours = Considered(LAUNCH, False, "the library was faster", decision.own, KIND)
        return Considered(NAME, True, seconds=decision.library, kind=KIND, found=both), ours
    return Considered.of(NAME, decision.refused, KIND, decision.library), Considered(
        LAUNCH, True, seconds=decision.own, kind=KIND
    )


__all__ = ["HAS_BOUND", "HAS_CACHE", "IS_INSTALLED", "IS_ON", "Libraries"]
