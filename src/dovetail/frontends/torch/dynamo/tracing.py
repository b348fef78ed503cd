"""What dynamo captured, traced to functional ATen by AOTAutograd; with gradients as a forward and a backward graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any, TypeAlias

from dovetail.dataclass import dataclass
from dovetail.frontends.torch.dynamo.nodes import mark_weights
from dovetail.frontends.torch.reading.capture import decompositions
from dovetail.frontends.torch.reading.package import torch_module
from dovetail.progress import phase

GraphCompiler: TypeAlias = Callable[[Any], Callable[..., Sequence[Any]]]
"""Given a traced graph: what runs it, from its inputs to a sequence of its outputs."""


@dataclass(frozen=True, slots=True)
class Compilers:
    """What becomes of traced graphs."""

    inference: GraphCompiler
    forward: GraphCompiler
    backward: GraphCompiler
    joint: Callable[[Any], None]
    """Sees forward and backward in one graph, before it is divided."""


def traced(module: Any, inputs: Sequence[Any], compilers: Compilers, kept: Collection[str]) -> Callable[..., Any]:
    """What runs a captured graph; operators named in `kept` stay whole where no gradient has to pass through them."""
    torch = torch_module()
    aot = torch_module("torch._functorch.aot_autograd")
    partition = torch_module("torch._functorch.partitioners").min_cut_rematerialization_partition
    tensors = [*inputs, *module.parameters()]
    graded = torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in tensors)
    direct: list[Callable[..., Any]] = []
    # A backward graph is compiled, and runs, where the caller's frames do: dynamo would trace us there.
    untraced = torch_module("torch._dynamo").disable

    def inference(traced: Any, given: Sequence[Any]) -> Any:
        if len(given) == len(inputs) and (found := _metadata()) is not None:
            mark_weights(traced.graph, found.static_input_indices)
        run = compilers.inference(traced)
        if len(given) == len(inputs) and _is_plain():
            direct.append(run)
        return _boxed(run)

    def backward(traced: Any, _: Sequence[Any]) -> Any:
        return untraced(_boxed(compilers.backward(traced)))

    def divided(joint: Any, *args: Any, **options: Any) -> Any:
        compilers.joint(joint)
        return partition(joint, *args, **options)

    with warnings.catch_warnings(), phase("trace"), _whole(kept, graded):
        warnings.simplefilter("ignore")
        made = aot.aot_module_simplified(
            module,
            inputs,
            fw_compiler=partial(_compiled, compilers.forward),
            bw_compiler=untraced(backward),
            inference_compiler=inference,
            partition_fn=divided,
            decompositions={op: f for op, f in decompositions().items() if str(op) not in kept and not _draws(op)},
            keep_inference_input_mutations=True,
        )
    return direct[0] if direct else made


def _draws(op: Any) -> bool:
    """Whether an operator draws random numbers: torch's decomposition of it draws others than eager does."""
    return torch_module().Tag.nondeterministic_seeded in getattr(op, "tags", ())


def compile_name() -> str:
    """dynamo's number of the compilation that is under way: of the frame, and of its attempt."""
    found = torch_module("torch._guards").CompileContext.current_compile_id()
    return "" if found is None else str(found).replace("/", "_")


def _metadata() -> Any:
    """What AOTAutograd found out about the graph that it traces."""
    context = torch_module("torch._guards").TracingContext.try_get()
    return None if context is None else context.fw_metadata


def _is_plain() -> bool:
    """Whether nothing is left to do around a graph: no input is changed, and no output is a view of one."""
    found = _metadata()
    return (
        found is not None
        and not found.tokens
        and not any(i.mutates_data or i.mutates_metadata or i.mutates_storage_metadata for i in found.input_info)
        and all(o.output_type.name == "non_alias" for o in found.output_info)
    )


def _compiled(compiler: GraphCompiler, traced: Any, _: Sequence[Any]) -> Any:
    return _boxed(compiler(traced))


def _boxed(run: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    """A function of a list, which it empties: AOTAutograd then holds no tensor that the run has used."""

    def boxed(args: list[Any]) -> Any:
        given = tuple(args)
        args.clear()
        return run(*given)

    boxed._boxed_call = True  # pyright: ignore[reportFunctionMemberAccess]  # torch looks for it
    return boxed


def _whole(kept: Collection[str], graded: bool) -> AbstractContextManager[Any]:
    """Keeps composite operators whole; with gradients, attention is traced as products and softmax."""
    if graded:
        attention = torch_module("torch.nn.attention")
        return attention.sdpa_kernel(attention.SDPBackend.MATH)
    program = torch_module("torch.export.exported_program")
    override = getattr(program, "_override_composite_implicit_decomp", None)
    return nullcontext() if override is None else override(_kept_composites(frozenset(kept)))


@cache
def _kept_composites(kept: frozenset[str]) -> dict[Any, Any]:
    """Operators that torch would take apart while it traces, and what keeps each of them whole."""
    program = torch_module("torch.export.exported_program")
    whole, _ = program._split_decomp_table_to_cia_and_python_decomp({})
    return {op: keep for op, keep in whole.items() if str(op) in kept}


__all__ = ["Compilers", "GraphCompiler", "compile_name", "traced"]
