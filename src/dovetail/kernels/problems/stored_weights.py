"""Weights of a contraction that kernels read in their stored format: what right operands are decoded from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dovetail import ops
from dovetail.declare.cost import kernel_cost
from dovetail.declare.machine import Cost
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused
from dovetail.kernels.problems.contraction import Contraction


def find_stored(
    of: Contraction, is_stored: Callable[[Value], bool], otherwise: Callable[[Value], Refused]
) -> list[list[Value]] | Refused:
    """For each right operand the matrices [columns, k] with its columns, one after the other; [group, columns, k] where
    groups of rows have matrices of their own.

    `is_stored` says which matrices these are; `otherwise` refuses an operand that has others.
    """
    stored: list[list[Value]] = []
    for right in of.rights:
        is_transposed = swaps_columns(right) and right.operands[0] in of.body.arguments
        if right not in of.body.arguments and not is_transposed:
            return Refused("weights_are_an_operand", "a view of an operand")
        weights = of.operand(right)
        rank = 2 if of.ends is None else 3
        parts = _rows(weights, is_stored, is_transposed=is_transposed, rank=rank)
        if parts is None:
            return otherwise(weights)
        stored.append(parts)
    return stored


def swaps_columns(value: Value) -> bool:
    """Whether it is a matrix, or a stack of matrices, seen with columns for rows."""
    order = (*range(-value.rank, -2), -1, -2)
    return value.op is ops.permute and tuple(value.attrs["order"]) in (order, order[-2:])


def _rows(weights: Value, is_stored: Callable[[Value], bool], *, is_transposed: bool, rank: int) -> list[Value] | None:
    """The matrices [columns, k] that weights [k, columns], or [columns, k] if transposed, consist of."""
    if weights.rank != rank:
        return None
    if swaps_columns(weights):
        return _rows(weights.operands[0], is_stored, is_transposed=not is_transposed, rank=rank)
    if rank == 2 and weights.op is ops.concat and weights.attrs["axis"] % 2 == (0 if is_transposed else 1):
        every = [_rows(part, is_stored, is_transposed=is_transposed, rank=rank) for part in weights.operands]
        some = [parts for parts in every if parts is not None]
        return [part for parts in some for part in parts] if len(some) == len(every) else None
    return [weights] if is_transposed and is_stored(weights) else None


def cost_with(step: Value, saved: Size) -> Cost:
    """Work and traffic of a step that reads fewer bytes of weights than its operands have."""
    cost = kernel_cost(step)
    return replace(cost, bytes=cost.bytes - saved, given=cost.given - saved)


__all__ = ["cost_with", "find_stored", "swaps_columns"]
