"""The program of a child process: Shardy's own passes on a StableHLO module, and the collectives that they put in.

It reads one JSON object a line and answers with one. Shardy has crashed on some versions of JAX; then the child alone
is lost. No other module of dovetail is imported here, so that it starts fast.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

MOST_SEARCHED = 64
"""Values that are looked at for the origin of a split."""
_ORIGIN = r'"?(\w+)"?(?::\(\d+\)\d+)?"? = "([^"]*)"'
KINDS = ("all_reduce", "all_gather", "all_slice", "all_to_all", "reduce_scatter", "collective_permute")


def pipeline(passmanager: Any) -> str:
    """Shardy's pipeline as this version has it, with origins, and every reshard as a collective.

    Names of passes change from release to release, so the pipeline itself is printed and edited.
    """
    own = str(passmanager.PassManager.parse("builtin.module(sdy-propagation-pipeline)"))
    for flag in ("debug-sharding-origins", "enable-full-version"):
        own = own.replace(f"{flag}=false", f"{flag}=true")
    own = re.sub(r"canonicalize\{cse.*?top-down=\w+\},", "", own)
    own = re.sub(r"canonicalize\{ .*?\}.*?\},", "", own)
    own = own.replace("sdy-save-module,", "").replace("module-dump-directory= ", "")
    own = own.replace(",func.func(sdy-drop-sharding-rules)", "")
    own = re.sub(r"inline\{.*?\}", "inline", own)
    if "(inline," not in own:
        own = own.replace("builtin.module(", "builtin.module(inline,", 1)
    return own[:-1] + ",func.func(sdy-reshard-to-collectives))"


class Walk:
    """Reads the collectives of a module, and where the splits of their operands come from."""

    def __init__(self, ir: Any, mesh: Sequence[str]) -> None:
        self.ir = ir
        self.mesh = mesh
        self.calls: dict[str, Any] = {}
        """By name, the call of a function: bodies of loops are functions, and each has one call."""

    def _ops(self, module: Any) -> list[Any]:
        """The ops of all functions, also those in the bodies of loops and branches."""
        ops = [op for f in module.body.operations if f.operation.name == "func.func" for op in _within(f)]
        calls = [op.operation for op in ops if op.operation.name == "func.call"]
        self.calls = {str(call.attributes["callee"]).strip('@"'): call for call in calls}
        return ops

    def collectives(self, module: Any) -> Iterator[dict[str, Any]]:
        for op in self._ops(module):
            kind = op.operation.name.removeprefix("sdy.")
            if kind in KINDS:
                yield self._collective(kind, op.operation)

    def flops(self, module: Any, sizes: dict[str, int]) -> float:
        """The operations of all products on one device."""
        total = 0.0
        for op in self._ops(module):
            if op.operation.name == "stablehlo.dot_general":
                values = [*op.operation.operands, *op.operation.results]
                split = "".join(map(self._sharding, values))
                counts = [_count(str(v.type)) for v in values]
                batch = re.search(
                    r"lhs_batching_dimensions = \[([\d, ]+)\]", str(op.attributes["dot_dimension_numbers"])
                )
                shared = _count(str(values[0].type), [int(n) for n in batch[1].split(",")]) if batch else 1
                # batch · m · k · n, from the elements of both factors and the product
                work = 2 * (counts[0] * counts[1] * counts[2] / shared) ** 0.5
                total += work / max(1, _product(n for a, n in sizes.items() if f'"{a}"' in split))
        return total

    def _collective(self, kind: str, op: Any) -> dict[str, Any]:
        # Attributes one by one: to print an op is to verify and number all others.
        # JAX 0.8 iterates over named attributes, later ones over names.
        names = [one if isinstance(one, str) else one.name for one in op.attributes]
        said = {name: str(op.attributes[name]) for name in names}
        head = " ".join(text for name, text in said.items() if name != "out_sharding" and not name.startswith("sdy."))
        spec = re.search(r"<@\w+, \[(.*?)\](?:>|,)", said.get("out_sharding", ""))
        half = re.search(r'"(\w+)":\((\d+)\)(\d+)', head)  # "tp":(1)2 is the outer half of tp
        source = op.operands[0]
        readers = self._readers(op)
        owner = source.owner
        is_result = not isinstance(owner, self.ir.Block)
        return {
            "kind": kind,
            "axes": [a for a in self.mesh if f'"{a}"' in head] or self._moved(source, spec[1] if spec else ""),
            "devices": int(half[3]) if half else 0,
            "type": str(op.results[0].type),
            "split": [a for a in self.mesh if spec and f'"{a}"' in spec[1]],
            "place": self._place(op),
            "origins": self._origins(source),
            "maker": owner.name.split(".")[-1] if is_result else "",
            "summed": [self._origins(v) for v in owner.operands] if is_result and kind == "all_reduce" else [],
            "repeats": self._repeats(op),
            "readers": [self._reader(reader, source) for reader in readers[:1]],
        }

    def _readers(self, op: Any) -> list[Any]:
        """The ops that read a result, collectives in between left out."""
        readers = [use.owner for use in op.results[0].uses]
        while readers and readers[0].name.startswith("sdy.") and len(readers[0].results):
            readers = [use.owner for use in readers[0].results[0].uses]
        return readers

    def _moved(self, source: Any, after: str) -> list[str]:
        """The mesh axes that split another axis of a tensor than before; a permutation names none itself."""
        said = re.search(r"\[(.*?)\]", self._sharding(source))
        before = said[1] if said else ""
        moved = [a for a in self.mesh if _axis_of(a, before) != _axis_of(a, after)]
        return moved or [a for a in self.mesh if f'"{a}"' in after]  # the same axes in another order

    def _sharding(self, value: Any) -> str:
        """How a value is split, as Shardy writes it."""
        owner = value.owner
        if isinstance(owner, self.ir.Block):
            if owner.owner.operation.name != "func.func":
                operand = self._operand_of(value)
                return self._sharding(operand) if operand is not None else ""
            attrs = self.ir.ArrayAttr(owner.owner.attributes["arg_attrs"])[self._argument(value)]
            return str(attrs["sdy.sharding"]) if "sdy.sharding" in attrs else ""
        for name in ("sdy.sharding", "out_sharding"):
            if name in owner.attributes:
                return str(owner.attributes[name])
        return ""

    def _argument(self, value: Any) -> int:
        """The number of an argument; values of JAX 0.8 must be cast to one."""
        return self.ir.BlockArgument(value).arg_number

    def _operand_of(self, value: Any) -> Any:
        """Return the operand that is passed for an argument of a body or a function; None for one of the program."""
        of = value.owner.owner.operation
        if of.name == "func.func":
            of = self.calls.get(str(of.attributes["sym_name"]).strip('"'))
        number = self._argument(value)
        return of.operands[number] if of is not None and number < len(of.operands) else None

    def _reader(self, reader: Any, source: Any) -> dict[str, Any]:
        others = [v for v in [*reader.operands, *reader.results] if v != source]
        name = reader.name if isinstance(reader.name, str) else reader.operation.name
        return {"op": name.split(".")[-1], "place": self._place(reader), "origins": [self._origins(v) for v in others]}

    def _place(self, op: Any) -> str:
        """The scopes that the lowering wrote, after the name of the function; a body has those of its loop."""
        places = re.findall(r'loc\("jit\([^"]*?/([^"]*)"', str(op.location))
        if places:
            return places[-1]
        around = self._around(op)
        return "" if around is None else self._place(around)

    def _around(self, op: Any) -> Any:
        """The op whose body an op is in, or the call of its function; None in the program itself."""
        parent = op.operation.parent
        if parent.operation.name != "func.func":
            return parent.operation
        return self.calls.get(str(parent.attributes["sym_name"]).strip('"'))

    def _repeats(self, op: Any) -> bool:
        """Whether an op is in the body of a loop."""
        while op is not None and op.operation.name != "stablehlo.while":
            op = self._around(op)
        return op is not None

    def _origins(self, value: Any) -> dict[str, int | str]:
        """By mesh axis, the argument whose placement a split comes from."""
        split = [a for a in self.mesh if f'"{a}"' in self._sharding(value)]
        origins: dict[str, int | str] = {}
        pending, seen = [value], 0
        # Shardy does not write the origins of all values: what is missing is that of an operand.
        while pending and seen < MOST_SEARCHED and (seen == 0 or any(a not in origins for a in split)):
            one = pending.pop(0)
            seen += 1
            if isinstance(one.owner, self.ir.Block):
                operand = self._operand_of(one)
                if operand is not None:
                    pending.append(operand)
                    continue
                said = self._sharding(one)
                origins = {a: self._argument(one) for a in self.mesh if f'"{a}"' in said} | origins
            else:
                origins = self._resolved(one.owner) | origins
                pending.extend(one.owner.operands)
        return origins

    def _resolved(self, owner: Any) -> dict[str, int | str]:
        """The origins of an op; those in a called function are counted from its own arguments."""
        origins = self._written_origins(owner)
        home = _function_of(owner)
        if str(home.attributes["sym_name"]) == '"main"':
            return origins
        inside: dict[str, int | str] = {}
        for axis, origin in origins.items():
            argument = home.regions[0].blocks[0].arguments[origin] if isinstance(origin, int) else None
            operand = None if argument is None else self._operand_of(argument)
            outside = {} if operand is None else self._origins(operand)
            if axis in outside:
                inside[axis] = outside[axis]
        return inside

    def _written_origins(self, owner: Any) -> dict[str, int | str]:
        """The origins of the first result of an op."""
        if "sdy.sharding_origins" not in owner.attributes:
            return {}
        listed = self.ir.ArrayAttr(owner.attributes["sdy.sharding_origins"])
        origins: dict[str, int | str] = {}
        for axis, origin in re.findall(_ORIGIN, str(listed[0]) if len(listed) else ""):
            number = re.match(r"input: (\d+)", origin)
            origins[axis] = int(number[1]) if number else origin
        return origins


def _within(op: Any) -> Iterator[Any]:
    """The ops inside an op, also those in the bodies of loops and branches."""
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner
                yield from _within(inner)


def _function_of(op: Any) -> Any:
    while op.operation.name != "func.func":
        op = op.operation.parent
    return op


def _product(numbers: Any) -> int:
    product = 1
    for number in numbers:
        product *= number
    return product


def _count(type: str, axes: Sequence[int] | None = None) -> int:
    """The elements of a tensor type, or of some of its axes."""
    sizes = [int(n) for n in re.findall(r"(\d+)x", type)]
    return _product(sizes if axes is None else (sizes[a] for a in axes))


def _axis_of(mesh_axis: str, spec: str) -> int | None:
    """The axis of a tensor that a mesh axis splits, in text such as {"dp"}, {}."""
    parts = re.findall(r"\{(.*?)\}", spec)
    return next((i for i, part in enumerate(parts) if f'"{mesh_axis}"' in part), None)


def main() -> None:
    """Answer requests until there are no more."""
    import_module("jax")  # registers Shardy's passes
    mlir: Any = import_module("jax.interpreters.mlir")
    ir: Any = import_module("jax.extend.mlir.ir")
    passmanager: Any = import_module("jax.extend.mlir.passmanager")
    for line in sys.stdin:
        asked = json.loads(line)
        with mlir.make_ir_context() as context, ir.Location.unknown():
            module = ir.Module.parse(asked["module"], context)
            passmanager.PassManager.parse(pipeline(passmanager)).run(module.operation)
            walk = Walk(ir, list(asked["mesh"]))
            answer = {"collectives": list(walk.collectives(module)), "flops": walk.flops(module, asked["mesh"])}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
