"""Tile shapes of attention. Registers and lanes come from the device; these numbers were measured."""

from __future__ import annotations

from dovetail.dataclass import dataclass
from dovetail.kernels.problems.attention import Attention


@dataclass(frozen=True, slots=True)
class AttentionPolicy:
    """How queries, keys and features are cut."""

    depth: int = 4
    """Features of one iteration along them, at least."""
    depth_broadcast: int = 8
    """That number where keys are embedded-broadcast operands, which take few registers."""
    most_pointers: int = 8
    """Keys that have pointers of their own: there are 16 general registers for them and all else."""
    keys: int = 4
    """Keys whose values one iteration takes, with embedded broadcasts."""
    block: int = 64
    """Keys whose scores are kept at once: with their values they fit L1."""
    wide: int = 2
    """Vectors of queries in a tile, at least."""
    rows: int = 16
    """Queries of a tile with FMA by lane, at least: its vectors are narrow, and keys are read once for a tile."""
    span: int = 4
    """Blocks of queries for which keys are rotated once."""
    few: int = 4
    """Queries of a head up to which lanes run along features."""
    few_keys: int = 256
    """Keys whose scores the workspace of few queries has room for. With FMA by lane this is the block of fast mode:
    memory is read in longer stretches. Other blocks of few queries have as many keys as those of many there."""
    few_block: int = 16
    """The block of few queries without FMA by lane: all lines of a block of values are prefetched at once."""
    few_last: int = 4
    """The last keys that few queries see are read in such groups, not in whole vectors."""
    whole: int = 16
    """Keys and values of f16 are read as they are where features are multiples of this: whole vectors anywhere."""
    members: int = 16
    """Members of a batch that share keys whose few queries are done together, while these keys are in L1."""
    sum_keys: int = 4
    """Keys whose gradients are accumulated at once, with as many vectors of features as half of the registers hold."""
    head_bytes: int = 64
    """Bytes at the start of a workspace: the head whose keys and values are packed there, and how many of its rows."""
    most_unrolled: int = 8
    """Vectors of a row that are unrolled; longer rows go through a loop."""
    packed_bytes: int = 1 << 20
    """Bytes of keys and values that are packed; later rows are read where they are."""
    far_bytes: int = 256 << 10
    """Bytes from the first to the last key from which rows are packed with FMA by lane: an L1 TLB has some 48 pages."""
    far_queries: int = 128
    """Queries from which that pays."""
    set_period: int = 4096
    """Lines this many bytes apart map to one set of L1, everywhere."""
    associativity: int = 8
    """Lines of one set of L1, at least."""


ATTENTION = AttentionPolicy()


def reads_halves(of: Attention) -> bool:
    """Whether keys and values of f16 are read as they are: few queries read each once."""
    is_few = isinstance(of.queries, int) and of.queries <= ATTENTION.few and of.rotated is None
    return is_few and of.d % ATTENTION.whole == 0 and of.dv % ATTENTION.whole == 0


__all__ = ["ATTENTION", "AttentionPolicy", "reads_halves"]
