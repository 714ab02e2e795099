"""Random requests on random models: with drafts of any kind, each has the bits that it has
without. They have any sampling parameters, grammars, calls of tools and budgets of reasoning."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sweeps
from random_params import BEGIN, REASONING, params_of
from tiny_checkpoint import write_tiny_checkpoint
from tiny_heads import MTP_MODELS, write_head, write_mtp_model
from wrong_drafts import Liar, Oracle

from quire import LLM, SamplingParams
from quire.core.engine_core import EngineCore
from quire.outputs import RequestOutput
from quire.scheduler.drafting.drafting import Drafting, RowCosts

NUM_REQUESTS = 40
LONGEST = 160
KINDS: dict[str, dict[str, Any]] = {
    "dense": {},
    "windows": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": True,
        "sliding_window": 24, "max_window_layers": 1,
    },
    "experts": {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 8,
        "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "mlp_only_layers": [],
    },
    "recurrent": {
        "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "conv_L_cache": 3,
        "layer_types": ["conv", "full_attention"], "block_multiple_of": 4, "norm_eps": 1e-5,
        "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": True, "conv_bias": False,
    },
    "latent": {
        "architectures": ["MiniCPM3ForCausalLM"], "model_type": "minicpm3", "kv_lora_rank": 28,
        "q_lora_rank": 22, "qk_nope_head_dim": 14, "qk_rope_head_dim": 8, "v_head_dim": 10,
        "num_key_value_heads": 4, "dim_model_base": 20, "scale_emb": 3, "scale_depth": 1.4,
    },
}  # fmt: skip
HEADS = "heads"
"""Key of the folder with EAGLE heads."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models of all kinds, and an EAGLE head for each."""
    folder = tmp_path_factory.mktemp("models")
    found = {name: write_tiny_checkpoint(folder / name, **own) for name, own in KINDS.items()}
    found |= {name: write_mtp_model(folder / name, name) for name in MTP_MODELS}
    for name, model in found.items():
        write_head(folder / HEADS / name, model, "eagle")
    return {**found, HEADS: folder / HEADS}


def requests(chance: random.Random) -> tuple[list[Any], list[SamplingParams]]:
    """Prompts that share beginnings; some repeat themselves, and some predict their replies."""
    base = [chance.randrange(250) for _ in range(90)]
    prompts: list[Any] = []
    for _ in range(NUM_REQUESTS):
        part = [chance.randrange(250) for _ in range(chance.randint(1, 9))]
        prompt = [*base[: chance.randrange(90)], *part * chance.randint(1, 3)][:100]
        if chance.random() < 0.2:
            prompt += [ord(char) - ord("!") for char in BEGIN]  # as the tiny tokenizer has them
        one: dict[str, Any] = {"prompt_token_ids": prompt}
        if chance.random() < 0.15:
            one["prediction"] = part * 4
        prompts.append(one)
    return prompts, [params_of(chance, number) for number in range(NUM_REQUESTS)]


def bits(outputs: list[RequestOutput]) -> list[Any]:
    return [
        (output.prompt_logprobs, [
            (one.token_ids, one.text, one.logprobs, one.finish_reason, one.stop_reason)
            for one in output.outputs
        ])
        for output in outputs
    ]  # fmt: skip


def open_llm(model: Path, **options: Any) -> LLM:
    return LLM(str(model), max_model_len=LONGEST, num_threads=1, disable_log_stats=False,
               reasoning_config=REASONING, **options)  # fmt: skip


def drafts_of(llm: LLM) -> tuple[float, float]:
    """Draft tokens, and those that were right."""
    values = {one.name: one.value for one in llm.get_metrics() if hasattr(one, "value")}
    name = "vllm:spec_decode_num_{}_tokens"
    return values[name.format("draft")], values[name.format("accepted")]


def check_round(
    models: dict[str, Path], seed: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[float, float]:
    """Compares `NUM_REQUESTS` requests. Returns the counts of draft tokens."""
    chance = random.Random(seed)
    kind = chance.choice([*KINDS, *MTP_MODELS])
    prompts, params = requests(chance)
    method = chance.choice(["ngram", "suffix", "model", "mtp", "eagle", "liar", "oracle"])
    if method == "oracle":  # it knows replies by their seeds
        for one in params:
            one.n = 1
    common = {"kv_cache_dtype": chance.choice(["auto", "auto", "int8"])}
    with open_llm(models[kind], speculation=False, **common) as llm:
        plain = [{"prompt_token_ids": one["prompt_token_ids"]} for one in prompts]
        wanted = bits(llm.generate(plain, params, use_tqdm=False))
        layout = llm.llm_engine.vllm_config.cache.layout
    budget = chance.choice([2, 16, 17, chance.randint(20, 70), 200, 512])
    fewest = layout.most_blocks(LONGEST, budget, 16)
    config: dict[str, Any] = {"num_speculative_tokens": chance.choice([1, 2, 5, 16, 32, 64])}
    if method == "suffix":
        config |= {"method": "suffix", "prompt_lookup_min": chance.randint(1, 4)}
    elif method == "mtp" and kind in MTP_MODELS:
        config["method"] = "mtp"
    elif method in ("mtp", "eagle"):
        config |= {"method": "eagle", "model": str(models[HEADS] / kind)}
    elif method == "model" and kind != "recurrent" and not kind.startswith("qwen"):
        config["model"] = str(models[chance.choice([kind, "dense"])])
    options: dict[str, Any] = {
        "speculative_config": config,
        "max_num_batched_tokens": budget,
        "max_num_seqs": min(budget, chance.choice([1, 4, 8, 40])),
        "num_gpu_blocks_override": fewest + chance.choice([0, 7, 300]),
        "enable_prefix_caching": chance.random() < 0.8,
        **common,
    }
    if chance.random() < 0.3 and options["enable_prefix_caching"]:
        options |= {"kv_store": True, "kv_store_path": str(folder), "kv_store_size": 64 << 20}
    if chance.random() < 0.7:
        monkeypatch.setattr(RowCosts, "seconds", lambda *_: 1.0)
    drafted = accepted = 0.0
    for _ in range(2 if "kv_store" in options else 1):
        with open_llm(models[kind], **options) as llm:
            scheduler = llm.llm_engine.engine_core.scheduler
            proposer = None
            if method == "liar":
                proposer = Liar()
            elif method == "oracle":
                replies = {number: list(one[1][0][0]) for number, one in enumerate(wanted)}
                proposer = Oracle(replies)
            if proposer is not None:
                own = scheduler.drafting
                scheduler.drafting = Drafting(own._config, own._look_ahead, proposer)
            found = bits(llm.generate(prompts, params, use_tqdm=False))
            more, right = drafts_of(llm)
            drafted, accepted = drafted + more, accepted + right
        different = [
            i for i, pair in enumerate(zip(found, wanted, strict=True)) if pair[0] != pair[1]
        ]
        assert not different, f"seed {seed!r}: {kind}, {method}, {options}"
    monkeypatch.undo()
    return drafted, accepted


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Checks the invariants of the scheduler after each step."""
    step = EngineCore.step

    def checked_step(core: EngineCore) -> Any:
        outputs = step(core)
        core.scheduler.check_integrity()
        return outputs

    with monkeypatch.context() as patch:
        patch.setattr(EngineCore, "step", checked_step)
        yield


@pytest.mark.usefixtures("checked")
def test_a_random_round(models: dict[str, Path], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        check_round(models, str(sweeps.seed() or 0), tmp_path, patch)


@pytest.mark.long
@pytest.mark.usefixtures("checked")
def test_five_thousand_random_requests(models: dict[str, Path], tmp_path: Path) -> None:
    drafted = accepted = 0.0
    for number in range(128):
        with pytest.MonkeyPatch.context() as patch:
            more, right = check_round(models, f"long {number}", tmp_path / str(number), patch)
        drafted, accepted = drafted + more, accepted + right
        print(f"{(number + 1) * NUM_REQUESTS} requests, {accepted:.0f} of {drafted:.0f} right")
    assert drafted > 20_000
    assert accepted > 2_000
