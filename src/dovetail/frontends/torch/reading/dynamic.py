"""Sizes that may change from call to call: as the user says them, and as torch has them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from dovetail.errors import OptionError
from dovetail.frontends.torch.reading.package import torch_module
from dovetail.nearest import nearest


def dynamic_shapes(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic: Any) -> Any:
    """torch's description of sizes that change: True is every axis of every tensor, a string names one."""
    if dynamic is None or dynamic is False:
        return None
    torch = torch_module()
    auto = torch.export.Dim.AUTO
    if dynamic is True:

        def every(leaf: Any) -> Any:
            return dict.fromkeys(range(leaf.dim()), auto) if isinstance(leaf, torch.Tensor) else None

        return torch_module("torch.utils._pytree").tree_map(every, _bound(module, args, kwargs))
    bound = _bound(module, args, kwargs)
    given = bound if isinstance(dynamic, Mapping) else tuple(bound.values())
    _check_names(dynamic, given, "dynamic")
    _check_sizes(dynamic, given)
    return _described(dynamic, given)


def check_call(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse an example call that is none of the module's."""
    _bound(module, args, kwargs)


def _check_names(spec: Any, given: Any, where: str) -> None:
    """Refuse names that are no arguments, and axes that a tensor does not have."""
    if isinstance(given, torch_module().Tensor):
        axes = list(cast(Mapping[Any, Any], spec)) if isinstance(spec, Mapping) else []
        wrong = [axis for axis in axes if not isinstance(axis, int) or not -given.dim() <= axis < given.dim()]
        if wrong:
            raise OptionError(
                f"{where} names the axis {wrong[0]!r} of a tensor with {given.dim()} axes",
                hint="name axes by their numbers, as in {0: 'batch'}",
            )
    elif isinstance(given, Mapping) and isinstance(spec, Mapping):
        known = cast(Mapping[Any, Any], given)
        for name, inner in cast(Mapping[Any, Any], spec).items():
            if name not in known:
                near = nearest(str(name), [str(k) for k in known])
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(map(repr, known))}"
                raise OptionError(f"{where} names {name!r}, which is no argument of the example call", hint=hint)
            _check_names(inner, known[name], f"{where}[{name!r}]")
    elif isinstance(given, list | tuple) and isinstance(spec, list | tuple):
        items = zip(cast(Sequence[Any], spec), cast(Sequence[Any], given), strict=False)
        for index, (one, inner) in enumerate(items):
            _check_names(one, inner, f"{where}[{index}]")


def _check_sizes(dynamic: Any, given: Any) -> None:
    """Refuse one name for two sizes: torch would export them as two."""
    known: dict[str, int] = {}
    for tensor, axis, name in _named_axes(dynamic, given):
        size = int(tensor.shape[axis])
        if known.setdefault(name, size) != size:
            raise OptionError(
                f"dynamic calls axes of size {known[name]} and {size} {name!r}", hint="give each size a name of its own"
            )


def _described(spec: Any, given: Any) -> Any:
    """A description in the structure of the arguments, as torch wants it; what is left out does not change."""
    if isinstance(given, torch_module().Tensor):
        if isinstance(spec, Mapping):
            return {axis: _dim(size) for axis, size in cast(Mapping[int, Any], spec).items()}
        if isinstance(spec, list | tuple):
            return tuple(_dim(size) for size in cast(Sequence[Any], spec))
        return spec
    if isinstance(given, dict) and (spec is None or isinstance(spec, Mapping)):
        inner = cast(Mapping[Any, Any], spec or {})
        return {key: _described(inner.get(key), value) for key, value in cast(dict[Any, Any], given).items()}
    if type(cast(object, given)) in (list, tuple) and (spec is None or isinstance(spec, list | tuple)):
        items = list(cast(Sequence[Any], given))
        listed = [*cast(Sequence[Any], spec or ()), *[None] * len(items)]
        found = [_described(s, g) for s, g in zip(listed, items, strict=False)]
        return tuple(found) if isinstance(given, tuple) else found
    return torch_module("torch.utils._pytree").tree_map(_fixed, given) if spec is None else spec


def _fixed(_: object) -> None:
    """The description of what does not change."""


def _dim(size: Any) -> Any:
    """What torch has for the size of an axis; a name is a size that torch may bound and must not fix."""
    hints = torch_module("torch.export").Dim
    if isinstance(size, str):
        return hints.DYNAMIC(min=1)
    return hints.AUTO if size is True else size


def symbol_names(
    module: Any, program: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic: Any
) -> dict[str, str]:
    """torch's symbols, and what `dynamic` calls each of them: sizes of one name are one size of ours."""
    if not isinstance(dynamic, Mapping | list | tuple):
        return {}
    torch = torch_module()
    types = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    held = [types[name] for name in program.graph_signature.user_inputs if isinstance(types.get(name), torch.Tensor)]
    leaves = torch_module("torch.utils._pytree").tree_leaves((tuple(args), dict(kwargs)))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    bound = _bound(module, args, kwargs)
    given = bound if isinstance(dynamic, Mapping) else tuple(bound.values())
    found: dict[str, str] = {}
    for tensor, axis, name in _named_axes(cast(Any, dynamic), given):
        at = next(i for i, t in enumerate(tensors) if t is tensor)
        size = held[at].shape[axis]
        if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
            found[str(size.node.expr)] = name
    return found


def _bound(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by the names of forward."""
    try:
        return dict(inspect.signature(module.forward).bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise OptionError(
            f"the example call does not fit forward: {error}",
            hint="pass the arguments of a call: args=(x,), or kwargs={'x': x}",
        ) from None


def _named_axes(spec: Any, given: Any) -> Iterator[tuple[Any, int, str]]:
    """Each tensor of a call with the axes that a description names."""
    if isinstance(given, torch_module().Tensor):
        listed = dict(enumerate(cast(Sequence[Any], spec))) if isinstance(spec, list | tuple) else None
        for axis, name in (listed or cast(Mapping[int, Any], spec or {})).items():
            label = name if isinstance(name, str) else getattr(name, "__name__", None)
            if isinstance(label, str):
                yield given, axis, label
    elif isinstance(given, Mapping) and isinstance(spec, Mapping):
        described = cast(Mapping[Any, Any], spec)
        for key, inner in cast(Mapping[Any, Any], given).items():
            yield from _named_axes(described.get(key), inner)
    elif isinstance(given, list | tuple) and isinstance(spec, list | tuple):
        for one, inner in zip(cast(Sequence[Any], spec), cast(Sequence[Any], given), strict=False):
            yield from _named_axes(one, inner)
