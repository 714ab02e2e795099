"""Counts what a step reads and computes, from the program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from quire.backends.base import Backend
from quire.planning.compile_plan import CompilePlan
from quire.program import Attention, Experts, Linear, Logits, Program, TakeRows


@dataclass(frozen=True, slots=True)
class Work:
    """Work of one step of the whole model."""

    weight_bytes: int
    """Bytes of weights that are read, each weight once."""
    kv_bytes: int
    """Bytes of keys and values of earlier tokens that are read."""
    operations: int
    """Multiplications plus additions in matrix products and attention."""


def work_of_step(
    plan: CompilePlan, backend: Backend, num_requests: int, context: int, new: int
) -> Work:
    """Count a step with `new` tokens per request after `context` earlier ones, and one token chosen
    per request.

    For experts it counts the average number that are read if all are equally likely.
    """
    return Work(
        plan.bytes_read(backend, num_requests * new),
        num_requests * _kv_bytes(plan, backend, context),
        num_requests * sum(_operations(plan.program, context, new)),
    )


def _kv_bytes(plan: CompilePlan, backend: Backend, context: int) -> int:
    """Bytes of one request. A layer with a sliding window reads at most its window, a recurrent one
    its state."""
    layout = plan.kv.layout
    per_layer = backend.kv_block_bytes(plan.program, plan.kv) / plan.kv.block_size
    per_layer /= layout.num_slots
    ops = plan.program.attention_ops()
    widest = max((op.num_kv_heads * op.head_dim for op in ops), default=1)
    seen = sum(
        min(context, op.window or context) * op.num_kv_heads * op.head_dim / widest for op in ops
    )
    return round(per_layer * seen) + sum(group.num_bytes for group in layout.states)


def _operations(program: Program, context: int, new: int) -> Iterator[int]:
    """Yield the operations of each op for one request. After the last attention only the chosen row
    is computed."""
    taken: set[str] = set()
    for op in program.ops:
        is_taken = isinstance(op, TakeRows) or any(v.name in taken for v in op.inputs())
        if is_taken:
            taken |= {value.name for value in op.outputs()}
        rows = 1 if is_taken or isinstance(op, Logits) else new
        if isinstance(op, Linear | Logits):
            yield 2 * rows * prod(op.weight.shape)
        elif isinstance(op, Experts):
            one = prod(op.gate_up.shape[1:]) + prod(op.down.shape[1:])
            yield 2 * rows * op.top_k * one
        elif isinstance(op, Attention):
            pairs = sum(
                min(position + 1, op.window or position + 1)
                for position in range(context, context + new)
            )
            yield 4 * op.num_heads * op.head_dim * pairs
