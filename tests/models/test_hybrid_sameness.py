"""Recurrent layers and latent attention: a request has the bits that it has alone, whatever else
happens: cuts of its prompt, company, preemption at any position, prefix hits of any length, drafts
that are wrong, and K/V and states that come from the store after a restart."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import sweeps
from hybrid_cases import HYBRID_CASES
from model_cases import prompt_of, write_checkpoint
from output_bits import Bits, bits_of

from quire import LLM, SamplingParams
from quire.outputs import RequestOutput
from quire.scheduler.drafting.drafting import Drafting
from quire.scheduler.drafting.proposer import NUM_GRADES, Proposal, Proposer
from quire.scheduler.request import Request

FAMILIES = {
    "qwen3.5": {}, "lfm2": {}, "granite4-h": {}, "falcon-h1": {}, "mamba": {}, "mamba2": {},
    "kimi-linear": {"kv_cache_dtype": "int8"}, "minicpm3": {"kv_cache_dtype": "int8"},
    "deepseek-v3": {}, "jamba": {},
}  # fmt: skip
NUM_REQUESTS = 8
LONGEST = 160


class Liar(Proposer):
    """Guesses at random, or that the last token is repeated."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def propose(self, request: Request, most: int) -> Proposal | None:
        count = self._random.randint(0, min(most, 20))
        if not count:
            return None
        ids = [request.token_ids[-1]] * count
        if self._random.random() < 0.5:
            ids = [self._random.randrange(100) for _ in range(count)]
        return Proposal(ids, NUM_GRADES - 1)

    def forget(self, request: Request) -> None:
        pass


def open_llm(checkpoint: Path, **options: Any) -> LLM:
    return LLM(str(checkpoint), skip_tokenizer_init=True, dtype="float32", max_model_len=LONGEST,
               num_threads=1, **options)  # fmt: skip


def requests(base: list[int], random: Random) -> list[tuple[list[int], SamplingParams]]:
    """Prompts that share the beginnings of a text, some of them the whole of another prompt."""
    found = []
    for number in range(NUM_REQUESTS):
        shared = random.choice(
            [random.randrange(len(base)), random.randrange(len(base)) // 16 * 16]
        )
        own = [random.randrange(100) for _ in range(random.randint(1, 25))]
        prompt = [*base[:shared], *own]
        if found and random.random() < 0.4:
            prompt = [*random.choice(found)[0], *own][:130]
        params = SamplingParams(
            temperature=random.choice([0.0, 1.0]), seed=number, max_tokens=random.randint(1, 24),
            ignore_eos=True, logprobs=0,
        )  # fmt: skip
        found.append((prompt, params))
    return found


def disturbed(
    llm: LLM, work: list[tuple[list[int], SamplingParams]], random: Random
) -> tuple[list[Bits], int]:
    """The requests come at any time; running ones are preempted now and then. Returns also how
    many tokens they found in a prefix cache or in the store."""
    engine, scheduler = llm.llm_engine, llm.llm_engine.engine_core.scheduler
    if scheduler.drafting is not None:
        config = scheduler.config.speculation
        scheduler.drafting = Drafting(config, None, Liar(random))
    waiting, found = list(enumerate(work)), dict[str, RequestOutput]()
    while waiting or engine.has_unfinished_requests():
        while waiting and (random.random() < 0.3 or not engine.has_unfinished_requests()):
            number, (prompt, params) = waiting.pop(0)
            engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
        found |= {one.request_id: one for one in engine.step() if one.finished}
        running = scheduler.states.running
        if running and random.random() < 0.06:
            scheduler.states.preempt(random.choice(running))
        elif random.random() < 0.02:
            scheduler.reset_prefix_cache(reset_running_requests=True)
        scheduler.check_integrity()
    outputs = [found[str(number)] for number in range(len(work))]
    return [bits_of(one) for one in outputs], sum(one.num_cached_tokens or 0 for one in outputs)


def check(
    checkpoint: Path, base: list[int], options: dict[str, Any], seed: str, store: Path
) -> int:
    """Returns how many tokens were found in a prefix cache or in the store."""
    random = Random(seed)
    work = requests(base, random)
    with open_llm(checkpoint, enable_prefix_caching=False, speculation=False, **options) as llm:
        alone = [
            bits_of(llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)[0])
            for prompt, params in work
        ]
        layout = llm.llm_engine.vllm_config.cache.layout
    budget = random.choice([1, 2, 15, 16, 17, random.randint(3, 70), random.randint(3, 70)])
    fewest = layout.most_blocks(LONGEST, budget, 16)
    kept = {"kv_store": True, "kv_store_path": str(store), "kv_store_size": 256 << 20}
    stores: list[dict[str, Any]] = random.choice([[{}], [kept, kept]])
    num_hits = 0
    for stored in stores:
        with open_llm(
            checkpoint, max_num_batched_tokens=budget, max_num_seqs=min(4, budget),
            num_gpu_blocks_override=fewest + random.choice([0, 7, 300]), **stored, **options,
        ) as llm:  # fmt: skip
            found, num_cached = disturbed(llm, work, random)
            assert found == alone, f"seed {seed!r}"
            num_hits += num_cached
    return num_hits


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def model(family: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    case = next(case for case in HYBRID_CASES if case.name == family)
    return write_checkpoint(case, tmp_path_factory.mktemp("model")), prompt_of(case, 110)


@pytest.mark.sweep(4)
@pytest.mark.usefixtures("cpu_backend")
@pytest.mark.parametrize("trial", range(3))
def test_the_same_bits_whatever_happens(
    family: str, model: tuple[Path, list[int]], trial: int, tmp_path: Path
) -> None:
    seed = f"{family} {trial} {sweeps.seed() or 0}"
    check(*model, FAMILIES[family], seed, tmp_path)


@pytest.mark.long
@pytest.mark.usefixtures("cpu_backend")
def test_the_same_bits_in_many_trials(
    family: str, model: tuple[Path, list[int]], tmp_path: Path
) -> None:
    hits = [
        check(*model, FAMILIES[family], f"{family} {trial}", tmp_path / str(trial))
        for trial in range(22)
    ]
    assert sum(hits)
