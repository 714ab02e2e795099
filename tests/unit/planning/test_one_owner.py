"""One program for all who plan, pack, count and compile it, and one way to a configuration."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from tiny_checkpoint import write_tiny_checkpoint

import quire
from quire.backends.cpu import load
from quire.backends.reference import ReferenceBackend
from quire.config.engine_args import EngineArgs
from quire.config.resolve import Usage
from quire.errors import BackendError
from quire.executor import runners
from quire.models import build_program
from quire.planning import quantize
from quire.planning.compile_plan import compile_plan
from quire.planning.facts import gather_facts
from quire.planning.plan import plan_engine, settle
from quire.program import Program, TakeRows
from quire.program.passes import run_passes
from quire.worker import Worker
from quire.worker.input_batch import InputBatch

SRC = Path(quire.__file__).parent
LIMITS: dict[str, Any] = {
    "max_num_batched_tokens": 64, "max_num_seqs": 4, "kv_cache_memory_bytes": 1 << 20,
}  # fmt: skip
STAGES = {
    "planning/plan.py", "planning/facts.py", "planning/checkpoint.py", "planning/machine.py",
    "planning/choices.py", "config/resolve.py", "planning/compile_plan.py", "config/memory.py",
}  # fmt: skip


def args(model_dir: Path, **given: Any) -> EngineArgs:
    return EngineArgs(str(model_dir), **{"backend": "reference", **LIMITS, **given})


@pytest.mark.parametrize("usage", ["llm", "server"])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"quantization": "int4", "kv_cache_dtype": "int8", "block_size": 24},
        {"max_model_len": -1, "kv_cache_memory_bytes": 1 << 16},
        {"enable_chunked_prefill": False, "max_num_batched_tokens": None, "max_model_len": -1},
    ],
    ids=str,
)
def test_the_worker_compiles_what_was_planned(
    model_dir: Path, usage: Usage, given: dict[str, Any]
) -> None:
    plan = plan_engine(args(model_dir, **given), usage)
    assert compile_plan(plan.config) == plan.compiled
    assert plan.compiled.kv.num_blocks == plan.config.cache.num_blocks
    assert plan.needs.max_num_batched_tokens == plan.config.scheduler.max_num_batched_tokens
    assert plan.needs.max_model_len == plan.config.model.max_model_len


def test_every_pass_is_in_the_plan(model_dir: Path) -> None:
    plan = plan_engine(args(model_dir, quantization="int8"))
    written = build_program(plan.config.model.hf_config)
    assert plan.compiled.program == run_passes(written, "int8") != written
    assert {param.format for param in plan.compiled.program.params()} == {"dense", "int8"}
    # Rows are taken behind the last attention: of its result and of the residual stream.
    assert sum(isinstance(op, TakeRows) for op in plan.compiled.program.ops) == 2


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_all_see_the_same_program(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """What is counted, compiled and packed, by whoever asks."""
    kind: Any = ReferenceBackend
    if backend == "cpu":
        require_cpu()
        from quire.backends.cpu import CpuBackend as kind  # noqa: N813
    seen: dict[str, list[Program]] = {}
    for name in ("weight_bytes", "workspace_bytes", "kv_block_bytes", "compile", "pack"):
        watch(monkeypatch, kind, name, seen)
    given = args(model_dir, backend=backend, quantization="int8")
    plan = plan_engine(given)
    Worker(plan.config).close()
    if backend == "cpu":
        quantize.quantize_model(given, tmp_path / "packed")
    else:
        del seen["pack"]
    assert all(seen.values())
    for programs in seen.values():
        assert all(program == plan.compiled.program for program in programs)


def watch(
    monkeypatch: pytest.MonkeyPatch, kind: Any, name: str, seen: dict[str, list[Program]]
) -> None:
    real, programs = getattr(kind, name), seen.setdefault(name, [])

    def watched(self: Any, program: Program, *rest: Any) -> Any:
        programs.append(program)
        return real(self, program, *rest)

    monkeypatch.setattr(kind, name, watched)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_worker_takes_what_was_planned(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    if backend == "cpu":
        require_cpu()
    batches: list[InputBatch] = []

    class WatchedBatch(InputBatch):
        def __init__(self, *sizes: int, **options: bool) -> None:
            super().__init__(*sizes, **options)
            batches.append(self)

    monkeypatch.setattr(runners, "InputBatch", WatchedBatch)
    plan = plan_engine(args(model_dir, backend=backend))
    worker = Worker(plan.config)
    runners.make_runner(plan.config, worker.model)
    report = worker.model.memory()
    [batch] = batches
    held = array_bytes(batch) + array_bytes(batch.sampling)
    beside = plan.needs.workspace_bytes - report.workspace_bytes
    assert 0 < held <= beside < 4 * held
    assert report.kv_reserved_bytes == plan.config.cache.num_blocks * plan.needs.kv_block_bytes
    worker.close()


def array_bytes(held: object) -> int:
    return sum(value.nbytes for value in vars(held).values() if isinstance(value, np.ndarray))


def test_after_the_facts_nothing_is_read(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = args(model_dir, generation_config=str(model_dir))
    facts = gather_facts(given)

    def refuse(*given: object, **named: object) -> Any:
        raise AssertionError(f"read: {given} {named}")

    for module, name in ((builtins, "open"), (Path, "open"), (Path, "stat"), (Path, "glob")):
        monkeypatch.setattr(module, name, refuse)
    first = settle(given, "llm", facts)
    assert settle(given, "llm", facts).config == first.config
    assert first.config.model.eos_token_ids == (256,)


def test_each_stage_is_entered_once(model_dir: Path) -> None:
    """Nobody goes back to a file that he has left, on the way to a configuration."""
    given = args(model_dir)
    facts = gather_facts(given)
    settle(given, "llm", facts)  # whatever is imported late
    depth: dict[str, int] = {}
    entered: list[str] = []

    def follow(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event not in ("call", "return") or not name.startswith(str(SRC)):
            return
        file = Path(name).relative_to(SRC).as_posix()
        if event == "call" and not depth.get(file) and file in STAGES:
            entered.append(file)
        depth[file] = depth.get(file, 0) + (1 if event == "call" else -1)

    sys.setprofile(follow)
    try:
        facts = gather_facts(given)
        settle(given, "llm", facts)
    finally:
        sys.setprofile(None)
    runs = [file for before, file in zip([None, *entered], entered, strict=False) if file != before]
    assert len(runs) == len(set(runs)) <= 8, "\n".join(runs)
    assert set(runs) == STAGES


def test_an_unchunked_budget_is_settled_once(tmp_path: Path) -> None:
    """It holds the longest context that there may be, not the one that the memory has room for."""
    model = write_tiny_checkpoint(tmp_path, max_position_embeddings=8192)
    given = args(
        model, enable_chunked_prefill=False, max_num_batched_tokens=None, max_model_len=-1,
        kv_cache_memory_bytes=1 << 16,
    )  # fmt: skip
    plan = plan_engine(given)
    assert plan.config.model.max_model_len < 8192
    assert plan.config.scheduler.max_num_batched_tokens == 8192
    assert plan.compiled.options.max_num_tokens == 8192


def require_cpu() -> None:
    try:
        load()
    except BackendError as error:
        pytest.skip(f"the native library is not built here: {error}")
