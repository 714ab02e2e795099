"""Scores of pairs of texts, by cross-encoders and language models, and of reward models, compared
with the same steps in NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from pooling_checkpoints import TEXTS, WORDS, bert, modules, write
from safetensors.numpy import load_file, save_file

from quire import LLM
from quire.errors import CheckpointError, ConfigError, RequestError, UnsupportedModelError
from quire.protocol.pooling_params import PoolingParams


def test_a_cross_encoder_scores_pairs(tmp_path: Path) -> None:
    """Both texts are read at once, with segments; the longer one is cut if asked."""
    model = bert(tmp_path, "BertForSequenceClassification", num_labels=1)
    tokenizer = transformers.BertTokenizer(str(tmp_path / "vocab.txt"))
    with LLM(str(tmp_path), dtype="float32") as llm:
        found = llm.score(TEXTS[0], TEXTS[1:], use_tqdm=False)
        for text, one in zip(TEXTS[1:], found, strict=True):
            with torch.no_grad():
                logit = model(**tokenizer(TEXTS[0], text, return_tensors="pt")).logits[0, 0]
            assert one.outputs.score == pytest.approx(float(torch.sigmoid(logit)), abs=1e-6)
        assert llm.score(TEXTS[0], TEXTS[2], use_tqdm=False)[0].outputs == found[1].outputs
        long = " ".join(TEXTS[1:]) * 90
        for count, kept in ((-1, llm.model_config.max_model_len), (12, 12)):
            options = {"truncate_prompt_tokens": count}
            [cut] = llm.score(TEXTS[0], long, tokenization_kwargs=options, use_tqdm=False)
            ids = tokenizer(TEXTS[0], long, truncation="only_second", max_length=kept).input_ids
            assert cut.prompt_token_ids == ids
        with pytest.raises(RequestError, match="Input lengths must be either 1:1, 1:N or N:N"):
            llm.score(TEXTS[:2], TEXTS[:3], use_tqdm=False)
        with pytest.raises(RequestError, match=r"task is classify: use LLM\.score"):
            llm.embed("a", use_tqdm=False)


@pytest.mark.parametrize("activation", ["activation.Sigmoid", "linear.Identity"])
def test_a_cross_encoder_with_modules(activation: str, tmp_path: Path) -> None:
    """As sentence-transformers 6 saves it: the activation is not in config.json."""
    model = bert(tmp_path, "BertForSequenceClassification", num_labels=3)
    modules(tmp_path)
    write(
        tmp_path / "sentence_bert_config.json",
        {
            "transformer_task": "sequence-classification",
            "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
            "module_output_name": "scores",
        },
    )
    settings = {"model_type": "CrossEncoder", "activation_fn": f"torch.nn.modules.{activation}"}
    write(tmp_path / "config_sentence_transformers.json", settings)
    tokenizer = transformers.BertTokenizer(str(tmp_path / "vocab.txt"))
    with torch.no_grad():
        wanted = model(**tokenizer(TEXTS[0], return_tensors="pt")).logits[0]
    if activation.endswith("Sigmoid"):
        wanted = torch.sigmoid(wanted)
    with LLM(str(tmp_path), dtype="float32") as llm:
        [found] = llm.classify(TEXTS[0], use_tqdm=False)
    assert np.allclose(found.outputs.probs, wanted.numpy(), atol=2e-6)
    settings["activation_fn"] = "torch.nn.modules.activation.Tanh"
    write(tmp_path / "config_sentence_transformers.json", settings)
    with pytest.raises(UnsupportedModelError, match=r"activation\.Tanh' is not supported"):
        LLM(str(tmp_path))


def _decoder(directory: Path, is_tied: bool) -> torch.nn.Module:
    torch.manual_seed(5)
    config = transformers.Qwen3Config(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, intermediate_size=40, max_position_embeddings=64,
        initializer_range=0.4, tie_word_embeddings=is_tied, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = transformers.Qwen3ForCausalLM(config).eval()
    model.save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return model


def test_logits_of_two_tokens_are_a_score(tmp_path: Path) -> None:
    """Qwen3-Reranker's kind: the probability of yes against no."""
    model = _decoder(tmp_path, is_tied=True)
    overrides = {
        "architectures": ["Qwen3ForSequenceClassification"],
        "classifier_from_token": ["no", "yes"],
    }
    with LLM(str(tmp_path), dtype="float32", hf_overrides=overrides) as llm:
        [found] = llm.score(TEXTS[0], TEXTS[1], use_tqdm=False)
        tokens = found.prompt_token_ids
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens])).logits[0, -1]
    wanted = torch.sigmoid(logits[WORDS.index("yes")] - logits[WORDS.index("no")])
    assert found.outputs.score == pytest.approx(float(wanted), abs=1e-6)


_CHAT = (
    "{% for one in messages %}{{ {'system': 'what', 'query': 'query :'}.get(one.role, '.') }} "
    "{{ one.content }} {% endfor %}{{ 'yes' if add_generation_prompt }}"
)


_LIKE_VLLM = (
    "{{ (messages | selectattr('role', 'eq', 'document') | first).content }} . {{ instruction }} "
    "{{ (messages | selectattr('role', 'eq', 'query') | first).content }}"
)


def _reranker(directory: Path, **files: Any) -> torch.nn.Module:
    """A language model as a reranker of sentence-transformers. `files`: more of its settings."""
    model = _decoder(directory, is_tied=False)
    modules(directory, "LogitScore")
    ids = {"true_token_id": WORDS.index("yes"), "false_token_id": WORDS.index("no")}
    write(directory / "1_LogitScore" / "config.json", {**ids, "module_input_name": "causal_logits"})
    forward = {"method": "forward", "method_output_name": "logits"}
    settings = {
        "transformer_task": "text-generation", "module_output_name": "causal_logits",
        "modality_config": {"text": forward, "message": {**forward, "format": "flat"}},
        "processing_kwargs": {"chat_template": {"add_generation_prompt": True}}, **files,
    }  # fmt: skip
    write(directory / "sentence_bert_config.json", settings)
    write(directory / "tokenizer_config.json",
          {"tokenizer_class": "BertTokenizer", "chat_template": _CHAT})  # fmt: skip
    write(directory / "config_sentence_transformers.json",
          {"prompts": {"find": "the sea"}, "default_prompt_name": "find"})  # fmt: skip
    return model


def _yes_rather_than_no(model: torch.nn.Module, ids: list[int]) -> float:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
    return float(torch.sigmoid(logits[WORDS.index("yes")] - logits[WORDS.index("no")]))


def test_a_language_model_with_modules_is_a_reranker(tmp_path: Path) -> None:
    """As sentence-transformers 5 saves it: the chat template has a query and a document, and the
    prompt is the system's message. A user's template comes first."""
    model = _reranker(tmp_path)
    text = "what the sea query : the sky . red yes"
    with LLM(str(tmp_path), dtype="float32") as llm:
        [found] = llm.score("the sky", "red", use_tqdm=False)
        assert found.prompt_token_ids == [WORDS.index(word) for word in text.split()]
        wanted = _yes_rather_than_no(model, found.prompt_token_ids)
        assert found.outputs.score == pytest.approx(wanted, abs=1e-6)
        [given] = llm.score("the sky", "red", chat_template=_LIKE_VLLM, use_tqdm=False)
        with pytest.raises(RequestError, match="must show the message of the role document"):
            llm.score("a", "a", chat_template="{{ messages[1].content }}", use_tqdm=False)
    with LLM(str(tmp_path), dtype="float32", chat_template=_LIKE_VLLM) as llm:
        [found] = llm.score("the sky", "red", use_tqdm=False)
    text = "[CLS] red . the sky [SEP]"
    assert found.prompt_token_ids == [WORDS.index(word) for word in text.split()]
    assert given.prompt_token_ids == found.prompt_token_ids
    assert given.outputs == found.outputs


@pytest.mark.parametrize(("says", "has"), [(False, False), (True, True)])
def test_the_files_decide_whether_a_reranker_has_a_head(
    says: bool, has: bool, tmp_path: Path
) -> None:
    """Its own is used if it differs from the table of embeddings, else the table."""
    model = _reranker(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    write(tmp_path / "config.json", {**config, "tie_word_embeddings": says})
    if not has:
        tensors = load_file(tmp_path / "model.safetensors")
        del tensors["lm_head.weight"]
        save_file(tensors, tmp_path / "model.safetensors")
        model.lm_head.weight = model.model.embed_tokens.weight  # type: ignore[union-attr,assignment]
    with LLM(str(tmp_path), dtype="float32") as llm:
        [found] = llm.score("the sky", "red", use_tqdm=False)
    wanted = _yes_rather_than_no(model, found.prompt_token_ids)
    assert found.outputs.score == pytest.approx(wanted, abs=1e-6)


def test_what_a_reranker_with_modules_may_not_have(tmp_path: Path) -> None:
    _reranker(tmp_path, transformer_task="feature-extraction")
    with pytest.raises(UnsupportedModelError, match="transformer_task is 'feature-extraction'"):
        LLM(str(tmp_path))
    _reranker(tmp_path)
    modules(tmp_path, "LogitScore", "Normalize")
    with pytest.raises(UnsupportedModelError, match="Transformer, LogitScore, Normalize are not"):
        LLM(str(tmp_path))
    _reranker(tmp_path)
    write(tmp_path / "1_LogitScore" / "config.json", {"true_token_id": None})
    with pytest.raises(CheckpointError, match="true_token_id must be the id of a token"):
        LLM(str(tmp_path))


def test_the_prompt_of_a_cross_encoder_is_before_the_query(tmp_path: Path) -> None:
    bert(tmp_path, "BertForSequenceClassification", num_labels=1)
    modules(tmp_path)
    write(tmp_path / "sentence_bert_config.json", {"transformer_task": "sequence-classification"})
    prompts = {"prompts": {"find": "what is ", "other": "a "}, "default_prompt_name": "find"}
    write(tmp_path / "config_sentence_transformers.json", prompts)
    tokenizer = transformers.BertTokenizer(str(tmp_path / "vocab.txt"))
    with LLM(str(tmp_path), dtype="float32") as llm:
        for name, beginning in ((None, "what is "), ("other", "a "), ("", "")):
            params = PoolingParams(prompt_name=name)
            [found] = llm.score("the sky", "red", pooling_params=params, use_tqdm=False)
            assert found.prompt_token_ids == tokenizer(f"{beginning}the sky", "red").input_ids
            [alone] = llm.classify("the sky", pooling_params=params, use_tqdm=False)
            assert alone.prompt_token_ids == tokenizer(f"{beginning}the sky").input_ids


def test_logits_of_tokens_may_be_classes(tmp_path: Path) -> None:
    """As vLLM's `method` says; and a query and a document are one text unless they have a token
    between them."""
    _reranker(tmp_path)
    (tmp_path / "modules.json").unlink()
    names = {"architectures": ["Qwen3ForSequenceClassification"],
             "classifier_from_token": ["no", "yes"]}  # fmt: skip
    for more, ids in (({}, "[CLS] the sea [SEP]"),
                      ({"use_sep_token": True}, "[CLS] the [SEP] sea [SEP]")):  # fmt: skip
        with LLM(str(tmp_path), hf_overrides={**names, **more}) as llm:
            [found] = llm.score("the ", "sea", use_tqdm=False)
            assert found.prompt_token_ids == [WORDS.index(word) for word in ids.split()]
    with LLM(str(tmp_path), hf_overrides={**names, "method": "no_post_processing"}) as llm:
        assert llm.classify("sea", use_tqdm=False)[0].outputs.num_classes == 2
    with pytest.raises(UnsupportedModelError, match="method 'other' is not supported"):
        LLM(str(tmp_path), hf_overrides={**names, "method": "other"})


def test_steps_of_a_process_reward_model(tmp_path: Path) -> None:
    """The results are those of tokens that end a step, after a layer with ReLU."""
    torch.manual_seed(7)
    config = transformers.Qwen2Config(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=40, max_position_embeddings=64,
        initializer_range=0.4, bos_token_id=None, eos_token_id=None, num_labels=3,
    )  # fmt: skip
    model = transformers.Qwen2Model(config).eval()
    head = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
    tensors = {f"model.{name}": one.numpy() for name, one in model.state_dict().items()}
    tensors |= {f"score.{name}": one.numpy() for name, one in head.state_dict().items()}
    save_file(tensors, tmp_path / "model.safetensors")
    settings = {**config.to_dict(), "architectures": ["Qwen2ForProcessRewardModel"]}
    write(tmp_path / "config.json", settings)
    ids = [5, 3, 9, 3, 11, 12, 3]
    with torch.no_grad():
        states_ = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        logits = head(states_)[[1, 3, 6]][:, [0, 2]]
    options = {"dtype": "float32", "skip_tokenizer_init": True}
    pooler = {"tok_pooling_type": "STEP", "step_tag_id": 3, "returned_token_ids": [0, 2]}
    with LLM(str(tmp_path), pooler_config=pooler, **options) as llm:  # type: ignore[arg-type]
        assert llm.supported_tasks == ("token_classify",)
        found = llm.encode([ids, [5, 6]], pooling_task="token_classify", use_tqdm=False)
    assert np.allclose(found[0].outputs.data, torch.softmax(logits, -1).numpy(), atol=1e-5)
    assert found[1].outputs.data.shape == (0, 2)
    pooler["returned_token_ids"] = [3]
    with pytest.raises(ConfigError, match="must be less than the 3 numbers"):
        LLM(str(tmp_path), pooler_config=pooler, **options)  # type: ignore[arg-type]


def test_a_reward_model_gives_one_number(tmp_path: Path) -> None:
    """Qwen2.5-Math-RM's config.json does not say how many."""
    config = {
        "architectures": ["Qwen2ForRewardModel"], "vocab_size": 40, "hidden_size": 32,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 40, "max_position_embeddings": 64,
    }  # fmt: skip
    write(tmp_path / "config.json", config)
    with LLM(str(tmp_path), load_format="dummy", skip_tokenizer_init=True) as llm:
        assert llm.classify([[5, 6]], use_tqdm=False)[0].outputs.num_classes == 1


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    bert(tmp_path)
    with pytest.raises(ConfigError, match="is an encoder, which gives vectors"):
        LLM(str(tmp_path), runner="generate")
    with pytest.raises(ConfigError, match="has no head for classes"):
        LLM(str(tmp_path), convert="classify")
    with pytest.raises(ConfigError, match="pooling_type must be one of CLS, LAST, MEAN, ALL, STEP"):
        LLM(str(tmp_path), pooler_config={"pooling_type": "MAX"})
    with LLM(str(tmp_path)) as llm, pytest.raises(RequestError, match=r"use LLM\.embed"):
        llm.generate("a", use_tqdm=False)
