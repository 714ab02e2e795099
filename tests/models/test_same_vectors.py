"""Vectors and classes of decoders: each way to pool gives the same bits alone, in company, cut into
chunks, preempted, after a prefix hit, from the KV store, with an adapter and on two ranks."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from adapter_files import write_random_adapter
from hybrid_cases import HYBRID_CASES
from model_cases import CASES, Case, prompt_of, write_checkpoint

from quire import LLM
from quire.adapters.request import LoRARequest
from quire.planning import choices
from quire.protocol.pooling_params import PoolingParams

MODELS = {
    case.name: case
    for case in (*CASES, *HYBRID_CASES)
    if case.name in ("qwen3-biases", "mistral-window", "gemma3", "qwen3.5", "lfm2", "minicpm3")
}
VECTORS: dict[str, dict[str, Any]] = {
    "cls": {"pooling_type": "CLS"},
    "last": {"pooling_type": "LAST"},
    "mean": {"pooling_type": "MEAN"},
    "tokens": {"task": "token_embed"},
    "columns": {"task": "token_embed", "returned_token_ids": [3, 1]},
    "steps": {"task": "token_embed", "tok_pooling_type": "STEP", "step_tag_id": 5},
}
CLASSES: dict[str, dict[str, Any]] = {
    "cls": {"pooling_type": "CLS"},
    "last": {},
    "mean": {"pooling_type": "MEAN"},
    "tokens": {"task": "token_classify"},
    "steps": {"task": "token_classify", "step_tag_id": 5, "returned_token_ids": [2, 0]},
}


def engine(directory: Path, pooler: dict[str, Any], **options: Any) -> LLM:
    return LLM(
        str(directory), skip_tokenizer_init=True, dtype="float32", runner="pooling",
        pooler_config=pooler, max_model_len=128, num_threads=1, **options,
    )  # fmt: skip


def bits(llm: LLM, prompts: list[list[int]], lora: LoRARequest | None = None) -> list[bytes]:
    task = llm.supported_tasks[0]
    found = llm.encode(prompts, pooling_task=task, use_tqdm=False, lora_request=lora)
    return [_bits_of(one) for one in found]


def _bits_of(output: Any) -> bytes:
    array = np.asarray(output.outputs.data)
    return repr(array.shape).encode() + array.tobytes()


def prompts_of(case: Case) -> list[list[int]]:
    """Texts that begin alike, of which some are longer than a step."""
    base = prompt_of(case, 100)
    return [base, base[:64], [*base[:70], 5], [*base[:33], 7, 5, 5], [9, *base[:50]], base[:80]]


def check(directory: Path, case: Case, pooler: dict[str, Any], tmp_path: Path) -> None:
    """Texts that need all their rows are computed whole, so that a step must have room for them."""
    prompts = prompts_of(case)
    with engine(directory, pooler, enable_prefix_caching=False) as llm:
        truth = [bits(llm, [prompt])[0] for prompt in prompts]
        assert bits(llm, prompts) == truth
        assert len(set(truth)) > 1
        layout = llm.llm_engine.vllm_config.cache.layout
    needs_all = pooler.get("pooling_type", "LAST") != "LAST" or "task" in pooler
    stored: dict[str, Any] = {"kv_store": True, "kv_store_path": str(tmp_path / "store")}
    for budget in (128, 256) if needs_all else (23, 256):
        sizes = {
            "max_num_batched_tokens": budget, "max_num_seqs": 4,
            "num_gpu_blocks_override": layout.most_blocks(128, budget, 16) + 2,
        }  # fmt: skip
        for _ in range(2):  # the second engine finds what the first one stored
            with engine(directory, pooler, **sizes, **stored) as llm:
                for _ in range(2):
                    assert bits(llm, prompts) == truth
                    assert bits(llm, prompts[::-1]) == truth[::-1]


@pytest.mark.sweep(4)
@pytest.mark.parametrize("pooler", VECTORS.values(), ids=VECTORS)
@pytest.mark.parametrize("case", MODELS.values(), ids=str)
def test_vectors(case: Case, pooler: dict[str, Any], tmp_path: Path) -> None:
    check(write_checkpoint(case, tmp_path / "model"), case, pooler, tmp_path)


@pytest.mark.parametrize("kind", ["CLS", "LAST", "MEAN"])
@pytest.mark.parametrize("name", ["qwen3-biases", "lfm2"])
def test_vectors_of_tokens_of_an_embedder(name: str, kind: str, tmp_path: Path) -> None:
    """They are those of an engine for them, whatever else a step has, and in chunks too."""
    case = MODELS[name]
    directory, pooler = write_checkpoint(case, tmp_path / "model"), {"pooling_type": kind}
    prompts = prompts_of(case)
    with engine(directory, VECTORS["tokens"]) as llm:
        truth = {"token_embed": bits(llm, prompts)}
    with engine(directory, pooler, enable_prefix_caching=False) as llm:
        truth["embed"] = bits(llm, prompts)
        layout = llm.llm_engine.vllm_config.cache.layout
    stored: dict[str, Any] = {"kv_store": True, "kv_store_path": str(tmp_path / "store")}
    for budget in (23, 256) if kind == "LAST" else (128,):
        blocks = layout.most_blocks(128, budget, 16) + 2
        with engine(directory, pooler, max_num_batched_tokens=budget, max_num_seqs=4,
                    num_gpu_blocks_override=blocks, **stored) as llm:  # fmt: skip
            core, found = llm.llm_engine, {}
            for number, task in product(range(len(prompts)), truth):
                prompt = {"prompt_token_ids": prompts[number]}
                core.add_request(f"{number}.{task}", prompt, PoolingParams(task=task))
            for step in range(300):
                found |= {one.request_id: _bits_of(one) for one in core.step()}
                if step in (1, 4, 8):
                    assert llm.reset_prefix_cache(reset_running_requests=True)
                if not core.has_unfinished_requests():
                    break
            for task, wanted in truth.items():
                assert [found[f"{number}.{task}"] for number in range(len(prompts))] == wanted
            assert bits(llm, prompts) == truth["embed"]


@pytest.mark.sweep(3)
@pytest.mark.parametrize("pooler", CLASSES.values(), ids=CLASSES)
def test_classes(pooler: dict[str, Any], tmp_path: Path) -> None:
    case = MODELS["qwen3-biases"]
    check(_classifier(case, tmp_path / "model"), case, pooler, tmp_path)


def _classifier(case: Case, directory: Path) -> Path:
    torch.manual_seed(5)
    config = case.config_class(**case.settings, num_labels=3)
    transformers.Qwen3ForSequenceClassification(config).save_pretrained(directory)
    return directory


@pytest.mark.parametrize("kind", ["CLS", "LAST", "MEAN"])
def test_vectors_of_tokens_with_adapters(kind: str, tmp_path: Path) -> None:
    case, directory = MODELS["qwen3-biases"], tmp_path / "model"
    torch.manual_seed(5)
    transformers.Qwen3Model(case.config_class(**case.settings)).save_pretrained(directory)
    lora = LoRARequest("other", 1, str(write_random_adapter(tmp_path / "a", directory, seed=3)))
    prompts = prompts_of(case)[:3]
    with engine(directory, VECTORS["tokens"], enable_lora=True) as llm:
        truth = {("token_embed", one): bits(llm, prompts, one) for one in (None, lora)}
    with engine(directory, {"pooling_type": kind}, enable_lora=True) as llm:
        truth |= {("embed", one): bits(llm, prompts, one) for one in (None, lora)}
        names = list(product(truth, range(len(prompts))))
        for number, ((task, one), place) in enumerate(names):
            prompt, params = {"prompt_token_ids": prompts[place]}, PoolingParams(task=task)
            llm.llm_engine.add_request(str(number), prompt, params, lora_request=one)
        found: dict[str, bytes] = {}
        while llm.llm_engine.has_unfinished_requests():
            found |= {one.request_id: _bits_of(one) for one in llm.llm_engine.step()}
    wanted = [truth[key][place] for key, place in names]
    assert [found[str(number)] for number in range(len(names))] == wanted
    assert all(truth[task, None] != truth[task, lora] for task in ("embed", "token_embed"))


@pytest.mark.parametrize("pooler", [CLASSES["cls"], CLASSES["last"], CLASSES["tokens"]], ids=str)
def test_with_adapters(pooler: dict[str, Any], tmp_path: Path) -> None:
    """Texts with an adapter and without one begin alike, and share no K/V."""
    case = MODELS["qwen3-biases"]
    directory = _classifier(case, tmp_path / "model")
    lora = LoRARequest("other", 1, str(write_random_adapter(tmp_path / "a", directory, seed=3)))
    prompts = prompts_of(case)
    with engine(directory, pooler, enable_prefix_caching=False, enable_lora=True) as llm:
        truth = {one: [bits(llm, [prompt], one)[0] for prompt in prompts] for one in (None, lora)}
    assert truth[None] != truth[lora]
    with engine(directory, pooler, enable_lora=True, max_num_batched_tokens=128, max_num_seqs=4,
                num_gpu_blocks_override=20) as llm:  # fmt: skip
        for chosen in (None, lora, lora, None):
            assert bits(llm, prompts, chosen) == truth[chosen]


@pytest.mark.parametrize("sizes", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}])
@pytest.mark.parametrize("name", ["qwen3.5", "mistral-window"])
@pytest.mark.long
def test_on_two_ranks(name: str, sizes: dict[str, int], tmp_path: Path) -> None:
    case = MODELS[name]
    directory = write_checkpoint(case, tmp_path / "model")
    prompts = prompts_of(case)
    for pooler in (VECTORS["cls"], VECTORS["last"], VECTORS["mean"]):
        with engine(directory, pooler, enable_prefix_caching=False) as llm:
            truth = [bits(llm, [prompt])[0] for prompt in prompts]
        with engine(directory, VECTORS["tokens"]) as llm:
            tokens = bits(llm, prompts)
        with engine(directory, pooler, max_num_batched_tokens=128, max_num_seqs=4,
                    kv_cache_memory_bytes=1 << 20, **sizes) as llm:  # fmt: skip
            for _ in range(2):
                assert bits(llm, prompts) == truth
            if pooler is VECTORS["mean"] and "tensor_parallel_size" in sizes:
                assert llm.supported_tasks == ("embed",)
                continue
            found = llm.encode(prompts, pooling_task="token_embed", use_tqdm=False)
            assert [_bits_of(one) for one in found] == tokens


def test_what_a_text_needs_whole_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(choices.logger, "warning", lambda text, *own: logged.append(text % own))
    directory = write_checkpoint(MODELS["qwen3-biases"], tmp_path)
    with engine(directory, VECTORS["cls"], enable_prefix_caching=True) as llm:
        assert not llm.llm_engine.vllm_config.cache.enable_prefix_caching
    wanted = "enable_prefix_caching is off: this model needs all tokens of a text in one step"
    assert wanted in logged


@pytest.mark.parametrize("name", ["qwen3-biases", "lfm2"])
def test_preempted(name: str, tmp_path: Path) -> None:
    """A long text loses what two steps have computed, and starts again."""
    case = MODELS[name]
    directory = write_checkpoint(case, tmp_path / "model")
    prompts = prompts_of(case)
    for pooler in (VECTORS["cls"], VECTORS["last"], VECTORS["tokens"]):
        with engine(directory, pooler, enable_prefix_caching=False) as llm:
            truth = [bits(llm, [prompt])[0] for prompt in prompts]
        budget = 23 if pooler is VECTORS["last"] else 128
        with engine(directory, pooler, max_num_batched_tokens=budget, max_num_seqs=4,
                    disable_log_stats=False) as llm:  # fmt: skip
            found: dict[str, bytes] = {}
            core = llm.llm_engine
            for number, prompt in enumerate(prompts):
                params = PoolingParams(task=llm.supported_tasks[0])
                core.add_request(str(number), {"prompt_token_ids": prompt}, params)
            for step in range(200):
                for one in core.step():
                    found[one.request_id] = _bits_of(one)
                if step in (1, 4, 8):
                    assert llm.reset_prefix_cache(reset_running_requests=True)
                if not core.has_unfinished_requests():
                    break
            assert [found[str(number)] for number in range(len(prompts))] == truth
            counts = [one for one in llm.get_metrics() if one.name == "vllm:num_preemptions"]
            assert budget == 128 or counts[0].value > 0
