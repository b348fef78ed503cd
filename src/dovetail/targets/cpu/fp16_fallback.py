"""The conversions between f16 and f32 that LLVM calls where a processor has no instruction for them.

The library that has them is not on every machine, and what is called and not there is a crash.
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
  %usual = add i32 %moved, 939524096
  %endless = add i32 %moved, 1879048192
  %is_endless = icmp eq i32 %exponent, 260046848
  ; One times two to the -14 is taken from what is denormal.
  %raised = add i32 %moved, 947912704
  %raised.float = bitcast i32 %raised to float
  %small = fsub float %raised.float, 0x3F10000000000000
  %small.bits = bitcast float %small to i32
  %is_small = icmp eq i32 %exponent, 0
  %first = select i1 %is_endless, i32 %endless, i32 %usual
  %found = select i1 %is_small, i32 %small.bits, i32 %first
  %sign = and i32 %bits, 32768
  %high = shl i32 %sign, 16
  %whole = or i32 %found, %high
  %result = bitcast i32 %whole to float
  ret float %result
}

define half @__truncsfhf2(float %x) nounwind {
  %bits = bitcast float %x to i32
  %size = and i32 %bits, 2147483647
  %shifted = lshr i32 %size, 13
  %last = and i32 %shifted, 1
  %lowered = add i32 %size, -939520001
  %rounded = add i32 %lowered, %last
  %usual = lshr i32 %rounded, 13
  ; A half added to what becomes denormal leaves its digits in the lowest bits, rounded.
  %size.float = bitcast i32 %size to float
  %sum = fadd float %size.float, 0.5
  %sum.bits = bitcast float %sum to i32
  %small = sub i32 %sum.bits, 1056964608
  %is_small = icmp ult i32 %size, 947912704
  %payload = and i32 %shifted, 1023
  %none = or i32 %payload, 32256
  %is_none = icmp ugt i32 %size, 2139095040
  %endless = select i1 %is_none, i32 %none, i32 31744
  %is_large = icmp uge i32 %size, 1199570944
  %first = select i1 %is_small, i32 %small, i32 %usual
  %found = select i1 %is_large, i32 %endless, i32 %first
  %upper = lshr i32 %bits, 16
  %sign = and i32 %upper, 32768
  %whole = or i32 %found, %sign
  %narrow = trunc i32 %whole to i16
  %result = bitcast i16 %narrow to half
  ret half %result
}
"""
"""Rounds to even, as the instruction does; a NaN becomes quiet and keeps its upper digits."""
