"""A kernel of a step on a GPU: what selection makes, the store keeps and a run launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TypeAlias

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.kernels.loops.ir import Kernel, Launch
from dovetail.kernels.spec import Packed
from dovetail.plan.plan import Step

RESIDENT = "resident"
"""The name of kernels whose blocks stay for a run of layers."""


class Code:
    """LLVM text that is written at its first use: many kernels join another one before, and need none."""

    __slots__ = ("_text", "_write")

    def __init__(self, write: Callable[[], str]) -> None:
        self._write = write
        self._text: str | None = None

    @property
    def text(self) -> str:
        if self._text is None:
            self._text = self._write()
        return self._text

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Code) and self.text == other.text)

    __hash__ = None  # pyright: ignore[reportAssignmentType]


@dataclass(frozen=True, slots=True)
class GpuKernel:
    """A kernel of a step: its loops with a launch shape, its LLVM text, and what its pointers point to."""

    kernel: Kernel
    code: Code | str
    """The text, or what writes it."""
    bindings: Mapping[str, Value]
    workspace: Mapping[str, Size] = field(default_factory=dict[str, Size])
    """The pointers into the workspace, which all kernels of a run share, and the offset of each."""
    workspace_bytes: Size = 0
    checks: tuple[str, ...] = ()
    """The pointers to the error flag of a run."""
    counters: tuple[str, ...] = ()
    """The pointers to a counter that starts at 0 and only ever grows."""
    packed: Mapping[str, Packed] = field(default_factory=dict[str, Packed])
    """The pointers to weights that are packed when parameters are bound."""
    counter_bytes: int = 0
    """Bytes of the counter and of the words after it, which are the kernel's own from run to run."""
    reread: tuple[str, ...] = ()
    """The pointers to what several blocks read although one of them could write it: nothing that the kernel writes may
    take that memory."""

    @property
    def text(self) -> str:
        """Its LLVM text, or what stands for it in a plan from the store."""
        return self.code if isinstance(self.code, str) else self.code.text

    @property
    def launch(self) -> Launch:
        assert self.kernel.launch is not None, "it was scheduled"
        return self.kernel.launch

    @property
    def values(self) -> dict[str, Value]:
        """The tensors of all pointers, of packed weights those that they are packed from."""
        return {**self.bindings, **{name: packed.value for name, packed in self.packed.items()}}

    @property
    def has_more(self) -> bool:
        """Whether it has a workspace or packed weights."""
        return bool(self.workspace or self.packed)


Kernels: TypeAlias = tuple[GpuKernel, ...] | None
"""The kernels of a step: none where it runs on the host, None where a later step has the one that it shares."""
StepKernels: TypeAlias = tuple[Step, Kernels]

__all__ = ["RESIDENT", "Code", "GpuKernel", "Kernels", "StepKernels"]
