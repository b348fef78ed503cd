"""Every NVVM name that generated code uses: LLVM renames them between versions."""

from __future__ import annotations

TRIPLE = "nvptx64-nvidia-cuda"
LAYOUT = "e-p3:32:32-p4:32:32-p5:32:32-p6:32:32-p7:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
OPTIONS = ("--nvptx-short-ptr",)
"""Options of LLVM: pointers to shared memory have 32 bits, as the layout says."""
KERNEL = "ptx_kernel"
"""The calling convention of a kernel."""
GLOBAL, SHARED = 1, 3
"""Address spaces."""


def assembly(text: str, constraints: str = "~{memory}", operands: str = "", result: str = "void") -> str:
    """Instructions with an effect. LLVM does not copy them into branches, which only some threads of a warp take."""
    return f'call {result} asm sideeffect "{text}", "{constraints}"({operands}) convergent'


THREAD = "llvm.nvvm.read.ptx.sreg.tid.x"
BLOCK = "llvm.nvvm.read.ptx.sreg.ctaid.x"
BLOCKS = "llvm.nvvm.read.ptx.sreg.nctaid.x"
BARRIER = "llvm.nvvm.barrier0"
WARP_BARRIER = "llvm.nvvm.bar.warp.sync"
ANY = "llvm.nvvm.vote.any.sync"
"""Whether a condition holds for some lane of a warp."""
BALLOT = "llvm.nvvm.vote.ballot.sync"
"""A bit for each lane of a warp: whether a condition holds there."""
SHUFFLE = "llvm.nvvm.shfl.sync.bfly.i32"
SHUFFLE_INDEX = "llvm.nvvm.shfl.sync.idx.i32"
AWAIT_KERNELS = assembly("griddepcontrol.wait;")
"""Wait until the kernels that this one depends on have ended, and see what they wrote."""
START_NEXT_KERNEL = assembly("griddepcontrol.launch_dependents;")
"""Let kernels that depend on this one start once every block has come here."""

COPY = "llvm.nvvm.cp.async.cg.shared.global.16.s"
"""16 bytes to shared memory past L1; bytes beyond a count are zeros."""
COPY_FEW = "llvm.nvvm.cp.async.ca.shared.global."
"""4 or 8 bytes to shared memory: the number follows."""
COMMIT_COPIES = "llvm.nvvm.cp.async.commit.group"
AWAIT_COPIES = "llvm.nvvm.cp.async.wait.group"
LOAD_MATRICES = "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.b16.p3"
LOAD_TRANSPOSED = "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.trans.b16.p3"
MULTIPLY_F16 = "llvm.nvvm.mma.m16n8k16.row.col.f32.f32"
"""Takes pairs of f16 as vectors."""
MULTIPLY_BF16 = "llvm.nvvm.mma.m16n8k16.row.col.bf16"
"""Takes pairs of bf16 as i32."""
MULTIPLY_TF32 = "llvm.nvvm.mma.m16n8k8.row.col.tf32"
"""Takes f32 as i32, and reads the upper 19 bits of each."""
MULTIPLY_I8 = "llvm.nvvm.mma.m16n8k32.row.col.s8"
"""Takes four s8 as i32, and adds up in i32."""

NEAR_EXP2 = "llvm.nvvm.ex2.approx.ftz.f"
"""2**x of f32 to 2 units in the last place; denormals are 0."""
GRID_Y = "llvm.nvvm.read.ptx.sreg.nctaid.y"
SATURATED_FMA = "llvm.nvvm.fma.rn.sat.f"
"""x·y + z, no less than 0 and no more than 1; NaN becomes 0."""
NEAR_RSQRT = "llvm.nvvm.rsqrt.approx.f"
"""1 / sqrt(x) of f32 to 2 units in the last place."""
NEAR_RECIPROCAL = "llvm.nvvm.rcp.approx.ftz.f"
"""1 / x of f32 to 1 unit in the last place; denormals are 0."""
NEAR_QUOTIENT = "llvm.nvvm.div.full"
"""x / y of f32 to 2 units in the last place, for operands of any size."""
BOUNDED_QUOTIENT = "llvm.nvvm.div.approx.f"
"""The same for divisors between 2**-126 and 2**126: a reciprocal and a product."""


EVICT_FIRST = 'call i64 asm "createpolicy.fractional.L2::evict_first.b64 $0, 1.0;", "=l"()'
"""The policy of bytes that L2 drops before others. It has no effect of its own: LLVM makes one for many copies."""
CLUSTER_BARRIER = assembly("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;")
"""All threads of a cluster wait for each other, and see what the others wrote: release and acquire by default."""
CLUSTER_START = assembly("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;")
"""The same without what they wrote to global memory, which would take a fence of the device."""


def threads(count: int, occupancy: int | None = None, cluster: int = 1) -> str:
    """Return the attributes of a launch: threads of a block, occupancy of a multiprocessor, blocks of a cluster."""
    attributes = [f'"nvvm.reqntid"="{count}"']
    if occupancy is not None:
        attributes.append(f'"nvvm.minctasm"="{occupancy}"')
    if cluster > 1:
        attributes.append(f'"nvvm.cluster_dim"="{cluster}"')
    return " ".join(attributes)


def header() -> str:
    """How a module for this target begins."""
    return f'target triple = "{TRIPLE}"\ntarget datalayout = "{LAYOUT}"\n'
