"""Casts to and from floats of 8 bits (e4m3, e5m2) by the conversion instructions of NVIDIA GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dovetail.ir.dtype import DType, bf16, f8e4m3fn, f8e5m2, f16, f32, u8
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.families.lut_cast import cast_job
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import Call, Expr

FORMATS: Mapping[DType, str] = MappingProxyType({f8e4m3fn: "e4m3", f8e5m2: "e5m2"})
"""As instructions name them."""
WIDE = (f16, bf16, f32)


def offer_fp8_cast(of: StepProblem[GpuDevice]) -> Offer | Refused:
    """The kernel of a cast between a float of 8 bits and one of 16 or 32, where the device has the instruction."""
    (x,) = of.value.operands
    source, target, device = x.dtype, of.value.dtype, of.device
    narrows = source in WIDE and target in FORMATS
    if not narrows and not (source in FORMATS and target in WIDE):
        return Refused(
            "dtypes_have_an_instruction", f"{source.name} to {target.name}", "e4m3 or e5m2, and f16, bf16, f32"
        )
    if narrows and not of.value.attrs.get("saturate", True):
        return Refused("cast_saturates", "saturate=False", "saturate=True: the instruction keeps numbers in range")
    if not device.converts_fp8:
        return Refused("device_converts_fp8", device.architecture, "sm_90 or newer")

    def convert(x: Expr) -> Expr:
        if narrows:
            # Widening is exact, so that the instruction rounds once.
            return Call(f"{FORMATS[target]}_of_f32", (cast_to(x, f32),), u8)
        return cast_to(Call(f"f16_of_{FORMATS[source]}", (x,), f16), target)

    return Offer(lambda: cast_job(of.step, of.locations, source if narrows else u8, convert, name="convert"))


__all__ = ["FORMATS", "offer_fp8_cast"]
