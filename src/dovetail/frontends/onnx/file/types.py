"""Element types and tensor types as ONNX writes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from dovetail.errors import DovetailError, LoadError, UnsupportedError
from dovetail.frontends.onnx.file.proto import TensorProto, messages
from dovetail.frontends.shared.messages import printable, text
from dovetail.ir import dtype
from dovetail.ir.dim import Size, symbol
from dovetail.ir.dtype import DType
from dovetail.ir.size_text import parse_size
from dovetail.ir.type import TensorType

ELEMENTS: dict[int, DType] = {
    TensorProto.FLOAT: dtype.f32,
    TensorProto.UINT8: dtype.u8,
    TensorProto.INT8: dtype.i8,
    TensorProto.UINT16: dtype.u16,
    TensorProto.INT16: dtype.i16,
    TensorProto.INT32: dtype.i32,
    TensorProto.INT64: dtype.i64,
    TensorProto.BOOL: dtype.bool_,
    TensorProto.FLOAT16: dtype.f16,
    TensorProto.DOUBLE: dtype.f64,
    TensorProto.UINT32: dtype.u32,
    TensorProto.UINT64: dtype.u64,
    TensorProto.COMPLEX64: dtype.c64,
    TensorProto.BFLOAT16: dtype.bf16,
    TensorProto.FLOAT8E4M3FN: dtype.f8e4m3fn,
    TensorProto.FLOAT8E4M3FNUZ: dtype.f8e4m3fnuz,
    TensorProto.FLOAT8E5M2: dtype.f8e5m2,
    TensorProto.FLOAT8E5M2FNUZ: dtype.f8e5m2fnuz,
    TensorProto.FLOAT8E8M0: dtype.f8e8m0,
    TensorProto.FLOAT4E2M1: dtype.f4e2m1,
    TensorProto.INT4: dtype.i4,
    TensorProto.UINT4: dtype.u4,
    TensorProto.INT2: dtype.i2,
    TensorProto.UINT2: dtype.u2,
}
"""The element types that both sides have."""

NUMBERS = {d: number for number, d in ELEMENTS.items()}

LARGEST = 2**48
"""No size of a real tensor is beyond it, and products of sizes below it do not overflow by surprise."""


def element(number: int, where: str) -> DType:
    """The dtype with this number in ONNX."""
    found = ELEMENTS.get(number)
    if found is None:
        known = TensorProto.DataType.Name(number) if number in TensorProto.DataType.values() else None
        if known is None or number == TensorProto.UNDEFINED:
            raise LoadError(f"an element type of number {number}", hint="write the model anew", where=where)
        raise UnsupportedError(f"tensors of {known.lower()}", hint="cast them outside of the model", where=where)
    return found


def tensor_type(info: messages.ValueInfoProto, fresh: Callable[[str], Size]) -> TensorType:
    """The type that a graph declares for a value; `fresh` names sizes that have no name of their own."""
    where = f"the input {info.name!r}"
    of_input = info.type
    if of_input.WhichOneof("value") == "optional_type":
        of_input = of_input.optional_type.elem_type  # an input that is declared has to be given
    kind = of_input.WhichOneof("value")
    if kind != "tensor_type":
        found = "no type" if kind is None else kind.removesuffix("_type").replace("_", " ")
        raise UnsupportedError(f"{info.name!r} is a {found}", hint="dovetail takes dense tensors", where=where)
    declared = of_input.tensor_type
    of = element(declared.elem_type, where)
    if not declared.HasField("shape"):
        raise UnsupportedError(f"{info.name!r} has no shape", hint="export the model with shapes", where=where)
    return TensorType(of, tuple(_size(d, f"{info.name}_{i}", fresh, where) for i, d in enumerate(declared.shape.dim)))


def shared(types: Mapping[str, TensorType]) -> dict[str, TensorType]:
    """The same types, one object for all that are equal: then `is` compares them."""
    one: dict[TensorType, TensorType] = {}
    return {name: one.setdefault(type, type) for name, type in types.items()}


def _size(dim: messages.TensorShapeProto.Dimension, name: str, fresh: Callable[[str], Size], where: str) -> Size:
    match dim.WhichOneof("value"):
        case "dim_value":
            if dim.dim_value == -1:  # how some exporters write that a size is open
                return fresh(name)
            if not 0 <= dim.dim_value <= LARGEST:
                raise LoadError(f"a size is {dim.dim_value}", hint=f"sizes go from 0 to {LARGEST}", where=where)
            return dim.dim_value
        case "dim_param" if re.search(r"\w", text(dim.dim_param)):  # not "?", another size each time
            return named_size(text(dim.dim_param).strip())
        case _:
            return fresh(name)


def check_declared(
    info: messages.ValueInfoProto, found: TensorType, what: str, any_rank: Callable[[], bool] | None = None
) -> None:
    """Raise where the type that a graph declares for a value contradicts the one that it has.

    `any_rank` tells whether its rank depends on sizes of the run: the file may declare the rank of another run.
    """
    if info.type.WhichOneof("value") != "tensor_type":
        return
    declared = info.type.tensor_type
    where = f"{what} {printable(info.name)!r}"
    of = element(declared.elem_type, where) if declared.elem_type else found.dtype
    # Some exporters write 0 or -1 for a size that is open.
    sizes = [d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else None for d in declared.shape.dim]
    same_rank = not declared.HasField("shape") or len(sizes) == found.rank
    known = zip(sizes, found.shape, strict=True) if declared.HasField("shape") and same_rank else ()
    differs = any(isinstance(own, int) and size is not None and size != own for size, own in known)
    if of is not found.dtype or differs or not (same_rank or (any_rank is not None and any_rank())):
        spelled = ", ".join("?" if s is None else str(s) for s in sizes)
        shape = f"[{spelled}]" if declared.HasField("shape") else ""
        raise LoadError(
            f"{where} is declared as {of.name}{shape}, and it is {found}",
            hint="infer the shapes of the file again: onnx.shape_inference.infer_shapes",
            where=where,
        )


def named_size(text: str) -> Size:
    """A size by the name that the model gives it, which may be a small expression."""
    if _IDENTIFIER.fullmatch(text):
        return symbol(text)
    if len(text) <= 128 and _EXPRESSION.fullmatch(text):
        try:
            return parse_size(text)
        except DovetailError:
            pass
    return symbol("d_" + re.sub(r"\W", "_", text, flags=re.ASCII)[:64])


_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_EXPRESSION = re.compile(r"[A-Za-z0-9_+\-*/() ]+")


def type_proto(type: TensorType) -> messages.TypeProto:
    """A type as ONNX writes it; sizes that are expressions stay open."""
    from onnx import helper  # few models have operators without a rule

    shape = [s if isinstance(s, int) else None for s in type.shape]
    return helper.make_tensor_type_proto(NUMBERS[type.dtype], shape)
