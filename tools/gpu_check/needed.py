"""Finds the kernels that a model launches, by lowering its steps without a device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from quire.backends.base import CompileOptions, KVCacheSpec, StepBatch
from quire.backends.cuda.device import DeviceFacts
from quire.backends.cuda.kernel import Kernel, Launch
from quire.backends.cuda.lowering import sampling
from quire.backends.cuda.plan import Plan
from quire.program import Program

_PROCESSORS = (1, 100_000)
"""With few processors no work is divided among programs, and with many all of it is."""


def needed_kernels(program: Program, kv: KVCacheSpec, options: CompileOptions) -> set[Kernel]:
    """Kernels of prompts, of single tokens, and of both together, with short and long contexts.
    Raises BackendError for a program that has no kernels."""
    options = replace(options, max_num_tokens=256, max_num_seqs=4)
    found: set[Kernel] = set()
    for count in _PROCESSORS:
        plan = Plan(program, kv, options, DeviceFacts("planned", 0, 0, 0, count, 0.0))
        for batch in _batches(plan):
            found.update(_launched(plan, batch))
        if plan.result.sampler is not None:
            found.update(sampling.variants())
    return found


def _launched(plan: Plan, batch: StepBatch) -> Iterator[Kernel]:
    lowering = plan.lowering
    buffer = lowering.step_buffer
    step, _ = lowering.arrays.step(batch, buffer.memory, buffer.begin)
    emitted = [emit(step) for _, emit in plan.ops]
    for actions in (*emitted, plan.result.emit(step, 0, step.num_taken)):
        yield from (action.kernel for action in actions if isinstance(action, Launch))


def _batches(plan: Plan) -> Iterator[StepBatch]:
    longest = plan.options.max_model_len
    prompt = min(200, longest)
    parts = ([(0, prompt)], [(0, 1)], [(longest - 1, longest)], [(longest - 1, longest), (0, 9)])
    for requests in parts:
        counts = [end - begin for begin, end in requests]
        groups = max(1, len(plan.kv.layout.groups))
        entries = -(-longest // plan.kv.block_size) + 1
        yield StepBatch(
            token_ids=np.zeros(sum(counts), np.int32),
            positions=np.concatenate([np.arange(*one) for one in requests]).astype(np.int32),
            seq_starts=np.cumsum([0, *counts]).astype(np.int32),
            context_lens=np.array([end for _, end in requests], np.int32),
            block_tables=np.zeros((len(requests), groups, entries), np.int32),
            logits_rows=(np.cumsum(counts) - 1).astype(np.int32),
            sampling=None,
            want_logits=True,
        )
