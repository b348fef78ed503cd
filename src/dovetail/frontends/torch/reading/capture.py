"""Modules exported with torch.export, decomposed down to the operators that have rules."""

from __future__ import annotations

import io
import logging
import re
import sys
import warnings
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from functools import cache
from itertools import takewhile
from typing import Any

from dovetail.errors import LoadError, OptionError
from dovetail.frontends.torch.reading.dynamic import check_call, dynamic_shapes, symbol_names
from dovetail.frontends.torch.reading.fast_paths import fast_paths
from dovetail.frontends.torch.reading.grad_regions import gradients_stopped
from dovetail.frontends.torch.reading.package import torch_module
from dovetail.progress import phase


def is_module(given: Any) -> bool:
    return isinstance(given, torch_module().nn.Module)


def load_program(path: str) -> Any:
    """The program of a .pt2 file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return torch_module("torch.export").load(path)
        except Exception as error:  # torch and the archive raise many kinds, none of them documented
            raise LoadError(
                f"{path} is no exported program: {_first_line(error)}", hint="see torch.export.save"
            ) from error


def captured(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic: Any) -> tuple[Any, dict[str, str]]:
    """The exported program of a module, and the names that `dynamic` gives to its symbols."""
    torch = torch_module()
    if module.training and _has_dropout(module):
        raise OptionError("a module in training mode, with dropout", hint="call module.eval() first")
    check_call(module, args, kwargs)
    spec = dynamic_shapes(module, args, kwargs, dynamic)

    def exported(strict: bool) -> Any:
        return torch.export.export(module, tuple(args), dict(kwargs), dynamic_shapes=spec, strict=strict)

    # With gradients, torch.export notes what the module computes without them.
    with torch.enable_grad(), warnings.catch_warnings(), _told_once(), phase("export"):
        warnings.simplefilter("ignore")
        try:
            program = exported(strict=False)
            if _has_buffers_of_two_names(program):
                program = exported(strict=True)
        except Exception as error:  # torch raises what the module raises, and many kinds of its own
            raise LoadError(f"torch.export refuses the module: {_first_line(error)}", hint=_hint(error)) from error
    return program, symbol_names(module, program, args, kwargs, dynamic)


def _hint(error: BaseException) -> str:
    """What to do about a module that torch.export refuses."""
    text = str(error)
    found = re.search(r"Found (?:<class ')?([^\s']*Cache)\b.*? in output", text)
    if found is not None:
        kind = found[1].rpartition(".")[2]
        return f"the module returns a {kind}: set module.config.use_cache = False, or pass use_cache=False in kwargs"
    if "data-dependent" in text or "GuardOnDataDependentSymNode" in type(error).__name__:
        return (
            "a branch or a size depends on numbers of a tensor: write it with torch.where or torch.cond, or use "
            'torch.compile(module, backend="dovetail"), which breaks the graph there'
        )
    return "torch.export.export(module, args, strict=False) shows all of it"


def decomposed(program: Any, kept: Collection[str]) -> Any:
    """The program in functional form; operators named in `kept` stay whole."""
    torch = torch_module()
    table = {op: function for op, function in decompositions().items() if str(op) not in kept}
    with torch.no_grad(), warnings.catch_warnings(), phase("decompose"):
        warnings.simplefilter("ignore")
        try:
            return gradients_stopped(program).run_decompositions(table)
        except Exception as error:  # torch raises many kinds here, none of them documented
            raise LoadError(
                f"torch cannot decompose the program: {_first_line(error)}",
                hint="program.run_decompositions() shows all of it",
            ) from error


_ALSO_DECOMPOSED = frozenset(
    f"aten.{op}"
    for op in (
        "_addmm_activation.default",
        "_batch_norm_no_update.default",
        "_batch_norm_with_update.default",
        "_batch_norm_with_update_functional.default",
        "addmm.dtype",
        "as_strided_copy.default",
        "batch_norm_backward.default",
        "bucketize.Scalar",
        "cauchy.default",
        "dist.default",
        "geometric.default",
        "log_normal.default",
        "max_pool2d_with_indices_backward.default",
        "native_batch_norm.default",
        "native_dropout.default",
        "rrelu_with_noise_backward.default",
        "upsample_bicubic2d.default",
        "upsample_bilinear2d.default",
        "upsample_trilinear3d.default",
    )
)
"""Operators that torch can decompose into others with rules, and that its table to core ATen leaves whole."""


@cache
def decompositions() -> dict[Any, Any]:
    """torch's own tables, to core ATen and for what that one leaves whole, and ours of whole layers.

    Making them anew takes a second.
    """
    core = dict(torch_module("torch.export").default_decompositions().items())
    rest = torch_module("torch._decomp").decomposition_table
    return {op: function for op, function in rest.items() if str(op) in _ALSO_DECOMPOSED} | core | fast_paths()


def _has_dropout(module: Any) -> bool:
    return any(type(m).__name__.endswith("Dropout") and getattr(m, "p", 0) > 0 for m in module.modules())


@contextmanager
def _told_once() -> Generator[None]:
    """torch prints what it raises, too: here the error alone says it."""
    names = [
        name for name in logging.root.manager.loggerDict if name.startswith(("torch._", "torch.fx", "torch.export"))
    ]
    logs = [logging.getLogger(name) for name in names]
    before = [log.disabled for log in logs]
    for log in logs:
        log.disabled = True
    said = io.StringIO()
    try:
        with redirect_stderr(said):  # where torch prints the graph that it could not trace on
            yield
        sys.stderr.write(said.getvalue())
    finally:
        for log, was in zip(logs, before, strict=True):
            log.disabled = was


def _has_buffers_of_two_names(program: Any) -> bool:
    """Whether a buffer is a constant too: a plain object holds it, and what is written to one is not seen in the other.

    torch cannot decompose such a program. Its strict mode knows that both are one.
    """
    held = {**program.state_dict, **program.constants}
    places: dict[str, set[int]] = {"BUFFER": set(), "CONSTANT_TENSOR": set()}
    for spec in program.graph_signature.input_specs:
        tensor: Any = held.get(spec.target)
        if spec.kind.name in places and isinstance(tensor, torch_module().Tensor) and tensor.numel():
            places[spec.kind.name].add(tensor.data_ptr())
    return not places["BUFFER"].isdisjoint(places["CONSTANT_TENSOR"])


def _first_line(error: BaseException) -> str:
    """The first line of an error of torch, with the list that it may begin."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    listed = list(takewhile(lambda line: line.startswith("- "), lines[1:]))
    return " ".join([f"{type(error).__name__}: {lines[0] if lines else ''}", *dict.fromkeys(listed)])
