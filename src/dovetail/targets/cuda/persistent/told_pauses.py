"""Whether the waits of a persistent kernel are those of a search or of the estimate, as a report tells them."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.dataclass import dataclass
from dovetail.settings import TUNE_ALWAYS, TUNE_OFF
from dovetail.targets.cuda.code.code import digest, ptx_of
from dovetail.targets.cuda.driver.driver import Driver
from dovetail.targets.cuda.persistent.tuning import KIND, LEAST_PASSES, Tuned, is_tunable, parsed
from dovetail.targets.gpu.kernel import GpuKernel
from dovetail.targets.gpu.launch_fusion.launch_choices import Need
from dovetail.targets.runtime.building.store import CodeStore, StoreKey
from dovetail.targets.target import Considered

PAUSES = "pauses"
"""The kind of these rows in a report."""
TUNES = Need("tuning_is_on", "auto or always", 'compile with tune="auto", which is the default')
HAS_STORE = Need("there_is_a_cache", "a folder that keeps what was measured", 'name one with cache, or tune="always"')
HAS_PASSES = Need("passes_are_many", f"{LEAST_PASSES} or more", 'tune="always" measures short kernels too')
HAS_RUN = Need("a_run_was_measured", "a run on this card, with inputs on the device", "run the program once")


@dataclass(frozen=True, slots=True)
class Pauses:
    """What is known of the waits of kernels on a device."""

    mode: str
    """Of the settings: whether anything is measured."""
    store: CodeStore | None
    device: Driver

    def told(self, made: GpuKernel) -> tuple[Considered, ...]:
        """Both ways for a kernel with such waits; nothing for others."""
        if not is_tunable(made):
            return ()
        need, found = self._lacks(made)
        kept = [*self._kept(made)] if need is None or need is HAS_PASSES else []
        if kept:
            about, best = kept[0]
            gained = f"a search on {best.date} found less, {best.before * 1e3:.4f} to {best.after * 1e3:.4f} ms"
            tuned = Considered(
                "tuned", True, seconds=best.after, kind=PAUSES, found=f"{best.date}, sizes about {about}"
            )
            return tuned, Considered("estimated", False, gained, best.before, PAUSES)
        why = (need or HAS_RUN).refused(found or "none")
        reason = f"not: {why.condition.replace('_', ' ')} (found {why.found}, expected {why.expected})"
        known = why.condition, why.found, why.expected
        tuned = Considered("tuned", False, reason, None, PAUSES, *known, hint=why.hint)
        return tuned, Considered("estimated", True, kind=PAUSES)

    def _lacks(self, made: GpuKernel) -> tuple[Need | None, str]:
        """What keeps a kernel from being measured, and what was found."""
        if self.mode == TUNE_OFF:
            return TUNES, TUNE_OFF
        if self.mode == TUNE_ALWAYS:
            return None, ""
        if self.store is None:
            return HAS_STORE, "none"
        passes = made.kernel.passes
        return (HAS_PASSES, f"{passes}") if passes < LEAST_PASSES else (None, "")

    def _kept(self, made: GpuKernel) -> Iterator[tuple[str, Tuned]]:
        """What the store has of a kernel on this card, and the sizes, those that were used last first."""
        card = {"card": self.device.name, "driver": str(self.device.version)}
        words = [w for w in (() if self.store is None else self.store.keys(KIND)) if card.items() <= w.items()]
        if self.store is None or not words:
            return  # PTX, which takes seconds, is not needed
        code = digest(ptx_of([made], self.device, self.store)[made.text].encode())
        for parts in [{n: p for n, p in w.items() if n != "kind"} for w in words if w.get("code") == code]:
            content = self.store.get(StoreKey(KIND, parts))
            found = None if content is None else parsed(content, [wait.name for wait in made.kernel.cycles])
            if found is not None:
                yield parts.get("sizes", "") or "any", found


__all__ = ["PAUSES", "Pauses"]
