"""Whether cuBLASLt computes a product, as a report tells it: both times, or the named condition that refuses it."""

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
    """What is known of products by cuBLASLt on a device."""

    mode: str
    """Of the settings: whether it may compute any."""
    tune: str
    store: CodeStore | None
    device: Driver

    def told(self, plan: Plan, steps: Sequence[Kernels]) -> Sequence[Sequence[Considered]]:
        """Rows for each step of a run; none for those that are no products, or where nothing is installed that could
        save time."""
        where = place(self.device.version // 1000)
        choice = LibraryChoice(plan, self.device, self.store, self.tune, where or "", {})
        cold = choice.cold(steps)
        found: list[Sequence[Considered]] = []
        joined = False
        for step, kernels in zip(plan.phase("run"), steps, strict=True):
            found.append(self._of(choice, step, kernels, joined=joined, cold=cold) if is_product(kernels) else ())
            joined = kernels is None
        return found

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
        """What the store has of a product on this card."""
        card = {"card": self.device.name, "driver": str(self.device.version)}
        words = () if self.store is None else self.store.keys(KIND)
        if not any(card.items() <= w.items() for w in words):
            return None  # PTX, which takes seconds, is not needed
        choice.ptx = {**choice.ptx, **ptx_of(kernels, self.device, self.store)}
        return choice.kept(choice.key(step, kernels, cold=cold))


def _refused(why: Refused) -> tuple[Considered, ...]:
    expected = f", expected {why.expected}" if why.expected else ""
    reason = f"not: {why.condition.replace('_', ' ')} (found {why.found}{expected})"
    return (Considered(NAME, False, reason, None, KIND, why.condition, why.found, why.expected, hint=why.hint),)


def _decided(made: Decision) -> tuple[Considered, ...]:
    """Both ways, with their times where these were taken."""
    if made.refused is not None and made.refused.condition != IS_FASTER:
        return _refused(made.refused)
    both = f"cuBLASLt {made.library * 1e6:.1f} µs, dovetail {made.own * 1e6:.1f} µs"
    if made.refused is None:
        ours = Considered(LAUNCH, False, "the library was faster", made.own, KIND)
        return Considered(NAME, True, seconds=made.library, kind=KIND, found=both), ours
    why = made.refused
    known = why.condition, why.found, why.expected
    slower = Considered(NAME, False, f"not: {why.condition.replace('_', ' ')} ({both})", made.library, KIND, *known)
    return slower, Considered(LAUNCH, True, seconds=made.own, kind=KIND)


__all__ = ["HAS_BOUND", "HAS_CACHE", "IS_INSTALLED", "IS_ON", "Libraries"]
