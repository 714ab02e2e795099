"""Encoders and pooled decoders of every family, tiny and random, against transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import flash_encoders
import numpy as np
import pytest
import torch
import transformers
from jina_bert import states, write_jina_bert
from model_harness import each_case
from numpy.typing import NDArray
from tiny_encoder import write_encoder

from quire import LLM
from quire.adapters import LoRARequest
from quire.errors import ConfigError, UnsupportedModelError
from quire.protocol.pooling_params import PoolingParams

Floats = NDArray[np.float32]

_ENCODER = {
    "vocab_size": 131, "hidden_size": 60, "num_hidden_layers": 3, "num_attention_heads": 5,
    "intermediate_size": 74, "max_position_embeddings": 150, "initializer_range": 0.2,
    "pad_token_id": 1,
}  # fmt: skip
_DECODER = {**_ENCODER, "num_key_value_heads": 1, "bos_token_id": None, "eos_token_id": None}
_DISTIL = {
    "vocab_size": 131, "dim": 60, "n_layers": 3, "n_heads": 5, "hidden_dim": 74,
    "max_position_embeddings": 150, "initializer_range": 0.2,
}  # fmt: skip
_ROTARY = {"rope_parameters": {"rope_type": "default", "rope_theta": 700.0}}


@dataclass(frozen=True)
class Case:
    """A checkpoint, its name in test ids, and how its vectors are pooled by default."""

    name: str
    model: str
    settings: Mapping[str, Any] = field(hash=False, default_factory=lambda: _ENCODER)
    pooling: str = "cls"
    labels: int = 0

    def __str__(self) -> str:
        return self.name


CASES = [
    Case("bert", "BertModel"),
    Case("bert-relu", "BertModel", {**_ENCODER, "hidden_act": "relu"}),
    Case("roberta", "RobertaModel", {**_ENCODER, "type_vocab_size": 1}),
    Case("xlm-roberta", "XLMRobertaModel"),
    Case("distilbert", "DistilBertModel", _DISTIL),
    Case("mpnet", "MPNetModel"),
    Case(
        "mpnet-odd",
        "MPNetModel",
        {**_ENCODER, "pad_token_id": 5, "relative_attention_num_buckets": 64},
    ),
    Case("modernbert", "ModernBertModel", {**_ENCODER, "local_attention": 20, "cls_token_id": 0}),
    Case("nomic", "NomicBertModel", {**_ENCODER, **_ROTARY}),
    Case("nomic-wide-heads", "NomicBertModel", {**_ENCODER, **_ROTARY, "head_dim": 16}),
    Case("gte", "GteModel", {**_ENCODER, **_ROTARY, "type_vocab_size": 2}),
    Case("jina-v3", "JinaEmbeddingsV3Model", {**_ENCODER, **_ROTARY}),
    Case("eurobert", "EuroBertModel", {**_DECODER, "mask_token_id": 3}),
    Case(
        "embedding-gemma",
        "Gemma3TextModel",
        {**_DECODER, "head_dim": 12, "sliding_window": 21, "use_bidirectional_attention": True},
        pooling="last",
    ),
    Case("qwen3-embedding", "Qwen3Model", {**_DECODER, "head_dim": 12}, pooling="last"),
    Case("llama", "LlamaModel", _DECODER, pooling="last"),
    Case("bert-classes", "BertForSequenceClassification", labels=3),
    Case("bert-score", "BertForSequenceClassification", labels=1),
    Case("roberta-classes", "RobertaForSequenceClassification", labels=3),
    Case("distilbert-classes", "DistilBertForSequenceClassification", _DISTIL, labels=3),
    Case("mpnet-classes", "MPNetForSequenceClassification", labels=3),
    Case(
        "modernbert-classes",
        "ModernBertForSequenceClassification",
        {**_ENCODER, "cls_token_id": 0, "classifier_pooling": "mean"},
        labels=3,
    ),
    Case("qwen2-classes", "Qwen2ForSequenceClassification", _DECODER, labels=3),
    Case("gte-score", "GteForSequenceClassification", {**_ENCODER, **_ROTARY}, labels=1),
    Case("nomic-classes", "NomicBertForSequenceClassification", {**_ENCODER, **_ROTARY}, labels=3),
    Case(
        "jina-v3-classes",
        "JinaEmbeddingsV3ForSequenceClassification",
        {**_ENCODER, **_ROTARY},
        labels=3,
    ),
    Case("qwen3-tokens", "Qwen3ForTokenClassification", {**_DECODER, "head_dim": 12}, labels=4),
    Case("gemma3-classes", "Gemma3TextForSequenceClassification", {**_DECODER, "head_dim": 12},
         labels=3),
    Case("gpt2-classes", "GPT2ForSequenceClassification", {
        "vocab_size": 131, "n_embd": 60, "n_layer": 3, "n_head": 5, "n_positions": 150,
        "initializer_range": 0.2, "pad_token_id": 1,
    }, labels=3),
    *(
        Case(f"eurobert-{pooling}", "EuroBertForSequenceClassification",
             {**_DECODER, "mask_token_id": 3, "classifier_pooling": pooling}, labels=3)
        for pooling in ("late", "bos", "mean")
    ),
    Case("eurobert-tokens", "EuroBertForTokenClassification", {**_DECODER, "mask_token_id": 3},
         labels=4),
    Case("bert-tokens", "BertForTokenClassification", labels=4),
    Case("roberta-tokens", "RobertaForTokenClassification", labels=4),
]  # fmt: skip

LENGTHS = (3, 40, 75, 1, 17)


case = each_case(CASES)


def texts() -> list[list[int]]:
    random = np.random.default_rng(7)
    return [random.integers(2, 131, length).tolist() for length in LENGTHS]


def made(case: Case, directory: Path) -> torch.nn.Module:
    """A model whose every weight is random, also those that transformers sets to 0 or 1, and its
    checkpoint."""
    torch.manual_seed(len(case.name))
    model_class = getattr(transformers, case.model)
    extra = {"num_labels": case.labels} if case.labels else {}
    config = model_class.config_class(**case.settings, **extra)
    model = model_class(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
            elif "embeddings" in name or "embed_tokens" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.5)
    model.save_pretrained(directory)
    return model


def wanted(case: Case, model: torch.nn.Module, token_ids: list[int], pooling: str) -> Floats:
    """What transformers computes of a text."""
    with torch.no_grad():
        output = model(input_ids=torch.tensor([token_ids]))
    if case.labels:
        return output.logits[0].numpy()
    states = output.last_hidden_state[0].numpy()
    pool: dict[str, Callable[[], Floats]] = {
        "cls": lambda: states[0],
        "last": lambda: states[-1],
        "mean": lambda: states.mean(axis=0),
        "all": lambda: states,
    }
    return pool[pooling]()


def distance(found: Floats, truth: Floats) -> float:
    """1 less the cosine, of the rows with the largest."""
    a, b = (np.atleast_2d(one).astype(np.float64) for one in (found, truth))
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float((1 - (a * b).sum(axis=1) / lengths).max())


def results(llm: LLM, prompts: list[list[int]], **params: Any) -> list[Floats]:
    """What the engine gives, without an activation."""
    task = llm.supported_tasks[0]
    given = PoolingParams(use_activation=False, **params)
    found = llm.encode(prompts, given, pooling_task=task, use_tqdm=False)
    return [one.outputs.data for one in found]


@pytest.mark.sweep(12)
def test_vectors_and_classes(case: Case, tmp_path: Path) -> None:
    """As transformers has them; and the same bits alone, in company and on one thread."""
    model, prompts = made(case, tmp_path), texts()
    options: dict[str, Any] = {"skip_tokenizer_init": True, "dtype": "float32"}
    with LLM(str(tmp_path), num_threads=2, **options) as llm:
        assert llm.runner_type == "pooling"
        together = results(llm, prompts)
        for text, found in zip(prompts, together, strict=True):
            truth = wanted(case, model, text, case.pooling)
            assert found.shape == truth.shape
            assert distance(found, truth) <= 1e-5
            assert np.abs(found - truth).max() <= 1e-4 * max(1.0, float(np.abs(truth).max()))
            assert results(llm, [text])[0].tobytes() == found.tobytes()
    with LLM(str(tmp_path), num_threads=1, **options) as llm:
        assert [one.tobytes() for one in results(llm, prompts)] == [
            one.tobytes() for one in together
        ]


@pytest.mark.sweep(6)
def test_vectors_on_an_emulated_gpu(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As transformers has them; and the same bits alone and in company."""
    monkeypatch.setenv("QUIRE_CUDA_EMULATED", "1")
    model, prompts = made(case, tmp_path), texts()[1:]
    options: dict[str, Any] = {"skip_tokenizer_init": True, "dtype": "float32"}
    with LLM(str(tmp_path), device="cuda", max_num_seqs=4, **options) as llm:
        together = results(llm, prompts)
        for text, found in zip(prompts, together, strict=True):
            assert distance(found, wanted(case, model, text, case.pooling)) <= 1e-5
            assert results(llm, [text])[0].tobytes() == found.tobytes()


@pytest.mark.parametrize("pooling", ["mean", "all"])
def test_other_poolings(pooling: str, tmp_path: Path) -> None:
    """The engine's argument decides; the reference computes the same."""
    bert = CASES[0]
    model, prompts = made(bert, tmp_path), texts()
    config = {"task": "token_embed"} if pooling == "all" else {"pooling_type": "MEAN"}
    for backend in ("cpu", "reference"):
        with LLM(
            str(tmp_path), skip_tokenizer_init=True, dtype="float32", pooler_config=config,
            backend=backend,
        ) as llm:  # fmt: skip
            for text, found in zip(prompts, results(llm, prompts), strict=True):
                assert distance(found, wanted(bert, model, text, pooling)) <= 1e-5


def test_chunks_and_prefixes_change_no_bit(tmp_path: Path) -> None:
    """A causal embedder computes long texts in pieces, and what texts have in common once."""
    decoder = next(case for case in CASES if case.name == "qwen3-embedding")
    made(decoder, tmp_path)
    long = texts()[2]
    options: dict[str, Any] = {"skip_tokenizer_init": True, "dtype": "float32"}
    with LLM(str(tmp_path), **options) as llm:
        [whole] = results(llm, [long])
        again = llm.encode([[*long[:70], 5]], pooling_task="embed", use_tqdm=False)
        assert again[0].num_cached_tokens == 64
        assert results(llm, [long])[0].tobytes() == whole.tobytes()
    with LLM(str(tmp_path), max_num_batched_tokens=13, max_num_seqs=4, **options) as llm:
        assert results(llm, [long])[0].tobytes() == whole.tobytes()


def test_segments(tmp_path: Path) -> None:
    """Tokens of a pair have the types that the prompt says."""
    model = made(CASES[0], tmp_path)
    text = texts()[1]
    types = [0] * 12 + [1] * (len(text) - 12)
    with torch.no_grad():
        truth = model(
            input_ids=torch.tensor([text]), token_type_ids=torch.tensor([types])
        ).last_hidden_state[0, 0].numpy()  # fmt: skip
    with LLM(str(tmp_path), skip_tokenizer_init=True, dtype="float32") as llm:
        prompt = {"prompt_token_ids": text, "token_type_ids": types}
        found = llm.encode(
            [texts()[2], prompt], PoolingParams(use_activation=False), pooling_task="embed",
            use_tqdm=False,
        )  # fmt: skip
        assert distance(found[1].outputs.data, truth) <= 1e-5


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize(
    ("write", "states"),
    [(write_jina_bert, states), (flash_encoders.write_nomic, flash_encoders.states)],
    ids=["jina-bert-2", "nomic-2"],
)
def test_families_without_code_in_transformers(
    write: Any, states: Any, backend: str, tmp_path: Path
) -> None:
    """ALiBi in both directions; experts without a gate, and a bias of their sum: alone and in
    company."""
    tensors, prompts = write(tmp_path), texts()
    with LLM(
        str(tmp_path), skip_tokenizer_init=True, dtype="float32", backend=backend,
        pooler_config={"pooling_type": "MEAN"},
    ) as llm:  # fmt: skip
        found = results(llm, prompts)
        for text, vector in zip(prompts, found, strict=True):
            assert distance(vector, states(tensors, text).mean(axis=0)) <= 1e-5
        assert results(llm, [prompts[1]])[0].tobytes() == found[1].tobytes()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prenorm": True}, "prenorm is true; supported is false"),
        ({"rotary_emb_interleaved": True}, "rotary_emb_interleaved is true; supported is false"),
        ({"num_experts": 0, "activation_function": "gelu"}, "activation_function 'gelu' is not"),
    ],
)
def test_settings_of_nomic(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    """A part of each head is rotated; settings that would change the vectors are refused."""
    options: dict[str, Any] = {"skip_tokenizer_init": True, "dtype": "float32"}
    text = texts()[1]
    tensors = flash_encoders.write_nomic(tmp_path, rotary_emb_fraction=0.5)
    with LLM(str(tmp_path), pooler_config={"pooling_type": "MEAN"}, **options) as llm:
        truth = flash_encoders.states(tensors, text, part=0.5).mean(axis=0)
        assert distance(results(llm, [text])[0], truth) <= 1e-5
    flash_encoders.write_nomic(tmp_path, **settings)
    with pytest.raises(UnsupportedModelError, match=message):
        LLM(str(tmp_path), **options)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"logn_attention_scale": True}, "logn_attention_scale is true; supported is false"),
        (
            {"rope_scaling": {"type": "ntk", "factor": 2.0, "mixed_b": 0.5}},
            "mixed_b is not supported",
        ),
    ],
)
def test_settings_of_gte(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Settings that would change the vectors are refused."""
    write_encoder(tmp_path, "NewModel", **settings)
    with pytest.raises(UnsupportedModelError, match=message):
        LLM(str(tmp_path), load_format="dummy")


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_jina_3_with_its_tasks(backend: str, tmp_path: Path) -> None:
    """Texts of all tasks in one step, and texts without an adapter, have the vectors of a model
    with the task's matrices, and the bits that they have alone."""
    by_task, prompts = flash_encoders.write_jina(tmp_path), texts()
    with LLM(
        str(tmp_path), skip_tokenizer_init=True, dtype="float32", backend=backend,
        pooler_config={"pooling_type": "MEAN"}, enable_lora=True, max_loras=4,
    ) as llm:  # fmt: skip
        requests = [None, *(
            LoRARequest(task, index + 1, f"{tmp_path}/{task}")
            for index, task in enumerate(flash_encoders.TASKS)
        )]  # fmt: skip
        pairs = [(text, request) for text in prompts for request in requests]
        given = PoolingParams(use_activation=False)

        def vectors(chosen: list[Any]) -> list[Floats]:
            found = llm.encode([text for text, _ in chosen], given, pooling_task="embed",
                               lora_request=[one for _, one in chosen], use_tqdm=False)  # fmt: skip
            return [one.outputs.data for one in found]

        found = vectors(pairs)
        for (text, request), vector in zip(pairs, found, strict=True):
            tensors = by_task[None if request is None else request.lora_name]
            assert distance(vector, flash_encoders.states(tensors, text).mean(axis=0)) <= 1e-5
        for index in (0, 5, 10):
            assert vectors([pairs[index]])[0].tobytes() == found[index].tobytes()
        with pytest.raises(ConfigError, match=r"has no task 'poetry'; it has 'retrieval\.query'"):
            llm.llm_engine.add_lora(LoRARequest("poetry", 9, f"{tmp_path}/poetry"))
