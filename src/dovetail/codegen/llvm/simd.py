"""CpuDevice of f32 in LLVM's text: what templates write their hot loops with. The machine says how wide they are."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from dovetail.codegen.llvm.casts import of_bf16, to_bf16
from dovetail.codegen.llvm.scalar import literal
from dovetail.ir.dtype import f32

_IN_PLACE = 16
"""Lanes of vectors whose multiplications spread a number in memory over all lanes: those of AVX-512."""
STORED = {"float": 4, "half": 2, "bfloat": 2, "i8": 1}
"""Types of elements that are computed with as f32, and their bytes."""


class Text:
    """One function while it is written: instructions, scalars that change, and what is called."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.slots: list[str] = []
        self.used: dict[str, None] = {}
        self.block = "entry"
        self._count = 0

    def __call__(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def let(self, instruction: str) -> str:
        name = self.fresh("%t")
        self.lines.append(f"  {name} = {instruction}")
        return name

    def use(self, function: str) -> None:
        self.used[function] = None

    def fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    def slot(self, kind: str) -> str:
        """Memory for a scalar that changes; LLVM turns it into a register."""
        name = self.fresh("%slot")
        self.slots.append(f"  {name} = alloca {kind}")
        return name

    @contextmanager
    def loop(self, first: str, extent: str, metadata: str = "", step: str = "1") -> Generator[str]:
        """Instructions for every `step`-th i64 from `first` to before `extent`; gives the variable."""
        head, body, after = self.fresh("head"), self.fresh("body"), self.fresh("after")
        before = self.block
        variable, following = self.fresh("%i"), self.fresh("%next")
        some = self.let(f"icmp slt i64 {first}, {extent}")
        self(f"br i1 {some}, label %{head}, label %{after}")
        self.label(head)
        at = len(self.lines)
        self(f"br label %{body}")
        self.label(body)
        yield variable
        self.lines.insert(at, f"  {variable} = phi i64 [ {first}, %{before} ], [ {following}, %{self.block} ]")
        self(f"{following} = add nuw nsw i64 {variable}, {step}")
        more = self.let(f"icmp slt i64 {following}, {extent}")
        self(f"br i1 {more}, label %{head}, label %{after}{metadata}")
        self.label(after)

    @contextmanager
    def when(self, condition: str) -> Generator[None]:
        """Instructions that run where an i1 holds."""
        inside, after = self.fresh("then"), self.fresh("after")
        self(f"br i1 {condition}, label %{inside}, label %{after}")
        self.label(inside)
        yield
        self(f"br label %{after}")
        self.label(after)


class VectorText(Text):
    """One function while it is written, with arithmetic on vectors of f32. Constants are operands like any other."""

    def __init__(self, lanes: int) -> None:
        super().__init__()
        self.lanes = lanes
        self.kind = f"<{lanes} x float>"
        self.whole = f"<{lanes} x i32>"
        self.truth = f"<{lanes} x i1>"

    def number(self, x: float) -> str:
        """The same number in every lane."""
        return f"splat (float {literal(x, f32)})"

    def intrinsic(self, name: str, *operands: str) -> str:
        """An intrinsic of LLVM on vectors, such as fma."""
        full = f"llvm.{name}.v{self.lanes}f32"
        self.use(f"declare {self.kind} @{full}({', '.join([self.kind] * len(operands))})")
        return self.let(f"call {self.kind} @{full}({', '.join(f'{self.kind} {x}' for x in operands)})")

    def fma(self, x: str, y: str, z: str) -> str:
        return self.intrinsic("fma", x, y, z)

    @property
    def spreads_in_place(self) -> bool:
        """Whether a multiplication spreads a number over all lanes as it loads it."""
        return self.lanes == _IN_PLACE

    def fma_spread(self, x: str, pointer: str, z: str) -> str:
        """x times the number at a pointer, plus z, in one instruction, where there is such a one.

        LLVM would load a number once that is used several times, and so take an instruction more.
        """
        multiply = 'asm "vfmadd231ps $2{1to16}, $1, $0", "=v,v,*m,0"'
        given = f"{self.kind} {x}, ptr elementtype(float) {pointer}, {self.kind} {z}"
        return self.let(f"call {self.kind} {multiply}({given})")

    def fixed(self, pointer: str) -> str:
        """A pointer that comes out of nothing, so that it is not made of a base and an index again."""
        return self.let(f'call ptr asm "", "=r,0"(ptr {pointer})')

    def add(self, x: str, y: str) -> str:
        return self.let(f"fadd {self.kind} {x}, {y}")

    def sub(self, x: str, y: str) -> str:
        return self.let(f"fsub {self.kind} {x}, {y}")

    def mul(self, x: str, y: str) -> str:
        return self.let(f"fmul {self.kind} {x}, {y}")

    def div(self, x: str, y: str) -> str:
        return self.let(f"fdiv {self.kind} {x}, {y}")

    def compare(self, how: str, x: str, y: str) -> str:
        return self.let(f"fcmp {how} {self.kind} {x}, {y}")

    def select(self, where: str, x: str, y: str) -> str:
        return self.let(f"select {self.truth} {where}, {self.kind} {x}, {self.kind} {y}")

    def larger(self, x: str, y: str) -> str:
        """The larger of two; y where x is NaN."""
        return self.select(self.compare("ogt", x, y), x, y)

    def at(self, pointer: str, offset: int | str) -> str:
        """So many bytes behind a pointer."""
        return pointer if offset in (0, "0") else self.let(f"getelementptr i8, ptr {pointer}, i64 {offset}")

    def load(self, pointer: str, align: int = 4) -> str:
        return self.let(f"load {self.kind}, ptr {pointer}, align {align}")

    def store(self, x: str, pointer: str, align: int = 4) -> None:
        self(f"store {self.kind} {x}, ptr {pointer}, align {align}")

    def first_lanes(self, count: int) -> str:
        """Which lanes are before a lane."""
        return f"<{', '.join('i1 true' if i < count else 'i1 false' for i in range(self.lanes))}>"

    def below(self, count: str) -> str:
        """Which lanes are before a lane that is known when it runs, an i64."""
        return self.let(f"icmp slt <{self.lanes} x i64> {self.counted()}, {self.spread_long(count)}")

    def counted(self) -> str:
        """The number of each lane, as i64."""
        return f"<{', '.join(f'i64 {i}' for i in range(self.lanes))}>"

    def spread_long(self, x: str) -> str:
        """An i64 in every lane."""
        kind = f"<{self.lanes} x i64>"
        one = self.let(f"insertelement {kind} poison, i64 {x}, i64 0")
        return self.let(f"shufflevector {kind} {one}, {kind} poison, {self.whole} zeroinitializer")

    def load_first(self, pointer: str, count: int) -> str:
        """As many elements, and zeros behind them; nothing behind them is read."""
        full = f"llvm.masked.load.v{self.lanes}f32.p0"
        self.use(f"declare {self.kind} @{full}(ptr, i32, {self.truth}, {self.kind})")
        where = f"{self.truth} {self.first_lanes(count)}"
        return self.let(f"call {self.kind} @{full}(ptr {pointer}, i32 4, {where}, {self.kind} zeroinitializer)")

    def across(self, how: str, x: str) -> str:
        """One number from all lanes, such as by fmax."""
        full = f"llvm.vector.reduce.{how}.v{self.lanes}f32"
        self.use(f"declare float @{full}({self.kind})")
        return self.let(f"call float @{full}({self.kind} {x})")

    def summed_up(self, x: str) -> str:
        """The sum of all lanes: halves are added, then their halves."""
        width = self.lanes // 2
        while width:
            lanes = [i + width if i < width else i for i in range(self.lanes)]
            x = self.add(x, self.shuffle(x, "poison", lanes))
            width //= 2
        return self.let(f"extractelement {self.kind} {x}, i64 0")

    def summed(self, rows: Sequence[str]) -> str:
        """The sums of as many vectors as there are lanes, one in each lane: a transposition that adds as it goes."""
        found, width = list(rows), self.lanes // 2
        while width:
            low = [i if i % (2 * width) < width else i - width + self.lanes for i in range(self.lanes)]
            high = [i + width if i % (2 * width) < width else i + self.lanes for i in range(self.lanes)]
            half = len(found) // 2
            pairs = zip(found[:half], found[half:], strict=True)
            found = [self.add(self.shuffle(x, y, low), self.shuffle(x, y, high)) for x, y in pairs]
            width //= 2
        return found[0]

    def spread(self, scalar: str) -> str:
        """A scalar in every lane."""
        one = self.let(f"insertelement {self.kind} poison, float {scalar}, i64 0")
        return self.shuffle(one, "poison", [0] * self.lanes)

    def load_as(self, pointer: str, stored: str) -> str:
        """As many elements of another type as f32; bytes are whole numbers."""
        if stored == "float":
            return self.load(pointer)
        return self.widened(self.let(f"load {self.raw(stored)}, ptr {pointer}, align {STORED[stored]}"), stored)

    def raw(self, stored: str) -> str:
        """A vector of elements of another type, as it is loaded and stored: no machine has bfloat everywhere."""
        return f"<{self.lanes} x {'i16' if stored == 'bfloat' else stored}>"

    def widened(self, x: str, stored: str) -> str:
        """A vector of another type, as it is loaded, as f32; bytes are whole numbers."""
        if stored == "float":
            return x
        if stored == "bfloat":
            return of_bf16(self, x, self.lanes)
        return self.let(f"{'uitofp' if stored == 'i8' else 'fpext'} {self.raw(stored)} {x} to {self.kind}")

    def store_as(self, x: str, pointer: str, stored: str) -> None:
        """Write a vector in another type of floats."""
        if stored == "float":
            self.store(x, pointer)
            return
        kind = self.raw(stored)
        narrow = to_bf16(self, x, self.lanes) if stored == "bfloat" else self.let(f"fptrunc {self.kind} {x} to {kind}")
        self(f"store {kind} {narrow}, ptr {pointer}, align {STORED[stored]}")

    def number_at(self, pointer: str, stored: str) -> str:
        """One element of another type as f32."""
        if stored == "bfloat":
            return of_bf16(self, self.let(f"load i16, ptr {pointer}, align 2"))
        found = self.let(f"load {stored}, ptr {pointer}, align {STORED[stored]}")
        if stored == "float":
            return found
        return self.let(f"{'uitofp' if stored == 'i8' else 'fpext'} {stored} {found} to float")

    def put_number(self, x: str, pointer: str, stored: str) -> None:
        """Write one f32 in another type of floats."""
        if stored == "bfloat":
            self(f"store i16 {to_bf16(self, x)}, ptr {pointer}, align 2")
            return
        found = x if stored == "float" else self.let(f"fptrunc float {x} to {stored}")
        self(f"store {stored} {found}, ptr {pointer}, align {STORED[stored]}")

    def spread_from(self, pointer: str) -> str:
        """The number that lies at a pointer, in every lane."""
        return self.spread(self.let(f"load float, ptr {pointer}, align 4"))

    def shuffle(self, x: str, y: str, lanes: Sequence[int]) -> str:
        """Lanes of x and y, counted through both."""
        order = ", ".join(f"i32 {i}" for i in lanes)
        return self.let(f"shufflevector {self.kind} {x}, {self.kind} {y}, <{len(lanes)} x i32> <{order}>")

    def lane(self, x: str, lane: int) -> str:
        """One lane of a vector in every lane."""
        return self.shuffle(x, "poison", [lane] * self.lanes)

    def transposed(self, rows: Sequence[str]) -> list[str]:
        """A square of as many vectors as lanes, columns for rows: halves are swapped, then their halves."""
        found, width = list(rows), self.lanes // 2
        while width:
            low = [i if i % (2 * width) < width else i - width + self.lanes for i in range(self.lanes)]
            high = [i + width if i % (2 * width) < width else i + self.lanes for i in range(self.lanes)]
            for i in range(self.lanes):
                if i % (2 * width) < width:
                    x, y = found[i], found[i + width]
                    found[i], found[i + width] = self.shuffle(x, y, low), self.shuffle(x, y, high)
            width //= 2
        return found

    def variable(self, start: str) -> str:
        """A vector that changes: memory that LLVM turns into a register."""
        slot = self.slot(self.kind)
        self.store(start, slot, 4 * self.lanes)
        return slot

    def get(self, slot: str) -> str:
        return self.load(slot, 4 * self.lanes)

    def put(self, x: str, slot: str) -> None:
        self.store(x, slot, 4 * self.lanes)

    @contextmanager
    def carried(
        self, first: str, extent: str, starts: Sequence[str], pointers: Sequence[str] = ()
    ) -> Generator[tuple[str, list[str]]]:
        """A loop that hands vectors and then pointers from round to round. Gives the variable and them, which the body
        replaces; behind the loop they are what the last round left."""
        kinds = [*[self.kind] * len(starts), *["ptr"] * len(pointers)]
        starts = [*starts, *pointers]
        head, after, before = self.fresh("head"), self.fresh("after"), self.block
        variable, following = self.fresh("%i"), self.fresh("%next")
        some = self.let(f"icmp slt i64 {first}, {extent}")
        self(f"br i1 {some}, label %{head}, label %{after}")
        self.label(head)
        place = len(self.lines)
        names = [self.fresh("%held") for _ in starts]
        found = list(names)
        yield variable, found
        rounds = [f"  {variable} = phi i64 [ {first}, %{before} ], [ {following}, %{self.block} ]"]
        for kind, name, start, last in zip(kinds, names, starts, found, strict=True):
            rounds.append(f"  {name} = phi {kind} [ {start}, %{before} ], [ {last}, %{self.block} ]")
        self.lines[place:place] = rounds
        self(f"{following} = add nuw nsw i64 {variable}, 1")
        more = self.let(f"icmp slt i64 {following}, {extent}")
        source = self.block
        self(f"br i1 {more}, label %{head}, label %{after}")
        self.label(after)
        for i, (kind, start, last) in enumerate(zip(kinds, starts, list(found), strict=True)):
            found[i] = self.let(f"phi {kind} [ {start}, %{before} ], [ {last}, %{source} ]")

    def prefetch(self, pointer: str, *, to_write: bool = False) -> None:
        """Ask for the line that a pointer lies in."""
        self.use("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 {int(to_write)}, i32 3, i32 1)")

    @contextmanager
    def steps(self, first: str, end: str, step: int) -> Generator[str]:
        """Instructions for first, first + step, ... to before `end`, which may be overshot."""
        length = self.let(f"sub i64 {end}, {first}")
        count = self.let(f"sdiv i64 {self.let(f'add i64 {length}, {step - 1}')}, {step}")
        with self.loop("0", count) as i:
            yield self.let(f"add i64 {first}, {self.let(f'mul i64 {i}, {step}')}")

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """Horner's scheme, the highest power first."""
        found = self.number(coefficients[0])
        for c in coefficients[1:]:
            found = self.fma(found, x, self.number(c))
        return found

    def clamp(self, x: str, low: float, high: float) -> str:
        """NaN stays."""
        x = self.select(self.compare("olt", x, self.number(low)), self.number(low), x)
        return self.select(self.compare("ogt", x, self.number(high)), self.number(high), x)

    def exp_of_negative(self, x: str) -> str:
        """exp(x) for x <= 0, 0 where it is below the smallest normal number; NaN stays."""
        away = self.compare("olt", x, self.number(-87.0))
        moved = self.fma(x, self.number(LOG2_E), self.number(_SHIFT))
        n = self.sub(moved, self.number(_SHIFT))
        r = self.fma(x, self.number(LOG2_E), self.let(f"fneg {self.kind} {n}"))
        found = self.mul(self.polynomial(r, _TWO_TO), self.power_of(moved))
        return self.select(away, self.number(0.0), found)

    def exp2_of_negative(self, x: str) -> str:
        """2**x for x <= 0, 0 where it is below the smallest normal number; NaN stays."""
        away = self.compare("olt", x, self.number(-126.0))
        if self.spreads_in_place:
            # What is left above the whole number below, which the instruction behind takes from x by itself.
            r = self.let(f'call {self.kind} asm "vreduceps $$1, $1, $0", "=v,v"({self.kind} {x})')
            p = self.polynomial(r, _TWO_TO_PART)
            scale = "llvm.x86.avx512.mask.scalef.ps.512"
            self.use(f"declare {self.kind} @{scale}({self.kind}, {self.kind}, {self.kind}, i16, i32)")
            given = ", ".join(f"{self.kind} {v}" for v in (p, x, "zeroinitializer"))
            found = self.let(f"call {self.kind} @{scale}({given}, i16 -1, i32 4)")
        else:
            moved = self.add(x, self.number(_SHIFT))
            p = self.polynomial(self.sub(x, self.sub(moved, self.number(_SHIFT))), _TWO_TO)
            found = self.mul(p, self.power_of(moved))
        return self.select(away, self.number(0.0), found)

    def power_of(self, moved: str) -> str:
        """Two to the power of the whole number that a sum with `_SHIFT` has in its lowest bits."""
        bits = self.let(f"bitcast {self.kind} {moved} to {self.whole}")
        power = self.let(f"shl {self.whole} {bits}, splat (i32 23)")
        return self.let(f"bitcast {self.whole} {power} to {self.kind}")

    def tanh(self, x: str) -> str:
        """x times a quotient of polynomials in its square."""
        x = self.clamp(x, -7.90531110763549805, 7.90531110763549805)
        square = self.mul(x, x)
        return self.div(self.mul(x, self.polynomial(square, _TANH_ABOVE)), self.polynomial(square, _TANH_BELOW))


LOG2_E = 1.44269504088896341
_SHIFT = 12582912.0 + 127.0
"""A sum with it has the whole number in its lowest bits, moved by 127: shifted, it is the power of two."""
_TWO_TO = (
    1.326472614891827e-3,
    9.671512991189957e-3,
    5.550733581185341e-2,
    2.4022242426872253e-1,
    6.931470036506653e-1,
    1.0,
)
"""2**r on [-1/2, 1/2], within 1e-7."""
_TWO_TO_PART = (
    1.8671300495043397e-3,
    9.017030708491802e-3,
    5.579991266131401e-2,
    2.4016444385051727e-1,
    6.931512951850891e-1,
    1.0,
)
"""2**r on [0, 1], within 1e-7."""
_TANH_ABOVE = (
    -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08, 1.48572235717979e-05,
    6.37261928875436e-04, 4.89352455891786e-03,
)  # fmt: skip
_TANH_BELOW = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
