"""Words that say which launch wrote them: stores, and waits for those of other blocks, as PTX.

Each word is written by one relaxed store and read by one relaxed load of its size, which are atomic at the scope of the
device. A reader that finds the number of this launch has what the writer stored in the same word.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple, Protocol

from dovetail.codegen.llvm import scalar
from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.handles import I64
from dovetail.codegen.llvm.nvptx import nvvm
from dovetail.errors import GraphError
from dovetail.ir.dtype import DType
from dovetail.kernels.loops.ir import Expr, Kernel, Receive, Tensor
from dovetail.kernels.loops.persistent import stuck
from dovetail.kernels.loops.persistent.words import SIZES, VECTOR

STAMP = "%stamp"
"""The number of this launch, which is not 0, in the upper half of an i32, among the arguments of a pass."""
STAMPS = (1 << 16) - 1
"""Launches until a number comes again: words of two bytes have two more for it."""
_GLOBAL, _SHARED = f"ptr addrspace({nvvm.GLOBAL})", f"ptr addrspace({nvvm.SHARED})"
MOST_POLLS = 1 << 24
"""Loads of what another block has not written yet, after which a kernel stops with a trap: some five seconds, where
waits are microseconds. Only a part that failed, or blocks that do not run at the same time, are that late."""
_STOP = "\\0A".join(
    (
        "{",
        ".reg .b64 report, word, number;",
        ".reg .b32 block;",
        ".reg .pred none;",
        f"ld.relaxed.gpu.global.u64 report, [$0+{stuck.PLACE}];",
        "mov.u32 block, %ctaid.x;",
        "cvt.u64.u32 word, block;",
        f"shl.b64 number, $1, {stuck.PASS};",
        "or.b64 word, word, number;",
        "or.b64 word, word, $2;",
        "setp.eq.u64 none, report, 0;",
        "@!none st.relaxed.sys.global.u64 [report], word;",
        "fence.sc.sys;",
        "trap;",
        "}",
    )
)
"""The word is on its way to the host before the context of the device is lost."""


class _Vector(NamedTuple):
    """A vector of words: how PTX names it, how many words, of which type, in which register."""

    name: str
    words: int
    kind: str
    register: str


_WORDS = {2: _Vector("v4.b32", 4, "i32", "r"), 4: _Vector("v2.b64", 2, "i64", "l")}
"""By the bytes of an element."""
_ELEMENT = {2: (1 << 16) - 1, 4: 0}
"""The bits of an element among those that are compared."""


class Share(NamedTuple):
    """What one thread copies: vectors of 16 bytes in stamped memory, and where their elements go."""

    source: str
    target: str
    size: int
    """Bytes of an element."""


class Sender(Protocol):
    """What prints the statements of a kernel for threads of a GPU."""

    text: Builder
    kernel: Kernel


def send(printer: Sender, address: str, value: str, dtype: DType) -> None:
    """Store an element with the number of this launch."""
    t, size = printer.text, dtype.itemsize
    if size not in SIZES:
        raise GraphError(f"blocks send {dtype.name} to each other", hint="send elements of two or four bytes")
    kind, bits = scalar.spelled(dtype), 8 * size
    raw = value if kind == f"i{bits}" else t.let(f"bitcast {kind} {value} to i{bits}")
    whole = f"i{2 * bits}"
    high = STAMP if size == 2 else t.let(f"shl i64 {t.let(f'zext i32 {STAMP} to i64')}, {bits}")
    word = t.let(f"or {whole} {high}, {t.let(f'zext i{bits} {raw} to {whole}')}")
    register = "r" if size == 2 else "l"
    text = _with_policy(printer.kernel, f"st.relaxed.gpu.global%hint.b{2 * bits} [$0], $1%policy;")
    t.emit(nvvm.assembly(text, f"l,{register},~{{memory}}", f"{_GLOBAL} {address}, {whole} {word}"))


class Receiver(Protocol):
    """What prints the statements of a kernel for threads of a GPU."""

    text: Builder
    kernel: Kernel
    threads: int
    indices: dict[str, str]
    names: dict[str, str]
    pointers: dict[str, str]
    spaces: dict[str, str]
    since: str
    """The cycle in which the level before ended, as LLVM names it; empty where no block pauses."""
    part: int
    """How many parts of the pass are printed."""

    def address(self, tensor: Tensor, at: Sequence[Expr]) -> str: ...


def receive(printer: Receiver, statement: Receive) -> None:
    """Threads share the vectors of each receipt; the last ones load again what another has."""
    t, shares = printer.text, list[Share]()
    for receipt in statement.receipts:
        size = receipt.source.dtype.itemsize
        vectors = 2 * size * receipt.count // VECTOR
        first = printer.address(receipt.source, receipt.source_at)
        room = printer.pointers[receipt.target.pointer]
        for turn in range(-(-vectors // printer.threads)):
            own = t.add(I64(printer.indices["thread"]), turn * printer.threads)
            if (turn + 1) * printer.threads > vectors:
                own = t.smin(own, vectors - 1)
            source = t.let(f"getelementptr [16 x i8], {printer.spaces[receipt.source.pointer]} {first}, i64 {own}")
            target = t.let(f"getelementptr [8 x i8], {printer.spaces[receipt.target.pointer]} {room}, i64 {own}")
            shares.append(Share(source, target, size))
    if statement.pause and printer.since:
        _pause(t, printer.since, statement.pause)
    _await(printer, shares)


def now(t: Builder) -> str:
    """The lower half of the cycles of a multiprocessor."""
    return t.let(nvvm.assembly("mov.u32 $0, %clock;", "=r,~{memory}", "", "i32"))


def _pause(t: Builder, since: str, cycles: int) -> None:
    """Wait until some cycles have gone by."""
    lines = ("{", ".reg .pred early;", ".reg .b32 gone;", "AGAIN:", "mov.u32 gone, %clock;", "sub.u32 gone, gone, $0;")
    more = ("setp.lt.u32 early, gone, $1;", "@early bra AGAIN;", "}")
    t.emit(nvvm.assembly("\\0A".join((*lines, *more)), "r,n,~{memory}", f"i32 {since}, i32 {cycles}"))


def stop(printer: Receiver, *, at_barrier: bool = False) -> None:
    """Write where a thread waited in vain, and stop the kernel with a trap."""
    t, counter = printer.text, f"{_GLOBAL} {printer.pointers[printer.kernel.counter]}"
    same = stuck.word(printer.part, at_barrier=at_barrier)
    t.emit(nvvm.assembly(_STOP, "l,l,n,~{memory}", f"{counter}, i64 {printer.names['pass']}, i64 {same}"))


def _await(printer: Receiver, shares: Sequence[Share]) -> None:
    """Load all vectors, and those again that miss a word of this launch until a warp has all; then store the elements.

    Lanes leave the loop together: a warp whose lanes leave one by one would run what follows for each of them.
    """
    t = printer.text
    again, done, late_block, never = t.fresh("receive"), t.fresh("received"), t.fresh("waiting"), t.fresh("stuck")
    rooms = [t.alloca("[4 x i32]" if share.size == 2 else "[2 x i64]") for share in shares]
    polls = t.alloca("i32")
    t.emit(f"store i32 0, ptr {polls}")
    for share, room in zip(shares, rooms, strict=True):
        _keep(t, room, share, _loaded(printer, share))
    t.emit(f"br label %{again}")
    t.label(again)
    loaded = [_kept(t, room, share) for share, room in zip(shares, rooms, strict=True)]
    missing = [_missing(t, share, words) for share, words in zip(shares, loaded, strict=True)]
    late = _is_late(t, shares, missing)
    t.use(f"declare i1 @{nvvm.ANY}(i32, i1)")
    some = t.let(f"call i1 @{nvvm.ANY}(i32 -1, i1 {late})")
    t.emit(f"br i1 {some}, label %{late_block}, label %{done}")
    # Polls are counted after those that found something missing: what is there in time costs nothing more.
    t.label(late_block)
    for share, room, words, gone in zip(shares, rooms, loaded, missing, strict=True):
        _keep(t, room, share, _loaded(printer, share, words, gone))
    more = t.let(f"add i32 {t.let(f'load i32, ptr {polls}')}, 1")
    t.emit(f"store i32 {more}, ptr {polls}")
    t.emit(f"br i1 {t.let(f'icmp ugt i32 {more}, {MOST_POLLS}')}, label %{never}, label %{again}")
    t.label(never)
    stop(printer)
    t.emit(f"br label %{done}")
    t.label(done)
    for share, words in zip(shares, loaded, strict=True):
        if share.size == 2:
            halves = [t.let(f"trunc i32 {word} to i16") for word in words]
            _stored(t, share.target, halves, "i16")
        else:
            _stored(t, share.target, [t.let(f"trunc i64 {word} to i32") for word in words], "i32")


def _is_late(t: Builder, shares: Sequence[Share], missing: Sequence[str]) -> str:
    """Whether any word is missing: one comparison for all words of a size."""
    late: list[str] = []
    for size in dict.fromkeys([share.size for share in shares]):
        own = [bits for share, bits in zip(shares, missing, strict=True) if share.size == size]
        whole = reduce(lambda x, y: t.let(f"or i32 {x}, {y}"), own)
        late.append(t.let(f"icmp ugt i32 {whole}, {_ELEMENT[size]}"))
    return reduce(lambda x, y: t.let(f"or i1 {x}, {y}"), late)


def _missing(t: Builder, share: Share, words: Sequence[str]) -> str:
    """More than the bits of an element where a word has not the number of this launch."""
    if share.size == 2:
        # Elements stay below the numbers: instructions for three operands take two words each.
        wrong = [t.let(f"xor i32 {word}, {STAMP}") for word in words]
    else:
        stamps = [t.let(f"trunc i64 {t.let(f'lshr i64 {word}, 32')} to i32") for word in words]
        wrong = [t.let(f"xor i32 {stamp}, {STAMP}") for stamp in stamps]
    return reduce(lambda x, y: t.let(f"or i32 {x}, {y}"), wrong)


def _kept(t: Builder, room: str, share: Share) -> list[str]:
    """The words that a thread has loaded."""
    kind = _WORDS[share.size].kind
    places = [t.let(f"getelementptr {kind}, ptr {room}, i64 {i}") for i in range(_WORDS[share.size].words)]
    return [t.let(f"load {kind}, ptr {place}") for place in places]


def _keep(t: Builder, room: str, share: Share, words: Sequence[str]) -> None:
    kind = _WORDS[share.size].kind
    for i, word in enumerate(words):
        t.emit(f"store {kind} {word}, ptr {t.let(f'getelementptr {kind}, ptr {room}, i64 {i}')}")


def _with_policy(kernel: Kernel, access: str) -> str:
    """An access to words, with `%hint` and `%policy` where those of L2 are. They take no instruction: the assembler has
    them in the descriptor of the access."""
    if not kernel.evict_last:
        return access.replace("%hint", "").replace("%policy", "")
    hinted = access.replace("%hint", ".L2::cache_hint").replace("%policy", ", policy")
    policy = "createpolicy.fractional.L2::evict_last.b64 policy, 1.0;"
    return "\\0A".join(("{", ".reg .b64 policy;", policy, hinted, "}"))


def _loaded(printer: Sender, share: Share, before: Sequence[str] = (), missing: str = "") -> list[str]:
    """A vector of words; one that misses none stays as it was before."""
    t = printer.text
    vector, count, kind, register = _WORDS[share.size]
    names = [f"${i}" for i in range(count)]
    result = "{ " + ", ".join([kind] * count) + " }"
    load = f"ld.relaxed.gpu.global%hint.{vector} {{{', '.join(names)}}}, [${count}]%policy;"
    operands, constraints = [f"{_GLOBAL} {share.source}"], [f"={register}"] * count + ["l"]
    if before:
        load = f"{{ .reg .pred late; setp.gt.u32 late, ${count + 1}, {_ELEMENT[share.size]}; @late {load} }}"
        operands += [f"i32 {missing}", *(f"{kind} {word}" for word in before)]
        constraints += ["r", *(str(i) for i in range(count))]
    text = nvvm.assembly(
        _with_policy(printer.kernel, load.replace("{ .reg", "{\\0A.reg").replace("; ", ";\\0A")),
        ",".join([*constraints, "~{memory}"]),
        ", ".join(operands),
        result,
    )
    loaded = t.let(text)
    return [t.let(f"extractvalue {result} {loaded}, {i}") for i in range(count)]


def _stored(t: Builder, target: str, elements: Sequence[str], kind: str) -> None:
    """Store elements as one vector of 8 bytes."""
    whole = f"<{len(elements)} x {kind}>"
    vector = "poison"
    for index, element in enumerate(elements):
        vector = t.let(f"insertelement {whole} {vector}, {kind} {element}, i32 {index}")
    t.emit(f"store {whole} {vector}, {_SHARED} {target}, align 8")


def stamp(t: Builder, launches: I64 | str) -> str:
    """The number of a launch in a word: it is not 0, which memory starts with."""
    number = t.let(f"urem i64 {launches}, {STAMPS}")
    counted = t.let(f"trunc i64 {t.let(f'add i64 {number}, 1')} to i32")
    return t.let(f"shl i32 {counted}, 16")


__all__ = ["MOST_POLLS", "STAMP", "receive", "send", "stamp", "stop"]
