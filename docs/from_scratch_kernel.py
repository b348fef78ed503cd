"""A kernel from scratch: from a fused op to machine code in one file. Read it from top to bottom, or run it.

`from_scratch.py` ends with a graph in which ops are fused. This file takes the other half of the way: one fused op
becomes loops, the loops become LLVM text, LLVM makes machine code of it, and NumPy arrays go in and come out.

    1 the loop language   2 the printer   3 LLVM   4 kernel families   5 a fast exp   6 the launch   7 the judge

It needs NumPy and llvmlite. dovetail itself has the same steps: `kernels/loops/ir.py`, `codegen/llvm/loops.py`,
`targets/cpu/jit.py`, `kernels/families/`, `codegen/llvm/maths/`, `targets/cpu/threads/`.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import llvmlite.binding as _untyped  # pyright: ignore[reportMissingTypeStubs]
import numpy as np

llvm: Any = _untyped
Array: TypeAlias = "np.ndarray[Any, Any]"

# ----------------------------------------------------------------------------------------------- 1. the loop language
# A kernel is a few loops over floats in memory. Expressions are trees; statements store an element, set a scalar or
# repeat. It says what is computed and in which order, and nothing about registers: that is LLVM's part.


@dataclass(frozen=True)
class Expr:
    """An op on operands: a literal, an index, a scalar, an element of a tensor, or arithmetic."""

    op: str
    operands: tuple[Expr, ...] = ()
    name: str = ""
    value: float = 0.0
    kind: Literal["float", "i64"] = "float"

    def __add__(self, other: Expr | float) -> Expr:
        return Expr("add", (self, expr(other)), kind=self.kind)

    def __sub__(self, other: Expr | float) -> Expr:
        return Expr("sub", (self, expr(other)), kind=self.kind)

    def __mul__(self, other: Expr | float) -> Expr:
        return Expr("mul", (self, expr(other)), kind=self.kind)

    def __truediv__(self, other: Expr | float) -> Expr:
        return Expr("div", (self, expr(other)))


def expr(x: Expr | float) -> Expr:
    return x if isinstance(x, Expr) else Expr("number", value=x)


def index(name: str) -> Expr:
    """A loop variable, or a size that every call is given."""
    return Expr("name", name=name, kind="i64")


def scalar(name: str) -> Expr:
    """An accumulator."""
    return Expr("name", name=name)


def load(tensor: str, at: Expr) -> Expr:
    return Expr("load", (at,), name=tensor)


def maximum(x: Expr, y: Expr | float) -> Expr:
    return Expr("maxnum", (x, expr(y)))


@dataclass(frozen=True)
class Store:
    tensor: str
    at: Expr
    value: Expr


@dataclass(frozen=True)
class Set:
    """Give a scalar a value; setting it again replaces that."""

    name: str
    value: Expr


@dataclass(frozen=True)
class Loop:
    """The body for every integer from `begin` to below `end`."""

    variable: str
    begin: Expr
    end: Expr
    body: tuple[Statement, ...]


Statement: TypeAlias = Store | Set | Loop
ZERO = Expr("integer", kind="i64")


@dataclass(frozen=True)
class Kernel:
    """Pointers, then sizes, then the range of rows: rows are independent, so any thread can take any range."""

    name: str
    pointers: tuple[str, ...]
    sizes: tuple[str, ...]
    row: tuple[Statement, ...]
    """What is done for the row `i`."""


# ----------------------------------------------------------------------------------------------------- 2. the printer
# LLVM wants SSA form, in which a name is defined once and loops carry values by phis. We do not build it: every scalar
# and loop variable is a stack slot that is loaded and stored, and LLVM's first passes promote the slots to registers.
# `reassoc` on an addition lets LLVM keep one partial sum per lane; without it a sum has one order and stays scalar.
# `contract` lets it join a multiplication and an addition to one instruction.

BINARY = {"add": "fadd reassoc contract", "sub": "fsub", "mul": "fmul contract", "div": "fdiv"}


class Printer:
    """The text of one kernel while it is written."""

    def __init__(self) -> None:
        self.lines, self.slots, self.count = list[str](), dict[str, str](), 0

    def let(self, instruction: str) -> str:
        """A new SSA value."""
        self.count += 1
        self.lines.append(f"  %v{self.count} = {instruction}")
        return f"%v{self.count}"

    def value(self, e: Expr) -> str:
        match e.op:
            case "number":
                return f"0x{int(np.float64(np.float32(e.value)).view(np.uint64)):016X}"
            case "integer":
                return "0"
            case "name":
                self.slots.setdefault(e.name, e.kind)
                return self.let(f"load {e.kind}, ptr %{e.name}")
            case "load":
                return self.let(f"load float, ptr {self.element(e.name, e.operands[0])}, align 4")
            case "maxnum" | "floor":
                given = ", ".join(f"float {self.value(x)}" for x in e.operands)
                return self.let(f"call float @llvm.{e.op}.f32({given})")
            case "power_of_two":  # an integer n as the float 2ⁿ: n + 127 in the bits of the exponent
                n = self.let(f"fptosi float {self.value(e.operands[0])} to i32")
                biased = self.let(f"add i32 {n}, 127")
                return self.let(f"bitcast i32 {self.let(f'shl i32 {biased}, 23')} to float")
            case _:
                x, y = (self.value(operand) for operand in e.operands)
                return self.let(f"{e.op if e.kind == 'i64' else BINARY[e.op]} {e.kind} {x}, {y}")

    def element(self, tensor: str, at: Expr) -> str:
        return self.let(f"getelementptr inbounds float, ptr %{tensor}, i64 {self.value(at)}")

    def statement(self, s: Statement) -> None:
        match s:
            case Set():
                self.slots[s.name] = s.value.kind
                self.lines.append(f"  store {s.value.kind} {self.value(s.value)}, ptr %{s.name}")
            case Store():
                value, pointer = self.value(s.value), self.element(s.tensor, s.at)
                self.lines.append(f"  store float {value}, ptr {pointer}, align 4")
            case Loop():
                self.count += 1
                head, body, done = (f"{part}{self.count}" for part in ("head", "body", "done"))
                self.statement(Set(s.variable, s.begin))
                self.lines += [f"  br label %{head}", f"{head}:"]
                more = self.let(f"icmp slt i64 {self.value(index(s.variable))}, {self.value(s.end)}")
                self.lines += [f"  br i1 {more}, label %{body}, label %{done}", f"{body}:"]
                for inner in s.body:
                    self.statement(inner)
                following = self.let(f"add nsw i64 {self.value(index(s.variable))}, 1")
                self.lines += [f"  store i64 {following}, ptr %{s.variable}", f"  br label %{head}", f"{done}:"]


def text_of(kernel: Kernel) -> str:
    """A kernel as an LLVM module."""
    printer = Printer()
    printer.statement(Loop("i", index("begin"), index("end"), kernel.row))
    sizes = (*kernel.sizes, "begin", "end")
    given = [f"ptr noalias %{p}" for p in kernel.pointers] + [f"i64 %given.{s}" for s in sizes]
    lines = [f"define void @{kernel.name}({', '.join(given)}) {{"]
    lines += [f"  %{name} = alloca {kind}" for name, kind in printer.slots.items()]
    lines += [f"  store i64 %given.{s}, ptr %{s}" for s in sizes if s in printer.slots]
    declared = ["declare float @llvm.maxnum.f32(float, float)", "declare float @llvm.floor.f32(float)"]
    return "\n".join([*declared, *lines, *printer.lines, "  ret void", "}"])


# ------------------------------------------------------------------------------------------------------------ 3. LLVM
# LLVM knows the machine. It promotes the stack slots, vectorises the inner loops, allocates registers and writes
# machine code into memory. The address of a function in there is something that ctypes can call.


@dataclass(frozen=True)
class Compiled:
    """Machine code in memory, which lives as long as the engine, and the same as assembly to look at."""

    engine: Any
    function: Callable[..., None]
    assembly: str


def compiled(kernel: Kernel) -> Compiled:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    host = llvm.Target.from_default_triple()
    features = llvm.get_host_cpu_features().flatten()
    machine = host.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=3, jit=True)
    module = llvm.parse_assembly(text_of(kernel))
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    assembly = machine.emit_assembly(module)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    kinds = [ctypes.c_void_p] * len(kernel.pointers) + [ctypes.c_int64] * (len(kernel.sizes) + 2)
    call = ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address(kernel.name))
    return Compiled(engine, call, assembly)


# ------------------------------------------------------------------------------------------------- 4. kernel families
# A family is a shape of loops that serves many ops. `map` is one pass over elements; `rows` reduces each row and then
# passes over it again. What an op computes is handed in as a Python function of expressions: called with the element,
# it is the arithmetic between load and store. An activation after it is an epilogue: one more function, no more loops.

Elementwise: TypeAlias = Callable[..., Expr]


def same(x: Expr) -> Expr:
    return x


def map_kernel(name: str, operands: Sequence[str], compute: Elementwise, epilogue: Elementwise = same) -> Kernel:
    """One pass: y[i, j] = epilogue(compute(x[i, j], …)), nothing in between is stored."""
    at = index("i") * index("n") + index("j")
    value = epilogue(compute(*[load(x, at) for x in operands]))
    return Kernel(name, (*operands, "y"), ("n",), (Loop("j", ZERO, index("n"), (Store("y", at, value),)),))


def softmax_kernel() -> Kernel:
    """Three passes over a row that stays in L1: maximum, exp and sum, division."""
    at, n = index("i") * index("n") + index("j"), index("n")
    biggest, total, power = scalar("biggest"), scalar("total"), scalar("power")
    return Kernel(
        "softmax",
        ("x", "y"),
        ("n",),
        (
            Set("biggest", load("x", index("i") * n)),
            Loop("j", ZERO, n, (Set("biggest", maximum(biggest, load("x", at))),)),
            Set("total", expr(0.0)),
            Loop(
                "j",
                ZERO,
                n,
                (Set("power", exp(load("x", at) - biggest)), Store("y", at, power), Set("total", total + power)),
            ),
            Loop("j", ZERO, n, (Store("y", at, load("y", at) / total),)),
        ),
    )


# ------------------------------------------------------------------------------------------------------ 5. a fast exp
# A call of libm in a loop keeps it scalar. So exp is written in the loop language, without a branch: eˣ is 2ⁿ·eʳ for
# the integer n nearest to x/ln 2, and |r| ≤ ln 2 / 2, where a short polynomial is exact to the last bits of a float.

LN2 = float(np.log(2.0))


def exp(x: Expr) -> Expr:
    """e to the x for x from -87 to 88; below, the smallest power."""
    x = maximum(x, -87.0)
    n = Expr("floor", (x * (1 / LN2) + 0.5,))
    r = x - n * 0.693359375 - n * (LN2 - 0.693359375)  # ln 2 in two parts: the first has few bits, its product is exact
    p = expr(1 / 720)
    for coefficient in (1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0):  # Taylor's series, by Horner's scheme
        p = p * r + coefficient
    return p * Expr("power_of_two", (n,))


# ------------------------------------------------------------------------------------------------------ 6. the launch
# Sizes are arguments, so that one code serves every shape. Rows are independent, so that threads can share them: each
# is called with a range of rows. ctypes lets go of Python's lock during a call, and the results have the same bits
# whichever thread computed them.


def launch(code: Compiled, arrays: Sequence[Array], *, threads: int = 1) -> Array:
    """Run a kernel over arrays of one shape, and return a new one."""
    rows, n = arrays[0].shape
    y = np.empty_like(arrays[0])
    pointers = [array.ctypes.data for array in (*arrays, y)]
    edges = np.linspace(0, rows, threads + 1, dtype=int).tolist()

    def share(number: int) -> None:
        code.function(*pointers, n, edges[number], edges[number + 1])

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(share, range(threads)))
    return y


# ------------------------------------------------------------------------------------------------------- 7. the judge
# Generated code is right if NumPy in float64 says so, for sizes that fill no vector too.

VECTOR = re.compile(r"%[xyz]mm\d+|\bv\d+\.4s\b")
"""A vector register, as x86-64 and aarch64 spell it."""
MULTIPLY = re.compile(r"\s+(v?mulps|vfn?m(add|sub)\d+ps|fmul|fml[as])\s")
"""A multiplication or multiply-add of vectors; that of scalars on x86-64 ends in ss."""


def judged(name: str, code: Compiled, arrays: Sequence[Array], wanted: Callable[..., Array]) -> None:
    y, expected = launch(code, arrays), wanted(*[a.astype(np.float64) for a in arrays])
    error = np.abs(y - expected).max() / np.abs(expected).max()
    assert error < 3e-6, f"{name} is wrong by {error}"
    assert np.array_equal(launch(code, arrays, threads=2), y), "threads change nothing"
    multiplies = sum(bool(MULTIPLY.match(line) and VECTOR.search(line)) for line in code.assembly.splitlines())
    shape = " × ".join(map(str, y.shape))
    print(f"{name:10} {shape:>10}   {error:.0e} from float64   {multiplies:3} vector multiplies and multiply-adds")
    assert multiplies, "LLVM vectorised it"


def scaled(x: Any, z: Any) -> Any:
    """Of expressions or of arrays: the same lines are the kernel's arithmetic and what it is compared with."""
    return x * z + 0.5


def relu(y: Expr) -> Expr:
    return maximum(y, 0.0)


def relu_scaled(x: Array, z: Array) -> Array:
    return np.maximum(scaled(x, z), 0)


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def main() -> None:
    fused = map_kernel("scaled", ("x", "z"), scaled, epilogue=relu)
    print(f"--- x * z + 0.5 with the epilogue relu, as LLVM text\n\n{text_of(fused)}")
    print("\n--- compiled, run and judged\n")
    one, two = compiled(fused), compiled(softmax_kernel())
    rng = np.random.default_rng(0)
    for shape in ((64, 1024), (7, 3), (5, 37)):
        x, z = (rng.normal(size=shape).astype(np.float32) * 4 for _ in range(2))
        judged("scaled", one, [x, z], relu_scaled)
        judged("softmax", two, [x], softmax)
    print("\n--- the first kernel in machine code: one instruction serves several elements\n")
    print("\n".join(line for line in one.assembly.splitlines() if VECTOR.search(line)))


if __name__ == "__main__":
    main()
