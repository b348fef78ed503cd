"""The conversions between f16 and f32 that LLVM calls where a processor has no instruction for them.

Not every machine has the compiler library with these functions, and a call to a missing one crashes.
"""

from __future__ import annotations

NAMES = ("__extendhfsf2", "__truncsfhf2")

TEXT = """
define float @__extendhfsf2(half %x) nounwind {
  %given = bitcast half %x to i16
  %bits = zext i16 %given to i32
  %size = and i32 %bits, 32767
  %moved = shl i32 %size, 13
  %exponent = and i32 %moved, 260046848
  %normal = add i32 %moved, 939524096
  %inf_or_nan = add i32 %moved, 1879048192
  %is_inf_or_nan = icmp eq i32 %exponent, 260046848
  ; A denormal is scaled as if it had an implicit leading one, which is 2^-14; subtract that.
  %raised = add i32 %moved, 947912704
  %raised.float = bitcast i32 %raised to float
  %denormal = fsub float %raised.float, 0x3F10000000000000
  %denormal.bits = bitcast float %denormal to i32
  %is_denormal = icmp eq i32 %exponent, 0
  %first = select i1 %is_inf_or_nan, i32 %inf_or_nan, i32 %normal
  %found = select i1 %is_denormal, i32 %denormal.bits, i32 %first
  %sign = and i32 %bits, 32768
  %high = shl i32 %sign, 16
  %signed = or i32 %found, %high
  %result = bitcast i32 %signed to float
  ret float %result
}

define half @__truncsfhf2(float %x) nounwind {
  %bits = bitcast float %x to i32
  %size = and i32 %bits, 2147483647
  %shifted = lshr i32 %size, 13
  %last = and i32 %shifted, 1
  %lowered = add i32 %size, -939520001
  %rounded = add i32 %lowered, %last
  %normal = lshr i32 %rounded, 13
  ; Adding 0.5 rounds a denormal result and leaves its digits in the lowest bits.
  %size.float = bitcast i32 %size to float
  %sum = fadd float %size.float, 0.5
  %sum.bits = bitcast float %sum to i32
  %denormal = sub i32 %sum.bits, 1056964608
  %is_denormal = icmp ult i32 %size, 947912704
  %payload = and i32 %shifted, 1023
  %nan = or i32 %payload, 32256
  %is_nan = icmp ugt i32 %size, 2139095040
  %inf = select i1 %is_nan, i32 %nan, i32 31744
  %is_large = icmp uge i32 %size, 1199570944
  %first = select i1 %is_denormal, i32 %denormal, i32 %normal
  %found = select i1 %is_large, i32 %inf, i32 %first
  %upper = lshr i32 %bits, 16
  %sign = and i32 %upper, 32768
  %signed = or i32 %found, %sign
  %narrow = trunc i32 %signed to i16
  %result = bitcast i16 %narrow to half
  ret half %result
}
"""
"""Rounds to nearest even, as the instruction does; a NaN becomes quiet and keeps the upper bits of its payload."""
