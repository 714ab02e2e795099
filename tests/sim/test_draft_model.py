"""A draft model proposes what it would write itself, greedily, and changes no bit of a reply."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import sweeps
from noted_drafts import noted_drafts
from tiny_checkpoint import write_tiny_checkpoint

from quire import LLM, SamplingParams
from quire.errors import ConfigError, DoesNotFitError, ModelNotFoundError
from quire.scheduler.drafting.drafting import RowCosts

LONGEST = 128


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model, and draft models of three kinds: the model itself, one with windows that mostly
    disagrees, and one with other tokens."""
    folder = tmp_path_factory.mktemp("models")
    small = {"num_hidden_layers": 1, "num_key_value_heads": 1, "hidden_size": 32}
    return {
        "target": write_tiny_checkpoint(folder / "target"),
        "other": write_tiny_checkpoint(folder / "other", 7, **small),
        "short": write_tiny_checkpoint(folder / "short", 8, max_position_embeddings=40, **small),
        "tokens": write_tiny_checkpoint(folder / "tokens", 9, vocab_size=300),
    }


def open_llm(model: Path, draft: Path | None, length: int = 5, **options: Any) -> LLM:
    if draft is None:
        options["speculation"] = False
    else:
        config = {"model": str(draft), "num_speculative_tokens": length}
        options["speculative_config"] = config
    return LLM(
        str(model), max_model_len=LONGEST, num_threads=1, disable_log_stats=False, **options
    )  # fmt: skip


def requests(seed: int) -> tuple[list[list[int]], list[SamplingParams]]:
    chance = random.Random(seed)
    base = [chance.randrange(250) for _ in range(70)]
    prompts, params = [], []
    for number in range(24):
        prompts.append([*base[: chance.randrange(70)], *range(chance.randint(1, 20))])
        params.append(
            SamplingParams(
                temperature=chance.choice([0, 0, 1.0]),
                seed=number,
                top_p=chance.choice([1.0, 0.9]),
                frequency_penalty=chance.choice([0.0, 0.5]),
                logprobs=chance.choice([None, 2]),
                max_tokens=chance.randint(1, 30),
                ignore_eos=True,
            )
        )
    return prompts, params


def replies(llm: LLM, seed: int) -> tuple[Any, float, float]:
    """What each request gets, and the numbers of draft tokens and accepted draft tokens."""
    outputs = llm.generate(*requests(seed), use_tqdm=False)
    llm.llm_engine.engine_core.scheduler.check_integrity()
    counts = {one.name: one.value for one in llm.get_metrics() if hasattr(one, "value")}
    name = "vllm:spec_decode_num_{}_tokens"
    drafted, accepted = (counts[name.format(kind)] for kind in ("draft", "accepted"))
    found = [
        (one.token_ids, one.logprobs, one.finish_reason)
        for output in outputs
        for one in output.outputs
    ]
    return found, drafted, accepted


@pytest.mark.parametrize("draft", ["target", "other", "short"])
@pytest.mark.parametrize(
    "options",
    [
        {"max_num_seqs": 1},
        {"max_num_seqs": 24},
        {"max_num_seqs": 8, "num_gpu_blocks_override": 12},
        {"max_num_seqs": 8, "max_num_batched_tokens": 16, "kv_cache_dtype": "int8"},
    ],
    ids=["alone", "company", "preempted", "chunks-int8"],
)
def test_the_same_bits(
    models: dict[str, Path], draft: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RowCosts, "seconds", lambda *_: 1.0)
    seed = sweeps.seed() or 0
    print(f"seed {seed}")
    with open_llm(models["target"], None, **options) as llm:
        wanted, drafted, _ = replies(llm, seed)
        assert not drafted
    with open_llm(models["target"], models[draft], **options) as llm:
        found, drafted, accepted = replies(llm, seed)
        assert found == wanted
        if draft != "short":
            assert drafted > 50
        if draft == "target":
            assert accepted > 0.1 * drafted
        assert replies(llm, seed)[0] == wanted, "with prefix hits"


@pytest.mark.parametrize("draft", ["target", "other"])
def test_it_proposes_what_it_writes_itself(
    models: dict[str, Path], draft: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was cached, rejected or preempted before."""
    monkeypatch.setattr(RowCosts, "seconds", lambda *_: 1.0)
    proposed = noted_drafts(monkeypatch)
    with open_llm(models["target"], models[draft], num_gpu_blocks_override=16) as llm:
        llm.generate(*requests(3), use_tqdm=False)
    assert len(proposed) > 50
    assert max(len(ids) for _, ids in proposed) == 5
    chosen = random.Random(1).sample(proposed, 40)
    with open_llm(models[draft], None) as llm:
        for text, ids in chosen:
            params = SamplingParams(temperature=0, max_tokens=len(ids), ignore_eos=True)
            [output] = llm.generate({"prompt_token_ids": text}, params, use_tqdm=False)
            assert list(output.outputs[0].token_ids) == ids


def test_kv_of_both_models_is_restored_from_the_store(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RowCosts, "seconds", lambda *_: 1.0)
    store = {"kv_store": True, "kv_store_path": str(tmp_path), "kv_store_size": 64 << 20}
    prompt = {"prompt_token_ids": [i % 251 for i in range(100)]}
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    found = []
    for _ in range(2):
        with open_llm(models["target"], models["target"], **store) as llm:
            [output] = llm.generate(prompt, params, use_tqdm=False)
            counts = {one.name: one.value for one in llm.get_metrics() if hasattr(one, "value")}
        drafted = counts["vllm:spec_decode_num_draft_tokens"]
        accepted = counts["vllm:spec_decode_num_accepted_tokens"]
        found.append((output.outputs[0].token_ids, drafted, accepted))
        assert accepted > 0.8 * drafted > 0
    assert found[0] == found[1]
    assert output.num_cached_tokens >= 64


def test_what_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    target = models["target"]
    with pytest.raises(ConfigError, match=r"it has 300 tokens and .*target has 288"):
        open_llm(target, models["tokens"])
    with pytest.raises(ModelNotFoundError, match=r"speculative_config\.model"):
        open_llm(target, tmp_path / "missing")
    with pytest.raises(ConfigError, match="from 1 to 128, not 129"):
        open_llm(target, models["other"], 129)
    with pytest.raises(ConfigError, match="pipeline_parallel_size=2 divides the layers"):
        open_llm(target, models["other"], pipeline_parallel_size=2)
    large = write_tiny_checkpoint(
        tmp_path / "large", intermediate_size=4096, num_hidden_layers=8, hidden_size=64
    )
    with LLM(str(target), max_model_len=LONGEST, num_threads=1, speculation=False) as llm:
        own = llm.llm_engine.vllm_config.cache.block_bytes
    assert own
    with pytest.raises(DoesNotFitError, match=r"draft model .* has a part in this: its weights"):
        open_llm(target, large, gpu_memory_utilization=1e-4)
