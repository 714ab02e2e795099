"""The speed to expect: what is counted, and what follows from the times of a few layers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_model import OPTIONS, small_program
from tiny_checkpoint import CONFIG, write_tiny_checkpoint

from quire.backends.base import KVCacheSpec, StepBatch
from quire.backends.cpu import CpuBackend
from quire.cli.explain_rows import speed_lines
from quire.config.engine_args import EngineArgs
from quire.errors import BackendError
from quire.models import build_program
from quire.planning.compile_plan import CompilePlan
from quire.planning.plan import EnginePlan, plan_engine
from quire.planning.speed import expected, timing
from quire.planning.speed.expected import DRAFTS, STREAMS, expected_speeds
from quire.planning.speed.timing import Sizes, StepTimer
from quire.planning.speed.work import work_of_step
from quire.program import OpPlace, Program, keep_all, place_of
from quire.program.passes import run_passes
from quire.units import ceil_div

LAYER_S, HEAD_S = 0.003, 0.002
MOE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "mlp_only_layers": [], "decoder_sparse_step": 1,
}  # fmt: skip


class TimedModel:
    """Each layer takes `LAYER_S`, in its first op, and the head `HEAD_S`."""

    def __init__(self, program: Program, kv: KVCacheSpec) -> None:
        self.places = [place_of(op) for op in program.ops]
        self.num_blocks = kv.num_blocks
        self.filled: set[int] = set()
        self.batches: list[StepBatch] = []

    def step(self, batch: StepBatch) -> None:
        self.batches.append(batch)

    def op_seconds(self, batch: StepBatch, num_steps: int) -> list[tuple[OpPlace, float]]:
        del num_steps
        assert set(batch.block_tables.reshape(-1).tolist()) <= self.filled
        seen: set[int | None] = {None}
        times = []
        for place in self.places:
            times.append((place, 0.0 if place.layer in seen else LAYER_S))
            seen.add(place.layer)
        return [*times, (OpPlace(None, "logits"), HEAD_S)]

    def write_blocks(self, block_ids: Any, data: Any) -> None:
        assert len(block_ids) == len(data)
        self.filled |= set(block_ids.tolist())

    def close(self) -> None:
        self.filled.clear()


class TimedBackend:
    """Of each layer a step reads as many bytes as make three layers enough."""

    def __init__(self) -> None:
        self.models: list[Any] = []

    def weight_bytes(self, program: Program, dtype: str, numbers: Any) -> int:
        del dtype, numbers
        return ceil_div(timing._READ_BYTES, 3) * len(program.memories())

    def kv_block_bytes(self, program: Program, kv: KVCacheSpec) -> int:
        del program, kv
        return 6

    def sized(self, program: Program, kv: KVCacheSpec) -> KVCacheSpec:
        del program
        return kv

    def compile_stand_in(self, program: Program, kv: KVCacheSpec, options: Any) -> Any:
        del options
        self.models.append(TimedModel(program, kv))
        return self.models[-1]


def small_plan(num_layers: int) -> CompilePlan:
    program = run_passes(small_program(num_layers))
    return CompilePlan(program, KVCacheSpec(1, 16, "float32", keep_all(program)), OPTIONS)


def test_a_layer_counts_as_often_as_there_are_such_layers() -> None:
    """Of ten layers three are run: two of nine that are alike, and the last one."""
    backend: Any = TimedBackend()
    with StepTimer(small_plan(10), backend, Sizes(4, 30, 64), 0.0) as timer:
        seconds = timer.decode_seconds(4)
        timer.prompt_seconds()
    [model] = backend.models
    assert {place.layer for place in model.places} == {None, 0, 1, 9}
    assert seconds == pytest.approx(10 * LAYER_S + HEAD_S, abs=5e-3)
    decode, prompt = model.batches
    assert decode.context_lens.tolist() == [31] * 4
    assert sorted(decode.block_tables.reshape(-1).tolist()) == list(range(8))
    assert prompt.positions.tolist() == list(range(64))
    assert prompt.logits_rows.tolist() == [63]


def plan_of(path: Path, **given: Any) -> EnginePlan:
    return plan_engine(EngineArgs(str(path), load_format="dummy", backend="cpu", **given))


def test_work_is_counted_from_the_shapes(tmp_path: Path) -> None:
    """By hand: hidden 64, 4 heads and 2 of K and V of 16, 96 inside, 288 tokens, 3 layers."""
    path = write_tiny_checkpoint(tmp_path, num_hidden_layers=3, sliding_window=None)
    plan = plan_of(path)
    one = 64 * (4 + 2 + 2) * 16 + 64 * 64 + 3 * 64 * 96
    attention = 4 * 4 * 16
    decode = work_of_step(plan.compiled, CpuBackend(1), 2, 10, 1)
    assert decode.operations == 2 * (2 * (3 * one + 64 * 288) + 3 * attention * 11)
    padded = plan.config.cache.block_bytes // plan.config.cache.block_size
    assert decode.kv_bytes == 2 * 10 * padded
    prompt = work_of_step(plan.compiled, CpuBackend(1), 1, 0, 7)
    behind_attention = 64 * 64 + 3 * 64 * 96
    rows = 7 * 3 * one - 6 * behind_attention
    # The last layer's attention is counted for one token, as only that is wanted of it.
    assert prompt.operations <= 2 * (rows + 64 * 288) + 3 * attention * 28
    assert prompt.operations >= 2 * (rows + 64 * 288) + 2 * attention * 28
    assert prompt.kv_bytes == 0
    assert decode.weight_bytes < prompt.weight_bytes < plan.needs.weight_bytes


def test_more_tokens_read_more_experts() -> None:
    program = run_passes(build_program({**CONFIG, **MOE}))
    kv = KVCacheSpec(1, 16, "bfloat16", keep_all(program))
    plan = CompilePlan(program, kv, replace(OPTIONS, dtype="bfloat16"))
    backend = CpuBackend(1)
    read = [work_of_step(plan, backend, count, 4, 1).weight_bytes for count in (1, 2, 200)]
    one_expert = 2 * 3 * 64 * 32 * 2  # bytes, in both layers
    one_row = 64 * 2  # of the table of embeddings
    assert read[1] - read[0] == 2 * one_expert + one_row  # 3.5 of 8 on average, 4 to the nearest
    assert read[2] - read[0] == 6 * one_expert + 199 * one_row


def test_every_format_has_a_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expected, "_LEAST_S", 0.0)
    path = write_tiny_checkpoint(tmp_path)
    (path / "model.safetensors").unlink()
    args = EngineArgs(str(path), backend="cpu", quantization="int8")
    found = expected_speeds(args, plan_engine(args), "llm")
    names = [speed.name for speed in found.speeds]
    assert names == [
        "int8", "bfloat16", "int8_w8a8", "int4", "int4_w4a8", "int4_head4", "int4_w4a8_head4"
    ]  # fmt: skip
    for speed in found.speeds:
        assert list(speed.streams) == list(STREAMS)
        assert min(*speed.streams.values(), speed.prompt) > 0
    assert (found.context, found.prompt, found.left_out) == (256, 511, ())
    own, *others = found.speeds
    times = {count: list(DRAFTS) for count in STREAMS}
    assert {count: list(found) for count, found in own.drafts.items()} == times
    assert all(one > 0 for times in own.drafts.values() for one in times.values())
    assert not any(one.drafts for one in others)
    assert "draft tokens in int8" in "\n".join(speed_lines(found))


@pytest.mark.long
def test_what_does_not_fit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from quire.config.memory import AvailableMemory
    from quire.planning import facts

    monkeypatch.setattr(expected, "_LEAST_S", 0.0)
    path = write_tiny_checkpoint(tmp_path, hidden_size=1024, vocab_size=32768, head_dim=64)
    (path / "model.safetensors").unlink()
    args = EngineArgs(
        str(path), backend="cpu", quantization="int4", max_num_batched_tokens=64, max_num_seqs=4
    )
    small, large = (plan_engine(replace(args, quantization=q)).needs for q in ("int8", None))
    needed = [needs.weight_bytes + needs.workspace_bytes for needs in (small, large)]
    memory = AvailableMemory(sum(needed) // 2, "a test")
    monkeypatch.setattr(facts, "available_memory", lambda: memory)
    found = expected_speeds(args, plan_engine(args), "llm")
    assert [name for name, _ in found.left_out] == ["bfloat16"]
    assert found.speeds[0].name == "int4"


def test_the_reference_backend_is_not_timed(tmp_path: Path) -> None:
    args = EngineArgs(str(write_tiny_checkpoint(tmp_path)), backend="reference")
    found = expected_speeds(args, plan_engine(args), "llm")
    assert found.speeds == ()
    assert "reference backend does not time steps" in found.not_timed
    plan = plan_engine(args)
    compiled = plan.compiled
    with pytest.raises(BackendError, match="does not time steps"):
        plan.facts.backend.compile_stand_in(compiled.program, compiled.kv, compiled.options)
