"""A target: what it says of itself, and what turns a plan into something that runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from dovetail.dataclass import dataclass
from dovetail.declare.cost import Machine
from dovetail.declare.fused import FusedOp
from dovetail.errors import OptionError
from dovetail.ir.dim import Size
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.passes.claims import Claims
from dovetail.plan.emitted import Emitted
from dovetail.plan.marks import Mark
from dovetail.plan.plan import Plan, Step
from dovetail.plan.served import Served
from dovetail.settings import Settings
from dovetail.targets.runtime.arrays.array_library import ArrayLibrary
from dovetail.targets.runtime.arrays.device_array import DeviceArray

if TYPE_CHECKING:
    from dovetail.kernels.choice import Refused
    from dovetail.targets.runtime.calls.prepared_call import RunPrepared


class Runner(Protocol):
    """A compiled plan with its parameters; several threads may run it at once."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, in memory that the caller owns."""
        ...


@runtime_checkable
class Quick(Protocol):
    """A runner that prepares runs."""

    def quick(self, inputs: Mapping[str, Array]) -> dict[str, Array] | None:
        """What `run` gives, if the inputs are as they should be; None leaves it to `run` to look at them closely."""
        ...


@runtime_checkable
class OnDevice(Protocol):
    """A runner of a device whose memory the host cannot address. Its `run` takes arrays of the device, too."""

    @property
    def device(self) -> str:
        """The device, as its arrays name it."""
        ...

    def to_device(self, array: Array, value: Value) -> DeviceArray:
        """A copy of an array for an input in the memory of the device."""
        ...

    def run(self, inputs: Mapping[str, Array | DeviceArray]) -> dict[str, Array]:
        """The outputs by name, but for those that take the memory of a device array."""
        ...

    def run_on_device(self, inputs: Mapping[str, Array | DeviceArray]) -> dict[str, DeviceArray]:
        """The outputs by name, in the memory of the device."""
        ...


@runtime_checkable
class QuickOnDevice(Protocol):
    """A runner of a device that prepares runs."""

    def quick_on_device(self, inputs: Mapping[str, Array | DeviceArray]) -> dict[str, DeviceArray] | None:
        """What `run_on_device` gives, if the inputs are as they were before; None leaves it to look at them closely."""
        ...


@runtime_checkable
class Launches(Protocol):
    """A runner that prepares runs on arrays of other libraries."""

    def launcher(self, library: ArrayLibrary) -> RunPrepared | None:
        """Runs on arrays of a library, in the order of the inputs; None where it prepares no runs."""
        ...


QuickRun: TypeAlias = Callable[[Mapping[str, Array]], dict[str, Array] | None]
QuickDeviceRun: TypeAlias = Callable[[Mapping[str, Array | DeviceArray]], dict[str, DeviceArray] | None]


def quick_runs(runner: Runner) -> tuple[QuickRun | None, QuickDeviceRun | None]:
    """The prepared runs of a runner, with outputs on the host and on the device, where it has them."""
    on_device = runner.quick_on_device if isinstance(runner, QuickOnDevice) else None
    return (runner.quick if isinstance(runner, Quick) else None), on_device


@runtime_checkable
class Marking(Protocol):
    """A runner that measures its steps."""

    @property
    def threads(self) -> int:
        """How many threads a run may use."""
        ...

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name."""
        ...

    def run_marked(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], Sequence[Mark]]:
        """The outputs by name, and a mark for each step in the order in which they ran."""
        ...


class Executable(Protocol):
    """A plan as a target compiled it."""

    def bind(self, params: Mapping[str, Array]) -> Runner:
        """Run the bind phase. This and `run` are given arrays of exactly the names, dtypes and shapes declared."""
        ...


@dataclass(frozen=True, slots=True)
class Serializer:
    """How a target stores compiled plans for other processes."""

    key_parts: Callable[[], Mapping[str, str]]
    """What decides the code in addition to the plan: the processor, the compiler."""
    to_bytes: Callable[[Executable], bytes | None]
    """None where the plan cannot be stored."""
    from_bytes: Callable[[Plan, bytes, Settings], Executable]


@dataclass(frozen=True, slots=True)
class Notation:
    """A way to write down the code of a kernel."""

    name: str
    """As `dovetail why --code` takes it: llvm, asm."""
    language: str
    """What the page calls it: LLVM."""
    doc: str
    """Which code it is: the text that is compiled, what it becomes on this host."""


@dataclass(frozen=True, slots=True)
class CodeView:
    """The code of kernels for people, in the notations of a target."""

    target: str
    notations: tuple[Notation, ...]
    """The first is that of the page."""
    listing: Callable[[Plan, Step, Notation], str]
    """All code that a step runs; a step that has none is refused with a reason."""
    texts: Callable[[Plan], Iterable[str | None]]
    """For each step of a plan its own kernel in the first notation; None where it has none."""

    def notation(self, name: str) -> Notation:
        """The notation of a name."""
        for known in self.notations:
            if known.name == name:
                return known
        named = ", ".join(n.name for n in self.notations)
        raise OptionError(f"{self.target} does not show code as {name!r}", hint=f"its notations are {named}")


@dataclass(frozen=True, slots=True)
class Considered:
    """A kernel variant that was considered for a step: whether it is taken, why not, and its estimate."""

    name: str
    taken: bool
    reason: str = ""
    """Why it is not taken, in words."""
    seconds: float | None = None
    """By the machine model; None where a condition refuses the step, or sizes that are known later decide."""
    kind: str = ""
    """The kind of problem that the variant is for."""
    condition: str = ""
    """The named condition that refuses the step, what was found and what it expects."""
    found: str = ""
    expected: str = ""
    bound: str = ""
    """What bounds the estimate: compute, launch, L1, L2, L3 or memory."""
    ratio: float | None = None
    """The estimate in units of that of the variant that is taken."""
    hint: str = ""
    """What would change the condition."""

    @classmethod
    def of(cls, name: str, refused: Refused, kind: str = "", seconds: float | None = None) -> Considered:
        """A variant that a condition refuses, in the words of all reports."""
        known = refused.condition, refused.found, refused.expected
        return cls(name, False, refused.words(), seconds, kind, *known, hint=refused.hint)


@dataclass(frozen=True, slots=True)
class Target:
    """One target: its claims for a vocabulary of declared ops, and its compiler."""

    name: str
    claims: Callable[[Iterable[FusedOp[...]]], Claims]
    """Given the user's own declared ops."""
    compile: Callable[[Plan, Settings], Executable]
    any_size: bool = False
    """Whether one executable runs at every size, so that a program need not be compiled for the sizes of a run."""
    machine: Callable[[Settings], Machine] | None = None
    """The machine of the claims as it is known on this host; None where nothing more is known."""
    variants: Callable[[Plan, Mapping[str, Size]], Mapping[Value, Served]] | None = None
    """By value of a run, which of its op's kernels serves it at these sizes, with its cost."""
    considered: Callable[[Plan, Step], Sequence[Considered]] | None = None
    """The variants that were considered for a step, in the order of preference; none where its op has one kernel."""
    launches: Callable[[Plan, Settings], Sequence[Sequence[Considered]]] | None = None
    """For each step of a run, the launch fusions that were tried for it, where a target has such."""
    emitted: Callable[[Plan, Settings], Sequence[Emitted]] | None = None
    """Return the kernels of a compiler that fuses by itself, with the steps of each; compile the plan."""
    code: CodeView | None = None
    """The code of kernels for people; None where it has none to show."""
    serializer: Serializer | None = None
    """How it stores compiled plans; None where it stores none."""
    precompile: Callable[[Iterable[Value], Settings], None] | None = None
    """Starts to compile functions that a program of these values needs, while it is lowered."""
    lacks_bf16: Callable[[], str] | None = None
    """What products that are rounded to bf16 lack here (`precision="bf16"`), "" for nothing; None where the target has
    no such products."""
    warm_up: Callable[[Settings], None] | None = None
    """Starts to compile what every program needs, while the graph is read and lowered."""
