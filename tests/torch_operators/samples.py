"""Samples of torch's own operator database, run through dovetail and judged against eager."""

# torch is optional, and its internals have no types.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import contextlib
import itertools
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import scipy.special
import torch
from torch.utils import _pytree as pytree

import dovetail
from dovetail.errors import DovetailError, GraphError
from dovetail.frontends.torch.exported import Call, Exported, Output, Ref
from dovetail.frontends.torch.importing.importer import Import
from dovetail.frontends.torch.reading.capture import captured, decomposed
from dovetail.frontends.torch.reading.program import read_program
from dovetail.frontends.torch.reading.tensors import array_of, tensor_of
from dovetail.frontends.torch.rules import REGISTRY
from dovetail.ir.dim import Dim
from tests.torch_operators.comparing import SIGNS, TOLERANCES, differs, first_line, no_farther, signed, widened

Verdict = Literal["right", "refused", "untraceable", "random", "skipped", "wrong", "error"]
UNDEFINED = re.compile(r"^(new_)?empty(_like|_strided|_permuted)?$|^new_empty_strided$|^resize_?$|^resize_as_?$")
BY_DATA = frozenset(
    {
        *("allclose", "equal", "cov", "corrcoef", "combinations", "narrow", "take", "tensor_split", "item"),
        *("sparse.mm.reduce", "sparse.sampled_addmm", "nn.functional.ctc_loss", "nn.functional.gaussian_nll_loss"),
        *("linalg.lstsq", "linalg.lstsq.grad_oriented", "to_sparse", "histogramdd"),
    }
)
"""Operators that torch.export often refuses, traced one by one: a refusal costs all others of its program a trace."""
BY_SCIPY = {"special.bessel_j0": "j0", "special.bessel_j1": "j1"}
"""Functions that torch computes in float64 with coefficients of seven digits, and scipy's names of them."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on one sample of one operator, and why."""

    op: str
    dtype: str
    sample: int
    verdict: Verdict
    detail: str = ""


def operators() -> list[Any]:
    """The database; wrappers that set seeds are taken out, because seeds are set here."""
    from torch.testing._internal import common_methods_invocations as found

    for name, module in list(sys.modules.items()):
        if name.startswith("torch.testing._internal") and hasattr(module, "wrapper_set_seed"):
            module.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)  # pyright: ignore
    return list(found.op_db)


def full_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def tolerance(op: Any, dtype: Any) -> tuple[float, float]:
    """The widest that the database declares for a dtype on a cpu, in any of torch's tests."""
    from torch.testing._internal.common_device_type import toleranceOverride
    from torch.testing._internal.opinfo.core import DecorateInfo

    relative, absolute = TOLERANCES[dtype]
    for entry in op.decorators or ():
        for decorator in entry.decorators if isinstance(entry, DecorateInfo) else [entry]:
            if isinstance(decorator, toleranceOverride) and dtype in decorator.d:
                declared = decorator.d[dtype]
                absolute, relative = max(absolute, declared.atol), max(relative, declared.rtol)
    return relative, absolute


class Sampled(torch.nn.Module):
    """Calls of operators, with their tensors as arguments and everything else fixed."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        super().__init__()
        self._samples = samples
        self._flat = [pytree.tree_flatten(sample.call) for sample in samples]

    def tensors(self) -> tuple[Any, ...]:
        return tuple(_own(v) for leaves, _ in self._flat for v in leaves if isinstance(v, torch.Tensor))

    def forward(self, *tensors: Any) -> list[Any]:
        given = iter(tensors)
        results: list[Any] = []
        for sample, (leaves, spec) in zip(self._samples, self._flat, strict=True):
            filled = [next(given) if isinstance(v, torch.Tensor) else v for v in leaves]
            args, kwargs = pytree.tree_unflatten(filled, spec)
            results.append(sample.function(*args, **kwargs))
        return results


def _own(tensor: Any) -> Any:
    """A tensor that shares no memory, with the same strides where that is possible."""
    if tensor.layout is not torch.strided:
        return tensor.detach().clone()
    return tensor.detach().clone(memory_format=torch.preserve_format)


def judge(ops: Sequence[Any], dtypes: Sequence[Any], most: int) -> Iterator[Judged]:
    """Verdicts on the first samples of some operators: torch traces all of them as one program."""
    samples: list[Sample] = []
    for op in ops:
        for dtype in dtypes:
            found = samples_of(op, dtype, most)
            samples += [f for f in found if isinstance(f, Sample)]
            yield from (f for f in found if isinstance(f, Judged))
    for found in traced(grouped(samples)):
        yield from found.verdicts() if isinstance(found, Traced) else [found]


def grouped(samples: Sequence[Sample]) -> list[list[Sample]]:
    """The samples that torch traces as one program: those of operators that it often refuses alone."""
    alone = [[sample] for sample in samples if sample.op in BY_DATA]
    return [*alone, [sample for sample in samples if sample.op not in BY_DATA]]


def traced(groups: Sequence[list[Sample]]) -> Iterator[Traced | Judged]:
    """Groups of samples as programs; one that torch does not trace is halved, and a sample alone is untraceable."""
    pending = [group for group in groups if group]
    while pending:
        group = pending.pop()
        try:
            found = Traced(group)
        except Exception as error:
            if len(group) > 1:
                half = len(group) // 2
                pending += [group[:half], group[half:]]
            else:
                yield group[0].judged("untraceable", first_line(error))
            continue
        yield found


def samples_of(op: Any, dtype: Any, most: int, *, gradients: bool = False) -> list[Sample | Judged]:
    """The first samples of an operator; those of its gradients say which tensors torch differentiates by."""
    name, kind = full_name(op), str(dtype).removeprefix("torch.")
    if dtype not in op.supported_dtypes("cpu"):
        return []
    try:
        found = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=gradients), most))
    except Exception as error:
        return [Judged(name, kind, 0, "skipped", f"no samples: {first_line(error)}")]
    if UNDEFINED.match(op.name):
        return [Judged(name, kind, i, "skipped", "its result is undefined") for i in range(len(found))]
    limits = tolerance(op, dtype)
    made: list[Sample | Judged] = []
    for index, one in enumerate(found):
        function = _differentiated(op, one) if gradients else op.get_op()
        sample = Sample(name, kind, index, function, ((one.input, *one.args), dict(one.kwargs)), limits)
        try:
            sample.wanted = sample.eager(0)
            sample.random = bool(differs(sample.eager(1), sample.wanted, limits))
            made.append(sample)
        except Exception as error:
            made.append(sample.judged("skipped", f"eager: {first_line(error)}"))
    return made


def _differentiated(op: Any, sample: Any) -> Callable[..., Any]:
    """The function that torch's own tests differentiate: of a symmetric matrix, say, and without integer results."""
    wrap = op.gradcheck_wrapper
    function = op.get_op() if wrap.__name__ == "wrapper_set_seed" else partial(wrap, op.get_op())
    return lambda *args, **kwargs: sample.output_process_fn_grad(function(*args, **kwargs))


@dataclass(slots=True)
class Sample:
    """One call of an operator, and what eager makes of it."""

    op: str
    dtype: str
    index: int
    function: Callable[..., Any]
    call: tuple[Any, Any]
    limits: tuple[float, float]
    wanted: Any = None
    random: bool = False

    def eager(self, seed: int, wide: bool = False) -> Any:
        torch.manual_seed(seed)
        given = pytree.tree_map(widened, self.call) if wide else self.call
        args, kwargs = pytree.tree_map_only(torch.Tensor, _own, given)
        with torch.no_grad():
            return self.function(*args, **kwargs)

    def _by_scipy(self) -> Any:
        (x, *_), _ = self.call
        function: Any = getattr(scipy.special, BY_SCIPY[self.op])
        return [torch.as_tensor(function(x.double().numpy())).to(x.dtype)]

    def judged(self, verdict: Verdict, detail: str = "") -> Judged:
        return Judged(self.op, self.dtype, self.index, verdict, detail)

    def verdict(self, found: Sequence[Any]) -> Judged:
        """What the results of a program deserve."""
        if self.random:
            return self.judged("random")
        wrong = differs(found, self.wanted, self.limits)
        if not wrong:
            return self.judged("right")
        places = SIGNS.get(self.op)
        if places and not differs(signed(found, places), signed(self.wanted, places), self.limits):
            return self.judged("right", "but for the signs of vectors")
        if self.op in BY_SCIPY and not differs(found, self._by_scipy(), self.limits):
            return self.judged("right", "as scipy has it; torch keeps seven digits")
        # torch has no float64 kernel of some operators.
        with contextlib.suppress(RuntimeError, TypeError, ValueError):
            if no_farther(found, self.wanted, self.eager(0, wide=True)):
                return self.judged("right", "as near to float64 as eager")
        return self.judged("wrong", wrong)


class Traced:
    """Samples as one exported program, of which each is compiled on its own or with others of its operator."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples
        module = Sampled(samples).eval()
        self.tensors = module.tensors()
        program, _ = captured(module, self.tensors, {}, None)
        lowered = decomposed(program, REGISTRY.by_name)
        self.exported = read_program(lowered)
        kept = [o for o in self.exported.outputs if not o.mutates]
        self.outputs: list[list[Output]] = []
        for child in program.call_spec.out_spec.children():
            self.outputs.append(kept[: child.num_leaves])
            kept = kept[child.num_leaves :]
        inputs = [one for one in self.exported.leaves if one.kind == "input"]
        self.arrays = {one.name: array_of(t) for one, t in zip(inputs, self.tensors, strict=True)}

    def verdicts(self) -> Iterator[Judged]:
        by_op: dict[tuple[str, str], list[int]] = {}
        for index, sample in enumerate(self.samples):
            by_op.setdefault((sample.op, sample.dtype), []).append(index)
        for indices in by_op.values():
            good: list[int] = []
            for index in indices:
                refused = self._refused(index)
                if refused is None:
                    good.append(index)
                else:
                    yield self.samples[index].judged("refused", refused)
            yield from self._run(good)

    def _refused(self, index: int) -> str | None:
        try:
            Import(self.part([index]), REGISTRY.by_name).graph()
        except DovetailError as error:
            return None if isinstance(error, GraphError) and "has no outputs" in str(error) else first_line(error)
        return None

    def _run(self, indices: list[int]) -> Iterator[Judged]:
        try:
            results = self._results(indices)
        except Exception as error:
            if len(indices) > 1:
                for index in indices:
                    yield from self._run([index])
            elif isinstance(error, DovetailError):
                yield self.samples[indices[0]].judged("refused", first_line(error))
            else:
                yield self.samples[indices[0]].judged("error", f"{type(error).__name__}: {first_line(error)}")
            return
        for index, found in zip(indices, results, strict=True):
            yield self.samples[index].verdict(found)

    def _results(self, indices: list[int]) -> list[list[Any]]:
        part = self.part(indices)
        names = {id(output): f"output_{at}" for at, output in enumerate(part.outputs)}
        found: dict[str, Any] = {}
        types: dict[str, Any] = {}
        if any(isinstance(o.value, Ref) for o in part.outputs):
            graph = Import(part, REGISTRY.by_name).graph()
            types = {name: value.dtype for name, value in graph.outputs.items()}
            arrays = {v.attrs["name"]: self.arrays[v.attrs["name"]] for v in graph.inputs}
            found = dict(dovetail.compile(graph).run(arrays))

        def leaf(output: Output) -> Any:
            name = names[id(output)]
            if name not in found:
                return output.value
            return int(found[name]) if name in part.sizes else tensor_of(found[name], types[name])

        return [[leaf(o) for o in self.outputs[i]] for i in indices]

    def part(self, indices: list[int]) -> Exported:
        """The part of the program that computes some samples."""
        outputs = tuple(output for index in indices for output in self.outputs[index])
        needed = {o.value.name for o in outputs if isinstance(o.value, Ref)}
        calls: list[Call] = []
        for call in reversed(self.exported.calls):
            if call.name in needed:
                calls.append(call)
                needed |= set(_references((call.arguments, tuple(call.keywords.values()))))
        sizes = {call.name for call in calls if isinstance(call.result, int | Dim)}
        listed = {f"output_{i}" for i, o in enumerate(outputs) if isinstance(o.value, Ref) and o.value.name in sizes}
        leaves = tuple(one for one in self.exported.leaves if one.name in needed)
        return replace(self.exported, leaves=leaves, calls=tuple(calls[::-1]), outputs=outputs, sizes=frozenset(listed))


def _references(given: Any) -> Iterator[str]:
    if isinstance(given, Ref):
        yield given.name
    elif isinstance(given, list | tuple):
        for item in given:  # pyright: ignore[reportUnknownVariableType]
            yield from _references(item)


warnings.filterwarnings("ignore")
