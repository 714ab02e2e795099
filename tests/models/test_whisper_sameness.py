"""Whisper: a request has the bits that it has alone, whatever else happens: cuts of its sound,
company, neighbours that leave, preemption at any position, hits in the prefix cache, K/V that comes
from the store after a restart, and several ranks."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import sweeps
from thread_ranks import ThreadRanks
from whisper_cases import CASES, RATE, TOKENS, sound, write

from quire import LLM, SamplingParams
from quire.executor import multiproc
from quire.outputs import RequestOutput
from quire.params import RequestOutputKind
from quire.timestamp_rules import TimestampRules

NUM_REQUESTS = 10
Bits = list[tuple[tuple[int, ...], tuple[float, ...]]]
Work = list[tuple[Any, SamplingParams]]


def bits_of(output: RequestOutput) -> Bits:
    """The tokens of each text and the log-probabilities of all that are listed."""
    assert output.error is None
    return [
        (
            tuple(one.token_ids),
            tuple(each.logprob for entry in one.logprobs or () for each in (entry or {}).values()),
        )
        for one in output.outputs
    ]


def params_of(random: Random, seed: int) -> SamplingParams:
    params = SamplingParams(
        temperature=random.choice([0.0, 0.0, 0.3, 1.0, 2.0]),
        seed=seed,
        max_tokens=random.randint(1, 26),
        ignore_eos=random.random() < 0.8,
        logprobs=random.choice([0, 0, 3]),
        top_k=random.choice([0, 0, 5]),
        top_p=random.choice([1.0, 0.9]),
        repetition_penalty=random.choice([1.0, 1.0, 1.3]),
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    if params.temperature:
        params.n = random.choice([1, 1, 2, 5])
    if random.random() < 0.5:
        params.write_timestamps(
            TimestampRules(
                first=TOKENS.first_timestamp,
                end=TOKENS.eot,
                most_first=random.choice([None, 20]),
                forbidden=[*TOKENS.suppress, TOKENS.no_timestamps],
                forbidden_first=[*TOKENS.begin_suppress],
                is_on=random.random() < 0.7,
            )
        )
    elif random.random() < 0.2:
        params = SamplingParams(
            temperature=0,
            max_tokens=1,
            logprob_token_ids=[7, 8, 200],
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
    return params


def requests(random: Random) -> Work:
    """Some have the same sound, some the same sound and a prompt that begins alike."""
    found: Work = []
    for number in range(NUM_REQUESTS):
        ids = [4, *(random.randrange(5, 300) for _ in range(random.randint(0, 30)))]
        which = random.randrange(4)
        if found and random.random() < 0.3:
            shared = random.choice(found)[0]["prompt_token_ids"]
            ids = [*shared[: random.randint(1, 30)], *ids[1:5]]
        audio = {"audio": (sound(0.2 + 9 * which, which), RATE)}
        prompt = {"prompt_token_ids": ids, "multi_modal_data": audio}
        found.append((prompt, params_of(random, number)))
    return found


def disturbed(llm: LLM, work: Work, random: Random) -> tuple[list[Bits], int]:
    """The requests come at any time, others come and leave, and running ones are preempted now and
    then. Returns also how many positions were found in a prefix cache or in the store."""
    engine, scheduler = llm.llm_engine, llm.llm_engine.engine_core.scheduler
    waiting, found, leavers = list(enumerate(work)), dict[str, RequestOutput](), list[str]()
    disturbances = random.randint(4, 12)  # without a bound, a request of many chunks never ends
    while waiting or engine.has_unfinished_requests():
        while waiting and (random.random() < 0.3 or not engine.has_unfinished_requests()):
            number, (prompt, params) = waiting.pop(0)
            engine.add_request(str(number), prompt, params)
            if random.random() < 0.4:
                leavers.append(f"leaver {number}")
                [(other, asked)] = random.choices(work)
                engine.add_request(leavers[-1], other, asked)
        found |= {
            one.request_id: one
            for one in engine.step()
            if isinstance(one, RequestOutput) and one.finished
        }
        running = scheduler.states.running
        if leavers and random.random() < 0.2:
            engine.abort_request(leavers.pop(random.randrange(len(leavers))))
        elif running and disturbances and random.random() < 0.08:
            disturbances -= 1
            if random.random() < 0.8:
                scheduler.states.preempt(random.choice(running))
            else:
                scheduler.reset_prefix_cache(reset_running_requests=True)
        scheduler.check_integrity()
    outputs = [found[str(number)] for number in range(len(work))]
    return [bits_of(one) for one in outputs], sum(one.num_cached_tokens or 0 for one in outputs)


def check(checkpoint: Path, seed: str, store: Path) -> int:
    """Returns how many positions were found in a prefix cache or in the store."""
    random = Random(seed)
    work = requests(random)
    options: dict[str, Any] = {
        "skip_tokenizer_init": True, "num_threads": 1, "speculation": False,
        "dtype": random.choice(["float32", "float32", "bfloat16"]),
        "kv_cache_dtype": random.choice(["auto", "auto", "int8"]),
    }  # fmt: skip
    with LLM(str(checkpoint), enable_prefix_caching=False, **options) as llm:
        alone = [bits_of(llm.generate(*one, use_tqdm=False)[0]) for one in work]
        model = llm.llm_engine.model_config
        length = model.num_sources + model.max_model_len
        layout = llm.llm_engine.vllm_config.cache.layout
    budget = random.choice([17, 18, 64, random.randint(17, 200), 1499, 1500, 4000])
    fewest = layout.most_blocks(length, budget, 16)
    kept = {"kv_store": True, "kv_store_path": str(store), "kv_store_size": 256 << 20}
    stores: list[dict[str, Any]] = random.choice([[{}], [{}], [kept, kept]])
    ranks = {"tensor_parallel_size": random.choice([1, 1, 2])}
    num_hits = 0
    for stored in stores:
        with LLM(
            str(checkpoint), max_num_batched_tokens=budget, max_num_seqs=random.randint(2, 8),
            num_gpu_blocks_override=fewest + random.choice([0, 7, 100, 600]),
            enable_prefix_caching=bool(stored) or random.random() < 0.7,
            **stored, **options, **ranks,
        ) as llm:  # fmt: skip
            found, num_cached = disturbed(llm, work, random)
            assert found == alone, f"seed {seed!r}"
            num_hits += num_cached
    return num_hits


@pytest.fixture(scope="module", params=CASES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    write(path, request.param)
    return path


@pytest.mark.sweep(2)
@pytest.mark.usefixtures("cpu_backend")
@pytest.mark.parametrize("trial", range(10))
def test_the_same_bits_whatever_happens(
    model: Path, trial: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiproc, "RankProcesses", ThreadRanks)
    check(model, f"{trial} {sweeps.seed() or 0}", tmp_path)
