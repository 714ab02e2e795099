"""Requests with and without adapters in random company: each gets the bits that it gets alone.

They are preempted, hit prefixes, wait for room for their adapters, which are evicted and loaded
again, and an adapter is replaced while requests use it.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from adapter_writer import write_adapter
from output_bits import Bits, bits_of
from tiny_checkpoint import write_tiny_checkpoint

from quire.adapters import LoRARequest
from quire.config.engine_args import EngineArgs
from quire.errors import ConfigError
from quire.frontend.offline.llm_engine import LLMEngine
from quire.outputs import RequestOutput
from quire.params import SamplingParams
from quire.weights.adapters import bind_adapter
from quire.worker.worker import Worker


@dataclass(frozen=True)
class Work:
    """A request, but for its adapter."""

    prompt: tuple[int, ...]
    seed: int
    num_tokens: int


def engine_of(base: Path, **options: Any) -> LLMEngine:
    return LLMEngine.from_engine_args(
        EngineArgs(
            str(base), enable_lora=True, max_lora_rank=8, kv_store=False, max_model_len=128,
            skip_tokenizer_init=True, num_threads=2, **options,
        )
    )  # fmt: skip


def params_of(work: Work) -> SamplingParams:
    return SamplingParams(
        temperature=0.8, seed=work.seed, max_tokens=work.num_tokens, logprobs=1, ignore_eos=True,
        detokenize=False,
    )  # fmt: skip


class Alone:
    """What each request gives if it runs alone, without a prefix cache."""

    def __init__(self, base: Path, **options: Any) -> None:
        self._engine = engine_of(base, enable_prefix_caching=False, **options)
        self._known: dict[tuple[Work, str], Bits] = {}
        self._ids: dict[str, int] = {}

    def __call__(self, work: Work, path: str) -> Bits:
        if (work, path) not in self._known:
            number = self._ids.setdefault(path, len(self._ids) + 1)
            adapter = LoRARequest(path, number, path) if path else None
            self._engine.add_request("x", list(work.prompt), params_of(work), lora_request=adapter)
            finals: list[Any] = []
            while self._engine.has_unfinished_requests():
                finals += [one for one in self._engine.step() if one.finished]
            self._known[work, path] = bits_of(finals[-1])
        return self._known[work, path]

    def close(self) -> None:
        self._engine.shutdown()


@pytest.mark.parametrize(
    ("formats", "count"),
    [
        ({"dtype": "float32"}, 30),
        ({"dtype": "bfloat16", "quantization": "int8"}, 30),
        pytest.param({"dtype": "bfloat16"}, 600, marks=pytest.mark.long),
        pytest.param({"dtype": "float32"}, 500, marks=pytest.mark.long),
        pytest.param(
            {"dtype": "bfloat16", "quantization": "int4_w4a8"}, 300, marks=pytest.mark.long
        ),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else str(value),
)
def test_a_request_has_its_own_bits(formats: dict[str, str], count: int, tmp_path: Path) -> None:
    seed = int(os.environ.get("QUIRE_TEST_SEED", "7"))
    random = Random(seed)
    base = write_tiny_checkpoint(tmp_path / "base")
    folders = [str(write_adapter(tmp_path / f"a{i}", base, i, rank=2 + i)) for i in range(4)]
    prefix = [random.randrange(256) for _ in range(20)]
    works = [
        Work(
            (*prefix[: random.choice((0, 20))], *(random.randrange(256) for _ in range(n))),
            random.randrange(2**32),
            random.randrange(2, 14 if count < 100 else 50),
        )
        for n in (1, 3, 17, 30, 55)
    ]
    alone = Alone(base, **formats)
    engine = engine_of(
        base, num_gpu_blocks_override=10, max_num_seqs=6, max_num_batched_tokens=40,
        max_cpu_loras=2, max_loras=random.choice((1, 2)), scheduling_policy="priority", **formats,
    )  # fmt: skip
    changing = 1
    expected: dict[str, tuple[Work, list[str]]] = {}
    finished: dict[str, RequestOutput] = {}
    num_added = num_preempted = 0
    while num_added < count or engine.has_unfinished_requests():
        if num_added < count and random.random() < 0.6:
            work, which = random.choice(works), random.choice(("", "0", "1", "changing"))
            name, num_added = str(num_added), num_added + 1
            adapter, paths = None, [""]
            if which == "changing":
                # Before it begins, another version may be loaded.
                adapter, paths = LoRARequest("changing", 9, folders[changing + 1]), folders[2:]
            elif which:
                adapter = LoRARequest(which, int(which) + 1, folders[int(which)])
                paths = [folders[int(which)]]
            engine.add_request(
                name, list(work.prompt), params_of(work), lora_request=adapter,
                priority=random.randrange(3),
            )  # fmt: skip
            expected[name] = work, paths
        if random.random() < 0.03:
            changing = 3 - changing
            try:
                assert engine.add_lora(
                    LoRARequest("changing", 9, folders[changing + 1], None, True)
                )
            except ConfigError as error:
                if "does not fit into the memory for adapters" not in str(error):
                    raise
        if random.random() < 0.03 and expected:
            victim = random.choice([*expected])
            if victim not in finished:
                engine.abort_request(victim)
                del expected[victim]
        for output in engine.step():
            if output.finished and output.request_id in expected:
                finished[output.request_id] = output  # type: ignore[assignment]
    assert set(finished) == set(expected), f"QUIRE_TEST_SEED={seed}"
    for name, (work, paths) in expected.items():
        output = finished[name]
        num_preempted += output.metrics.num_preemptions if output.metrics else 0
        assert bits_of(output) in [alone(work, path) for path in paths], (seed, name)
    if count > 100:  # a few requests need not fill the cache
        assert num_preempted, f"no request was preempted: QUIRE_TEST_SEED={seed}"
    assert len(engine.list_loras()) <= 3
    different = {alone(works[-1], path) for path in ("", *folders)}
    assert len(different) == 5, "the adapters change nothing"
    engine.shutdown()
    alone.close()


def test_a_load_that_would_wait_for_steps_is_refused(tmp_path: Path) -> None:
    base = write_tiny_checkpoint(tmp_path / "base")
    one, other = (
        LoRARequest(f"a{i}", i, str(write_adapter(tmp_path / f"a{i}", base, i))) for i in (1, 2)
    )
    engine = engine_of(base, max_cpu_loras=1)
    engine.add_request("x", [1, 2, 3], SamplingParams(max_tokens=4), lora_request=one)
    while not engine.step():  # until it has a token
        pass
    with pytest.raises(ConfigError, match=r"'a2' does not fit into .* finish some requests"):
        engine.add_lora(other)
    while engine.has_unfinished_requests():
        engine.step()
    assert engine.add_lora(other)
    assert engine.list_loras() == {2}
    engine.shutdown()


def test_an_urgent_request_takes_the_slot_of_an_adapter(tmp_path: Path) -> None:
    """The others give it back, and get the bits that they get without the urgent one."""
    base = write_tiny_checkpoint(tmp_path / "base")
    one, other = (
        LoRARequest(f"a{i}", i, str(write_adapter(tmp_path / f"a{i}", base, i))) for i in (1, 2)
    )
    engine = engine_of(base, max_loras=1, scheduling_policy="priority")
    assert engine.add_lora(other)
    works = [Work((1, 2, 3 + number), number, 40) for number in range(3)]
    found: dict[bool, dict[str, Bits]] = {}
    for has_urgent in (False, True):
        finals: list[Any] = []
        for number, work in enumerate(works):
            params = params_of(work)
            engine.add_request(str(number), list(work.prompt), params, None, one, priority=1)
        while not engine.step():
            pass
        if has_urgent:
            engine.add_request("u", [9], params_of(Work((9,), 9, 5)), lora_request=other)
        num_steps = num_waited = 0
        while engine.has_unfinished_requests():
            finals += [output for output in engine.step() if output.finished]
            num_steps += 1
            if finals and not num_waited:
                num_waited = num_steps
        found[has_urgent] = {output.request_id: bits_of(output) for output in finals}
        if has_urgent:
            assert finals[0].request_id == "u"
            assert num_waited < 9
    assert {name: bits for name, bits in found[True].items() if name != "u"} == found[False]
    engine.shutdown()


def finish(engine: LLMEngine) -> Bits:
    """Bits of the only request of the engine."""
    finals: list[Any] = []
    while engine.has_unfinished_requests():
        finals += [one for one in engine.step() if one.finished]
    return bits_of(finals[-1])


@pytest.mark.parametrize("moment", ["in sleep", "before sleep", "before new weights"])
def test_a_model_without_weights_fails_no_load(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request waits for its adapter until the weights are there again; the weights go when no
    adapter is being loaded."""
    base = write_tiny_checkpoint(tmp_path / "base")
    one, other = (
        LoRARequest(f"a{i}", i, str(write_adapter(tmp_path / f"a{i}", base, i))) for i in (1, 2)
    )
    work, closes = Work((1, 2, 3), 5, 6), threading.Event()
    close = Worker._close_model

    def slow_bind(*args: Any) -> Any:
        closes.wait(0.2)
        return bind_adapter(*args)

    def noted_close(worker: Worker) -> None:
        close(worker)
        closes.set()

    engine = engine_of(base)
    engine.add_request("x", list(work.prompt), params_of(work), lora_request=one)
    wanted = finish(engine)
    assert engine.remove_lora(1)
    monkeypatch.setattr("quire.worker.adapter_loading.bind_adapter", slow_bind)
    monkeypatch.setattr(Worker, "_close_model", noted_close)
    if moment == "in sleep":
        engine.sleep(2)
    engine.add_request("x", list(work.prompt), params_of(work), lora_request=one)
    if moment != "in sleep":
        engine.step()
    else:
        with pytest.raises(ConfigError, match=r"call wake_up\(\)"):
            engine.step()
        with pytest.raises(ConfigError, match="weights are in memory: call wake_up first"):
            engine.add_lora(other)
    if moment == "before sleep":
        engine.sleep(2, mode="keep")
    elif moment == "before new weights":
        engine.collective_rpc("reload_weights")
    engine.wake_up()
    assert finish(engine) == wanted
    engine.shutdown()


@pytest.mark.timeout(60)
def test_a_pause_ends_while_requests_wait_for_room(tmp_path: Path) -> None:
    """The request that could make room for another one is held too."""
    base = write_tiny_checkpoint(tmp_path / "base")
    adapters = [
        LoRARequest(f"a{i}", i, str(write_adapter(tmp_path / f"a{i}", base, i))) for i in (1, 2)
    ]
    engine = engine_of(base, max_loras=1)
    for name in range(3):
        params = SamplingParams(max_tokens=4, ignore_eos=True)
        engine.add_request(str(name), [1, 2, 3], params, lora_request=adapters[name % 2])
    found: list[Any] = []
    while not found:
        found += engine.step()
    engine.sleep(1, mode="wait")
    engine.wake_up()
    while engine.has_unfinished_requests():
        found += engine.step()
    assert sorted(one.request_id for one in found if one.finished) == ["0", "1", "2"]
    engine.shutdown()
