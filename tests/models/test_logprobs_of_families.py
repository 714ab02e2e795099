"""Log-probabilities of the prompt and of the output, of every family, against transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import transformers
from model_cases import CASES, Case, logits_of, prompt_of, write_checkpoint
from model_harness import each_case

from quire import LLM, SamplingParams
from quire.backends.base import Backend
from quire.models.registry import _BUILT_IN
from quire.outputs import Logprob, RequestOutput

CHOSEN = (
    "llama-5-layers-biases", "mistral-window", "qwen2", "qwen3-biases", "gemma", "gemma2",
    "gemma3", "granite", "mpt", "opt-before", "gpt2",
)  # fmt: skip
OTHER_NAMES = {
    "LLaMAForCausalLM", "MPTForCausalLM", "RWForCausalLM", "StableLMEpochForCausalLM",
    "Ernie4_5_ForCausalLM", "ExaoneMoEForCausalLM", "PhiMoEForCausalLM",
    "Qwen3VLMoeForCausalLM",  # the text of a model with images: test_images.py
}  # fmt: skip
NOT_IN_TRANSFORMERS = {
    "BaiChuanForCausalLM", "BaichuanForCausalLM", "ChatGLMForConditionalGeneration",
    "ChatGLMModel", "DeepseekForCausalLM", "ExaoneForCausalLM", "InternLM2ForCausalLM",
    "InternLM3ForCausalLM", "MiniCPMForCausalLM",
}  # fmt: skip
"""`test_remote_families.py` has them; InternLM 3 is Llama (`unit/models/test_families.py`)."""
PROMPT_TOKENS, NEW_TOKENS = 40, 12
CLOSE = 1e-3


case = each_case([c for c in CASES if c.name in CHOSEN])


def test_every_architecture_has_a_case() -> None:
    models = transformers.AutoModelForCausalLM._model_mapping
    found = {models[case.config_class].__name__ for case in CASES}
    elsewhere = (  # test_hybrids.py, test_encoders.py, test_whisper.py
        ".hybrid.", ".bert", ".rotary_encoders", ".deepseek_v3", ".kimi_linear", ".longcat",
        ".whisper",
    )  # fmt: skip
    generating = {
        name for name, place in _BUILT_IN.items() if not any(part in place for part in elsewhere)
    }
    assert found | OTHER_NAMES | NOT_IN_TRANSFORMERS == generating


def check(token_id: int, entries: dict[int, Logprob], truth: np.ndarray, count: int) -> None:
    """The token's own and the best ones, with their ranks."""
    assert set(entries) >= {token_id}
    assert len(entries) - (entries[token_id].rank > count) == count  # type: ignore[operator]
    for other, found in entries.items():
        assert abs(found.logprob - truth[other]) < CLOSE
        above = int((truth > truth[other] + CLOSE).sum())
        not_below = int((truth > truth[other] - CLOSE).sum())
        assert above < found.rank <= not_below  # type: ignore[operator]


def test_logprobs(case: Case, cpu_backend: Backend, tmp_path: Path) -> None:
    del cpu_backend  # which skips where there is none
    write_checkpoint(case, tmp_path)
    prompt = prompt_of(case, PROMPT_TOKENS)
    common = {"max_tokens": NEW_TOKENS, "ignore_eos": True, "logprobs": 4, "prompt_logprobs": 4}
    params = [SamplingParams(temperature=0, **common), SamplingParams(seed=2, **common)]
    with LLM(
        str(tmp_path), backend="cpu", skip_tokenizer_init=True, dtype="float32",
        max_model_len=64, max_num_batched_tokens=16, max_num_seqs=4, num_gpu_blocks_override=64,
    ) as llm:  # fmt: skip
        greedy, drawn = llm.generate([{"prompt_token_ids": prompt}] * 2, params, use_tqdm=False)
    tokens = list(greedy.outputs[0].token_ids)
    assert tokens == check_all(case, prompt, greedy).argmax(axis=1)[len(prompt) - 1 : -1].tolist()
    check_all(case, prompt, drawn)


def check_all(case: Case, prompt: list[int], output: RequestOutput) -> np.ndarray:
    """Every position; returns transformers' log-probabilities [T, V]."""
    [completion] = output.outputs
    tokens = list(completion.token_ids)
    logits = logits_of(case, prompt + tokens).astype(np.float64)
    truth = logits - logits.max(axis=1, keepdims=True)
    truth -= np.log(np.exp(truth).sum(axis=1, keepdims=True))
    found = [*(output.prompt_logprobs or ())[1:], *(completion.logprobs or ())]
    assert len(found) == len(prompt) + len(tokens) - 1
    for token_id, entries, row in zip([*prompt[1:], *tokens], found, truth, strict=False):
        assert entries is not None
        check(token_id, entries, row, 4)
    of_output = truth[len(prompt) - 1 : -1]
    total = sum(row[token] for row, token in zip(of_output, tokens, strict=True))
    assert completion.cumulative_logprob == pytest.approx(total, abs=NEW_TOKENS * CLOSE)
    return truth
