"""How an attention is tiled on a CPU: which queries a tile takes, and how its workspace is laid out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from dovetail.codegen.llvm.vector import STORED_BYTES
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, product
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.attention import Attention
from dovetail.kernels.problems.epilogue import RowEpilogue, RowSteps
from dovetail.targets.cpu.attention.functions import key_rows
from dovetail.targets.cpu.attention.policy import ATTENTION, reads_halves
from dovetail.targets.cpu.row_epilogue import WORDS_REGION, words_of


def most_vectors(device: CpuDevice) -> int:
    """Vectors of queries in a tile: a power of two."""
    by_lane = device.has("fma_by_lane")
    return max(ATTENTION.wide, ATTENTION.rows // device.lanes) if by_lane else ATTENTION.wide


def widths(device: CpuDevice, queries: Size) -> list[int]:
    """The numbers of vectors that tiles of n queries take, each a power of two; every one where only a run knows n."""
    most = most_vectors(device)
    widths = [1 << i for i in range(most.bit_length())]
    if not isinstance(queries, int):
        return widths
    whole, left = divmod(queries, most * device.lanes)
    return [w for w in widths if (w == most and whole) or w // 2 * device.lanes < left <= w * device.lanes]


@dataclass(frozen=True, slots=True)
class Attend(Attention):
    """An attention on a device."""

    device: CpuDevice
    epilogue: RowEpilogue | None = None
    """Steps of a region, which run on finished rows."""
    halves: bool = False
    """Whether many queries are multiplied in f16."""
    on_tiles: bool = False
    """Whether many queries are multiplied on tiles of AMX, in bf16."""
    few_halves: bool = False
    """Whether few queries are multiplied in f16."""
    few_block: int = ATTENTION.block
    """Keys whose scores are kept at once with few queries."""
    offsets: tuple[tuple[str, Size], ...] = ()
    """Bytes before the first element that is read of an operand, where it is not where the operand begins."""

    @staticmethod
    def on(device: CpuDevice, of: Attention) -> Attend:
        few_block = ATTENTION.block if device.has("fma_by_lane") else ATTENTION.few_block
        return Attend(**{f.name: getattr(of, f.name) for f in fields(of)}, device=device, few_block=few_block)

    def followed_by(self, steps: RowSteps, epilogue: RowEpilogue) -> Attend:
        """Add an epilogue of rows, whose operands and results are tensors with a row for each query."""
        # Without an axis of heads there is one head.
        heads = (0,) * (len(self.strides["q"]) - len(steps.axes))
        strides = {name: (*heads, *[steps.strides[f"{name}_{a}"] for a in steps.axes]) for name in epilogue.pointers}
        offsets = tuple([(name, steps.strides[f"{name}_offset"]) for name in epilogue.operands])
        return replace(self, strides={**self.strides, **strides}, epilogue=epilogue, offsets=offsets)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The tensors that the kernel reads and writes, those of the epilogue last."""
        return self.pointers if self.epilogue is None else (*self.pointers, *self.epilogue.operands)

    @property
    def rows(self) -> int:
        """Queries of a tile."""
        return self.wide * self.device.lanes

    @property
    def wide(self) -> int:
        """Vectors of queries in a tile: a power of two."""
        return most_vectors(self.device)

    @property
    def narrows(self) -> bool:
        """Whether many queries are multiplied with keys and values in 16 bits."""
        return self.halves or self.on_tiles

    @property
    def blocks(self) -> Size:
        """Tiles of a head."""
        return (self.queries + (self.rows - 1)) // self.rows

    @property
    def is_few(self) -> bool:
        """Whether a tile is a head of keys with all the queries that attend to it."""
        return isinstance(self.queries, int) and self.queries <= ATTENTION.few and self.rotated is None

    @property
    def folded(self) -> int | None:
        """The axis of batches whose members have the same keys and values: a tile of few queries takes several."""
        shared = [i for i in range(len(self.lead)) if self.strides["k"][i] == 0 == self.strides["v"][i]]
        return shared[-1] if shared and self.is_few else None

    @property
    def few_lead(self) -> tuple[Size, ...]:
        """The axes of tiles with few queries: batches, heads of keys, and blocks of members that share keys."""
        if self.folded is None:
            return *self.lead, self.shared
        kept = [size for i, size in enumerate(self.lead) if i != self.folded]
        blocks = (self.lead[self.folded] + (ATTENTION.members - 1)) // ATTENTION.members
        return *kept, self.shared, blocks

    @property
    def few_rows(self) -> int:
        """Rows of queries of a tile, at most, where they are few."""
        rows = self.groups * self.queries
        assert isinstance(rows, int), "few queries are counted"
        return rows if self.folded is None else rows * ATTENTION.members

    @property
    def may_be_few(self) -> bool:
        """Whether only a run knows that queries are few; where each is a key too, few are no work anyway."""
        return not isinstance(self.queries, int) and self.queries != self.keys and self.rotated is None

    @property
    def span(self) -> int:
        """Queries of a head for which keys are rotated once."""
        return ATTENTION.span * self.rows

    @property
    def spans(self) -> Size:
        return (self.queries + (self.span - 1)) // self.span

    @property
    def room(self) -> int:
        """Bytes of workspace in addition to packed and rotated keys."""
        ends = [offsets_of(many_regions(self, self.wide))[1]]
        if self.may_be_few:
            ends.append(offsets_of(few_regions(self, ATTENTION.few))[1])
        return max(ends)

    @property
    def tiles(self) -> Size:
        if self.rotated is not None:
            return product(self.lead) * self.shared * self.spans
        return product(self.few_lead) if self.is_few else product(self.lead) * self.heads * self.blocks

    @property
    def work(self) -> Size:
        """Multiplications of a tile."""
        rows = self.groups * self.span if self.rotated is not None else self.rows
        if self.is_few:
            rows = self.few_rows
        return rows * (self.d + self.dv) * self.keys

    @property
    def bends(self) -> bool:
        """Whether scores are capped or filled."""
        return self.softcap is not None or self.fill is not None

    @property
    def is_glue(self) -> bool:
        """Whether the driver has three widths whose loops call functions and compute little themselves.

        To optimise it took 60 ms of a first call, and gained 1.5 % with 16 queries and 0.4 % with 512.
        """
        bends = self.bends or ("mask" in self.strides and not self.has_key_mask)
        many = len(widths(self.device, self.queries)) > 2 and not self.may_be_few
        return many and not bends and self.rotated is None

    @property
    def has_key_mask(self) -> bool:
        """Whether a mask has one number for each key, which is added."""
        is_added = not self.bends and self.stored == "float"
        return is_added and self.strides.get("mask", ())[-2:] == (0, 4)

    @property
    def key_steps(self) -> tuple[Size, Size]:
        """Strides of keys and of their features; rotated keys are in the workspace already."""
        return (self.strides["k"][-2], self.strides["k"][-1]) if self.rotated is None else (4 * self.d, 4)

    @property
    def packs_keys(self) -> bool:
        """Whether a block of keys is packed: its rows are not contiguous f32."""
        return self.key_steps[1] != 4 or (self.rotated is None and self.stored != "float")

    @property
    def packs_values(self) -> bool:
        return self.strides["v"][-1] != 4 or self.stored != "float"

    def width(self, name: str) -> int:
        """Features of keys or of values."""
        return self.d if name == "k" else self.dv

    def masks_by_row(self) -> tuple[str, ...]:
        """The masks of which each query has a row of its own."""
        return tuple([n for n in ("mask", "keep") if n in self.strides and self.strides[n][-2] != 0])


def padded(size: int, lanes: int) -> int:
    """The size up to whole vectors."""
    return -(-size // lanes) * lanes


def many_regions(a: Attend, wide: int) -> dict[str, int]:
    """The workspace of a tile with `wide` vectors of queries, in bytes."""
    lanes = a.device.lanes
    row = 4 * lanes * wide
    keys = key_rows(a.device, wide)
    regions = {"columns": a.d * row, "accumulators": a.dv * row, "scores": ATTENTION.block * row}
    regions |= {"maxima": row, "sums": row, "rescale": row, "buffer": 4 * lanes * lanes}
    if a.has_key_mask:
        regions["mask_left"] = 4 * keys
    regions["key_rows"] = (ATTENTION.block if a.packs_keys else keys) * 4 * a.d
    if a.packs_values:
        regions["value_rows"] = ATTENTION.block * 4 * a.dv
    if a.narrows:
        regions |= {"halves": a.d * row // 2, "key_rows": ATTENTION.block * 2 * a.d}
        regions["value_rows"] = ATTENTION.block * 2 * a.dv
    if a.on_tiles:
        regions["pairs"] = ATTENTION.block * row // 2
    regions |= {name: ATTENTION.block * row for name in a.masks_by_row()}
    regions |= row_regions(a, lanes * wide)
    if a.rotated is not None:
        regions["query_rows"] = a.rows * 4 * a.d
    return regions


def few_regions(a: Attend, rows: int) -> dict[str, int]:
    """The workspace of a tile with few queries, in bytes."""
    lanes = a.device.lanes
    d, dv = padded(a.d, lanes), padded(a.dv, lanes)
    regions = {"queries": rows * 4 * d, "scores": rows * 4 * ATTENTION.few_keys, "accumulators": rows * 4 * dv}
    regions |= {"state": rows * 8, "rescale": rows * 4}
    regions["left"] = lanes * 4 * a.d
    if a.few_halves:
        regions["halves"] = rows * 2 * a.d
    regions |= {name: ATTENTION.block * 4 * width for name, width in (("k", a.d), ("v", a.dv)) if packs(a, name)}
    return regions | row_regions(a, 1)


def row_regions(a: Attend, rows: int) -> dict[str, int]:
    """The words of an epilogue, and the finished rows that it reads."""
    return (
        {}
        if a.epilogue is None
        else {WORDS_REGION: words_of(a.epilogue), "finished": rows * 4 * padded(a.dv, a.device.lanes)}
    )


def packs(a: Attend, name: str) -> bool:
    """Whether a block of keys or values is packed for few queries: not where rows are dense, of f32 or whole f16."""
    stored = a.cached[name]
    if a.strides[name][-1] != STORED_BYTES[stored]:
        return True
    return stored != "float" and not (stored == "half" and reads_halves(a) and a.device.has("f16_conversion"))


def offsets_of(regions: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Offsets of regions after the head, each at a cache line, and the end."""
    offsets: dict[str, int] = {}
    end = ATTENTION.head_bytes
    for name, size in regions.items():
        offsets[name] = end
        end += -(-size // 64) * 64
    return offsets, end
