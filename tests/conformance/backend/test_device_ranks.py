"""Ranks of the CUDA backend give the bits of one device, and exchange through the contract."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rank_threads import PlainDummy, RankThreads, connected
from small_families import FAMILIES

from quire.backends.base import KVCacheSpec
from quire.backends.cuda import CudaBackend
from quire.backends.cuda.emulated import EmulatedDevice
from quire.backends.cuda.model import CudaModel
from quire.planning.speed.timing import decode_step, prompt_step
from quire.program import Program, kv_layout

from .test_ranks import OPTIONS, program_of

CHOSEN = ["qwen3", "gemma2", "qwen2_moe", "gpt2", "deepseek_v3", "lfm2", "gpt_oss"]


def logits(program: Program, num_ranks: int) -> list[Any]:
    layout = kv_layout(program, OPTIONS.max_model_len)
    kv = KVCacheSpec(12 * len(layout.groups), 16, "bfloat16", layout)
    groups = connected(1, num_ranks)
    backends = [CudaBackend(EmulatedDevice()) for _ in groups]
    model = RankThreads(backends, program, PlainDummy(program), kv, OPTIONS, 1, groups)
    found = []
    for batch in (prompt_step(kv, 40, 288), decode_step(kv, 3, 33, 288)):
        batch.want_logits = True
        found.append(model.step(batch).logits)
    model.close()
    return found


@pytest.mark.parametrize("family", [name for name in FAMILIES if name in CHOSEN])
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_give_the_bits_of_one(family: str, num_ranks: int) -> None:
    program = program_of(family, None)
    one, found = logits(program, 1), logits(program, num_ranks)
    assert all(np.array_equal(a, b) for a, b in zip(one, found, strict=True))
    assert np.isfinite(one[0]).all()


@pytest.mark.parametrize("family", ["qwen3", "qwen2_moe"])
def test_ranks_record_the_same_steps(family: str) -> None:
    """Each rank pads and records decoding steps, also one that chooses no tokens, and whether
    the host or the device of another rank chooses them."""
    program = program_of(family, None)
    layout = kv_layout(program, OPTIONS.max_model_len)
    kv = KVCacheSpec(12 * len(layout.groups), 16, "bfloat16", layout)
    batch = decode_step(kv, 3, 33, 288)
    assert batch.sampling is not None
    by_host = replace(batch.sampling, num_logprobs=np.array([-1, 2, -1], np.int32))
    changed = replace(batch, token_ids=np.array([5, 200, 31], np.int32), sampling=by_host)
    found = []
    for num_ranks, enforce_eager in ((1, True), (2, False), (3, False)):
        groups = connected(1, num_ranks)
        devices = [EmulatedDevice() for _ in groups]
        backends = [CudaBackend(one, enforce_eager=enforce_eager) for one in devices]
        model = RankThreads(backends, program, PlainDummy(program), kv, OPTIONS, 1, groups)
        outputs = [model.step(one) for one in (batch, changed, batch, changed)]
        both = [model.step(replace(one, want_logits=True)).logits for one in (batch, changed)]
        assert not np.array_equal(*both)
        found.append(
            [output.sampled.tolist() for output in outputs]
            + [logits.tolist() for logits in both if logits is not None]
        )
        for one in model.models:
            assert isinstance(one, CudaModel)
            recordings = None if one._graphs is None else [*one._graphs._recordings.values()]
            assert (recordings is None) == enforce_eager
            assert all(recordings or [True])
            assert enforce_eager or len(recordings or []) == 1
        model.close()
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("weights", ["int8_w8a8", "int4", "int4_w4a8"])
def test_ranks_hold_weights_of_other_formats(weights: str) -> None:
    program = program_of("qwen3", weights)
    one, found = logits(program, 1), logits(program, 2)
    assert all(np.array_equal(a, b) for a, b in zip(one, found, strict=True))
