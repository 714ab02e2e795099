"""Modules and settings in the files of sentence-transformers: vectors like those of the same
steps in NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from pooling_checkpoints import TEXTS, WORDS, Floats, bert, modules, states, unit, write
from safetensors.numpy import save_file

from quire import LLM
from quire.errors import CheckpointError, ConfigError, RequestError, UnsupportedModelError
from quire.protocol.pooling_params import LateChunkingParams, PoolingParams


def test_dense_layers_prompts_and_dimensions(tmp_path: Path) -> None:
    """Mean, a dense layer with tanh, a prompt by default, and vectors that may be shortened."""
    model = bert(tmp_path)
    modules(tmp_path, "Pooling", "Dense", "Normalize")
    write(tmp_path / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    write(
        tmp_path / "2_Dense" / "config.json",
        {"in_features": 32, "out_features": 12, "bias": True,
         "activation_function": "torch.nn.modules.activation.Tanh"},
    )  # fmt: skip
    random = np.random.default_rng(1)
    weight = random.normal(size=(12, 32)).astype(np.float32)
    bias = random.normal(size=12).astype(np.float32)
    save_file(
        {"linear.weight": weight, "linear.bias": bias}, tmp_path / "2_Dense" / "model.safetensors"
    )
    write(
        tmp_path / "config_sentence_transformers.json",
        {"prompts": {"query": "query : ", "document": ""}, "default_prompt_name": "query"},
    )

    def wanted(text: str, size: int = 12) -> Floats:
        pooled = states(model, tmp_path, text).mean(axis=0)
        return unit(np.tanh(weight @ pooled + bias)[:size])

    options = {"dtype": "float32", "hf_overrides": {"matryoshka_dimensions": [4, 12]}}
    with LLM(str(tmp_path), **options) as llm:  # type: ignore[arg-type]
        for text, found in zip(TEXTS, llm.embed(TEXTS, use_tqdm=False), strict=True):
            assert np.allclose(found.outputs.embedding, wanted("query : " + text), atol=2e-6)
        short = PoolingParams(dimensions=4, prompt_name="document")
        [found] = llm.embed(TEXTS[:1], pooling_params=short, use_tqdm=False)
        assert np.allclose(found.outputs.embedding, wanted(TEXTS[0], 4), atol=2e-6)
        with pytest.raises(RequestError, match=r"only supports Matryoshka dimensions \[4, 12\]"):
            llm.embed("a", pooling_params=PoolingParams(dimensions=5), use_tqdm=False)
        with pytest.raises(RequestError, match="prompt_name must be one of the model's: document"):
            llm.embed("a", pooling_params=PoolingParams(prompt_name="other"), use_tqdm=False)
        with pytest.raises(RequestError, match=r"contains 26 input tokens.*truncate_prompt_tokens"):
            llm.embed("a " * 22, use_tqdm=False)
        [plain, short] = llm.encode(
            TEXTS[:1] * 2,
            [PoolingParams(prompt_name="document"), short],
            pooling_task="token_embed",
            use_tqdm=False,
        )
        rows = np.tanh(states(model, tmp_path, TEXTS[0]) @ weight.T + bias)
        for tokens, size in ((plain, 12), (short, 4)):
            truth = rows[:, :size] / np.linalg.norm(rows[:, :size], axis=1, keepdims=True)
            assert np.allclose(tokens.outputs.data, truth, atol=2e-6)
        chunked = PoolingParams(late_chunking_params=LateChunkingParams(2))
        with pytest.raises(RequestError, match="dense layers without activations"):
            llm.encode("a", chunked, pooling_task="token_embed", use_tqdm=False)
        cut = llm.embed(
            "a " * 60, use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": -1}
        )
        assert len(cut[0].prompt_token_ids) == 24
        assert cut[0].prompt_token_ids[-1] == WORDS.index("[SEP]")
    options["pooler_config"] = {"task": "token_embed"}
    with LLM(str(tmp_path), **options) as llm:  # type: ignore[arg-type]
        document = PoolingParams(prompt_name="document")
        [same] = llm.encode(TEXTS[0], document, pooling_task="token_embed", use_tqdm=False)
        assert same.outputs.data.tobytes() == plain.outputs.data.tobytes()


@pytest.mark.parametrize(
    ("kinds", "pooling", "message"),
    [
        (("Pooling",), {"pooling_mode_max_tokens": True}, "pooling"),
        (("Pooling",), {"pooling_mode": ["cls", "mean"]}, "pooling"),
        (("Pooling", "LSTM"), {"pooling_mode": "cls"}, "module 'LSTM' is not supported"),
        (("Pooling", "Normalize", "Dense"), {}, "Pooling, Normalize, Dense are not supported in"),
        (("Dense", "Pooling"), {}, "Transformer, Dense, Pooling are not supported in this order"),
        (("Pooling", "Pooling"), {}, "Pooling, Pooling are not supported in this order"),
        (("Dense",), {}, "Transformer, Dense are not supported in this order"),
        (
            ("Pooling",),
            {"pooling_mode": "mean", "include_prompt": False},
            "include_prompt is False; supported is True",
        ),
    ],
)
def test_other_modules_are_refused(
    kinds: tuple[str, ...], pooling: dict[str, Any], message: str, tmp_path: Path
) -> None:
    bert(tmp_path)
    modules(tmp_path, *kinds)
    write(tmp_path / "1_Pooling" / "config.json", pooling)
    write(tmp_path / "config_sentence_transformers.json", {"prompts": {"query": "query : "}})
    with pytest.raises(UnsupportedModelError, match=message):
        LLM(str(tmp_path))


@pytest.mark.parametrize(
    ("file", "settings", "message"),
    [
        ("2_Dense/config.json", {"use_residual": True}, "use_residual is True"),
        ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, "module_input_name"),
        ("2_Dense/config.json", {"activation_function": "own.Tanh"}, "activation_function"),
        ("3_Normalize/config.json", {"module_input_name": "token_embeddings"}, "module_input"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "transformer_task"),
        ("sentence_bert_config.json", {"modality_config": {"message": {}}}, "modality_config"),
        ("sentence_bert_config.json", {"config_args": {"is_causal": 1}}, "config_args has is_caus"),
        ("sentence_bert_config.json", {"tokenizer_args": {"add_eos_token": True}}, "tokenizer_arg"),
        (
            "sentence_bert_config.json",
            {"processing_kwargs": {"text": {"padding": True, "add_special_tokens": False}}},
            "processing_kwargs.text has add_special_tokens False",
        ),
    ],
)
def test_other_settings_of_modules_are_refused(
    file: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    bert(tmp_path)
    modules(tmp_path, "Pooling", "Dense", "Normalize")
    write(tmp_path / "1_Pooling" / "config.json", {"pooling_mode": "mean"})
    write(tmp_path / "2_Dense" / "config.json", {"in_features": 32, "out_features": 12})
    write(tmp_path / file, {"in_features": 32, "out_features": 12, **settings})
    with pytest.raises(UnsupportedModelError, match=f"{file}: {message}"):
        LLM(str(tmp_path))


def test_a_prompt_must_have_the_name_that_the_files_give(tmp_path: Path) -> None:
    bert(tmp_path)
    modules(tmp_path, "Pooling")
    write(tmp_path / "1_Pooling" / "config.json", {"pooling_mode": "mean"})
    settings = {"prompts": {"query": "a", "document": None}, "default_prompt_name": "other"}
    write(tmp_path / "config_sentence_transformers.json", settings)
    with pytest.raises(CheckpointError, match="'other' must be a name of prompts, which has query"):
        LLM(str(tmp_path))


def test_settings_of_the_files_hold(tmp_path: Path) -> None:
    """Lower case, the longest text by the tokenizer, the length of vectors, and a layer that does
    not name its activation, which then is tanh."""
    model = bert(tmp_path)
    modules(tmp_path, "Pooling", "Dense")
    write(tmp_path / "1_Pooling" / "config.json", {"pooling_mode": "mean"})
    write(tmp_path / "2_Dense" / "config.json", {"in_features": 32, "out_features": 12})
    random = np.random.default_rng(2)
    weight = random.normal(size=(12, 32)).astype(np.float32)
    bias = random.normal(size=12).astype(np.float32)
    save_file(
        {"linear.weight": weight, "linear.bias": bias}, tmp_path / "2_Dense" / "model.safetensors"
    )
    write(
        tmp_path / "tokenizer_config.json",
        {"tokenizer_class": "BertTokenizer", "do_lower_case": False, "model_max_length": 6},
    )
    write(tmp_path / "sentence_roberta_config.json", {"do_lower_case": True})
    write(
        tmp_path / "config_sentence_transformers.json",
        {"truncate_dim": 8, "prompts": {"query": "the "}, "default_prompt_name": "query"},
    )
    wanted = np.tanh(weight @ states(model, tmp_path, "the sky is").mean(axis=0) + bias)[:8]
    with LLM(str(tmp_path), dtype="float32") as llm:
        assert llm.model_config.max_model_len == 6
        found = llm.embed(["SKY Is", {"prompt": "SKY Is"}], use_tqdm=False)
        for one in found:
            assert np.allclose(one.outputs.embedding, wanted, atol=2e-5)


def test_the_engine_may_choose_the_length_of_vectors(tmp_path: Path) -> None:
    """`dimensions` of `pooler_config` is that of requests which name none."""
    bert(tmp_path)
    options: dict[str, Any] = {"dtype": "float32", "pooler_config": {"dimensions": 8}}
    with LLM(str(tmp_path), hf_overrides={"matryoshka_dimensions": [4, 8]}, **options) as llm:
        own = llm.embed("a", use_tqdm=False)[0].outputs.embedding
        given = PoolingParams(dimensions=8)
        assert llm.embed("a", pooling_params=given, use_tqdm=False)[0].outputs.embedding == own
        assert len(own) == 8
        short = PoolingParams(dimensions=4)
        [found] = llm.embed("a", pooling_params=short, use_tqdm=False)
        assert len(found.outputs.embedding) == 4
    with pytest.raises(ConfigError, match=r"pooler_config: Model .* does not support Matryoshka"):
        LLM(str(tmp_path), **options)


def test_an_embedder_of_messages_is_refused(tmp_path: Path) -> None:
    """sentence-transformers would apply the chat template to each text."""
    bert(tmp_path)
    modules(tmp_path, "Pooling")
    write(tmp_path / "1_Pooling" / "config.json", {"pooling_mode": "mean"})
    forward = {"method": "forward", "method_output_name": "last_hidden_state"}
    settings = {"modality_config": {"text": forward, "message": {**forward, "format": "flat"}}}
    write(tmp_path / "sentence_bert_config.json", settings)
    with pytest.raises(UnsupportedModelError, match="so that the chat template is applied to each"):
        LLM(str(tmp_path))


@pytest.mark.parametrize("given", ["asked", "files"])
def test_the_end_that_is_cut_off(given: str, tmp_path: Path) -> None:
    """A request names it, or else tokenizer_config.json; a pair's document is cut."""
    bert(tmp_path, "BertForSequenceClassification", num_labels=1)
    settings = {"tokenizer_class": "BertTokenizer", "truncation_side": "left"}
    options: dict[str, Any] = {"truncate_prompt_tokens": 6}
    if given == "asked":
        options["truncation_side"], settings["truncation_side"] = "left", "right"
    write(tmp_path / "tokenizer_config.json", settings)
    tokenizer = transformers.BertTokenizer(str(tmp_path / "vocab.txt"))
    with LLM(str(tmp_path)) as llm:
        [pair] = llm.score("the", "sky sea red", tokenization_kwargs=options, use_tqdm=False)
        [text] = llm.classify("a the sky sea red", tokenization_kwargs=options, use_tqdm=False)
    assert pair.prompt_token_ids == tokenizer("the", "sea red").input_ids
    assert text.prompt_token_ids == tokenizer("the sky sea red").input_ids


def test_columns_of_vectors_must_exist(tmp_path: Path) -> None:
    """A vector of 32 numbers has none for token 32; the first request ended the engine."""
    bert(tmp_path)
    pooler: dict[str, Any] = {"task": "token_embed", "returned_token_ids": [32]}
    with pytest.raises(ConfigError, match="must be less than the 32 numbers of a result, got 32"):
        LLM(str(tmp_path), pooler_config=pooler)
    pooler["returned_token_ids"] = [31]
    with LLM(str(tmp_path), pooler_config=pooler) as llm:
        [found] = llm.encode("a", pooling_task="token_embed", use_tqdm=False)
    assert found.outputs.data.shape == (3, 1)


def test_pieces_of_a_text_have_the_means_of_their_tokens(tmp_path: Path) -> None:
    bert(tmp_path)
    config = {"task": "token_embed"}
    chunked = PoolingParams(late_chunking_params=LateChunkingParams(2))
    with LLM(str(tmp_path), dtype="float32", pooler_config=config) as llm:  # type: ignore[arg-type]
        plain = PoolingParams(use_activation=False)
        [tokens, other] = llm.encode(
            TEXTS[:2], [plain, chunked], pooling_task="token_embed", use_tqdm=False
        )
        [same] = llm.encode(TEXTS[0], chunked, pooling_task="token_embed", use_tqdm=False)
        rows = tokens.outputs.data.astype(np.float64)
        wanted = [unit(rows[n : n + 2].mean(axis=0)) for n in range(0, len(rows), 2)]
        assert np.allclose(same.outputs.data, wanted, atol=1e-6)
        assert tokens.late_chunking is None
        assert other.late_chunking is not None
        assert len(other.late_chunking.chunks) == len(other.outputs.data)
        assert other.late_chunking.chunks[-1].token_range[1] == len(other.prompt_token_ids)
        with pytest.raises(RequestError, match=r"must be None in LLM\.score"):
            llm.score(TEXTS[0], TEXTS[1], pooling_params=chunked, use_tqdm=False)
    columns = {**config, "tok_pooling_type": "STEP", "returned_token_ids": [3, 1]}
    with LLM(str(tmp_path), dtype="float32", pooler_config=columns) as llm:  # type: ignore[arg-type]
        [found] = llm.encode(TEXTS[0], chunked, pooling_task="token_embed", use_tqdm=False)
        wanted = [unit(rows[n : n + 2, [3, 1]].mean(axis=0)) for n in range(0, len(rows), 2)]
        assert np.allclose(found.outputs.data, wanted, atol=1e-6)


def test_late_interaction(tmp_path: Path) -> None:
    """With a vector for each token a score is the sum of each query token's best product."""
    model = bert(tmp_path)
    config = {"task": "token_embed"}
    with LLM(str(tmp_path), dtype="float32", pooler_config=config) as llm:
        [found] = llm.score(TEXTS[0], TEXTS[1], use_tqdm=False)
    query, document = (states(model, tmp_path, text) for text in TEXTS[:2])
    query, document = (
        one / np.linalg.norm(one, axis=1, keepdims=True) for one in (query, document)
    )
    assert found.outputs.score == pytest.approx((query @ document.T).max(axis=1).sum(), abs=1e-5)


def test_the_heads_of_bge_m3(tmp_path: Path) -> None:
    """A vector for each token but the first, and a weight for each but the two around the text, by
    files of torch."""
    torch.manual_seed(9)
    config = transformers.XLMRobertaConfig(
        vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=40, max_position_embeddings=24, initializer_range=0.4,
    )  # fmt: skip
    model = transformers.XLMRobertaModel(config).eval()
    model.save_pretrained(tmp_path)
    heads = {"colbert_linear": torch.nn.Linear(32, 32), "sparse_linear": torch.nn.Linear(32, 1)}
    for name, head in heads.items():
        torch.save(head.state_dict(), tmp_path / f"{name}.pt")
    ids = [0, 7, 8, 9, 2]
    with torch.no_grad():
        hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        vectors = torch.nn.functional.normalize(heads["colbert_linear"](hidden), dim=-1).numpy()
        weights = torch.relu(heads["sparse_linear"](hidden))[:, 0].numpy()
    options = {"dtype": "float32", "skip_tokenizer_init": True}
    for task, wanted in (("token_embed", vectors), ("token_classify", weights)):
        with LLM(str(tmp_path), pooler_config={"task": task}, **options) as llm:  # type: ignore[arg-type]
            [found] = llm.encode([ids], pooling_task=task, use_tqdm=False)  # type: ignore[arg-type]
            assert not len(llm.encode([[0]], pooling_task=task, use_tqdm=False)[0].outputs.data)  # type: ignore[arg-type]
        wanted = wanted[1:] if task == "token_embed" else wanted[1:-1]
        assert np.allclose(found.outputs.data, wanted, atol=1e-5)
        assert found.outputs.data.shape == wanted.shape
    with LLM(str(tmp_path), **options) as llm:  # type: ignore[arg-type]
        [dense] = llm.embed([ids], use_tqdm=False)
        with pytest.raises(RequestError, match=r"pooler_config=\{'task': 'token_embed'\}$"):
            llm.encode([ids], pooling_task="token_embed", use_tqdm=False)
    assert np.allclose(dense.outputs.embedding, unit(hidden[0].numpy()), atol=1e-5)
