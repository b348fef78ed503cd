"""Every AMDGCN name that generated code uses: LLVM renames them between versions."""

from __future__ import annotations

TRIPLE = "amdgcn-amd-amdhsa"
LAYOUT = (
    "e-m:e-p:64:64-p1:64:64-p2:32:32-p3:32:32-p4:64:64-p5:32:32-p6:32:32-p7:160:256:256:32-p8:128:128:128:48-"
    "p9:192:256:256:32-i64:64-v16:16-v24:32-v32:32-v48:64-v96:128-v192:256-v256:256-v512:512-v1024:1024-v2048:2048-"
    "n32:64-S32-A5-G1-ni:7:8:9"
)
"""Of LLVM 22; what compiles a module takes that of its own version."""
KERNEL = "amdgpu_kernel"
"""The calling convention of a kernel."""
PRIVATE = "5"
"""The address space of what a thread has for itself."""
AGENT, WORKGROUP, WAVEFRONT = 'syncscope("agent") ', 'syncscope("workgroup") ', 'syncscope("wavefront") '
"""Scopes of an access: the device, a block, a warp."""

THREAD = "llvm.amdgcn.workitem.id.x"
BLOCK = "llvm.amdgcn.workgroup.id.x"
IMPLICIT = "llvm.amdgcn.implicitarg.ptr"
"""Where arguments begin that the launch adds itself; the first one is the number of blocks (code object 5)."""
BARRIER = "llvm.amdgcn.s.barrier"
WARP_BARRIER = "llvm.amdgcn.wave.barrier"
BALLOT = "llvm.amdgcn.ballot."
"""A bit for each lane; `i32` or `i64` follows, as a warp has 32 or 64."""
SWIZZLE = "llvm.amdgcn.ds.swizzle"
"""An i32 of another of 32 lanes, which bits of an operand say."""
PERMUTE = "llvm.amdgcn.ds.bpermute"
"""The i32 of any lane of the warp, by four times its number."""
NEAR_EXP2 = "llvm.amdgcn.exp2.f32"
"""2**x of f32 to 1 unit in the last place; denormals are 0."""
NEAR_RSQRT = "llvm.amdgcn.rsq.f32"
NEAR_RECIPROCAL = "llvm.amdgcn.rcp.f32"
"""To 1 unit in the last place; denormals are 0."""
MEDIAN = "llvm.amdgcn.fmed3.f32"
ACCURACY = "!fpmath !{float 2.5e+00}"
"""Says that a quotient may be off by 2.5 units in the last place: a reciprocal and products."""
TAKE_BYTES = "llvm.amdgcn.perm"


def threads(count: int) -> str:
    """The attributes that say how many threads a block has."""
    return f'"amdgpu-flat-work-group-size"="{count},{count}" "uniform-work-group-size"="true"'


def header() -> str:
    """How a module for this target begins."""
    return f'target triple = "{TRIPLE}"\ntarget datalayout = "{LAYOUT}"\n'
