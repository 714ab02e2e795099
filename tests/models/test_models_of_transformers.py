"""Models that transformers computes, through `LLM`: batched, chunked, preempted and prefix-hit they
give the tokens of transformers' own `generate`, and the same bits."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from model_cases import Case, prompt_of, reference_model, write_checkpoint
from model_harness import each_case
from safetensors.torch import load_file, save_file

from quire import LLM, SamplingParams
from quire.cli import main
from quire.config.engine_args import EngineArgs
from quire.errors import CheckpointError, ConfigError, UnsupportedModelError
from quire.models.transformers.choice import with_model_impl
from quire.planning.plan import build_engine_config

_NO_SPECIAL = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
_SQUARE = {
    "vocab_size": 151, "hidden_size": 96, "intermediate_size": 90, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 3, "max_position_embeddings": 256,
    "initializer_range": 0.15, "tie_word_embeddings": False, **_NO_SPECIAL,
}  # fmt: skip
_LATENT = {
    "kv_lora_rank": 40, "q_lora_rank": 36, "qk_rope_head_dim": 8, "qk_nope_head_dim": 24,
    "v_head_dim": 20, "num_key_value_heads": 6,
}  # fmt: skip


def _case(name: str, config: str, **settings: Any) -> Case:
    return Case(name, getattr(transformers, config), {**_SQUARE, **settings})


CASES = [
    _case("cwm-window", "CwmConfig", bos_token_id=0, eos_token_id=150, head_dim=16,
          sliding_window=19, num_hidden_layers=4),
    _case("diffllama", "DiffLlamaConfig", num_key_value_heads=2),
    _case("vaultgemma", "VaultGemmaConfig", head_dim=24, query_pre_attn_scalar=24,
          sliding_window=21, layer_types=["sliding_attention", "full_attention"]),
    _case("biogpt", "BioGptConfig"),
    _case("gpt-neo-local", "GPTNeoConfig", num_layers=2, num_heads=6, window_size=21,
          attention_types=[[["global", "local"], 1]]),
    _case("gpt-bigcode", "GPTBigCodeConfig", n_embd=96, n_head=6, n_layer=2, n_positions=256),
    _case("deepseek-v3", "DeepseekV3Config", **_LATENT, n_routed_experts=8, n_group=2,
          topk_group=1, num_experts_per_tok=3, n_shared_experts=1, moe_intermediate_size=27,
          first_k_dense_replace=1),
]  # fmt: skip
"""Windows, two attentions with one set of keys, positions that are learned, masks of a module's
own, one kv head, latent keys and experts."""

LENGTHS = (75, 11, 40, 33)
NEW_TOKENS = 32


case = each_case(CASES)


def small_llm(checkpoint: Path, num_blocks: int = 14, **options: Any) -> LLM:
    """A budget below the prompts; fewer blocks than the 19 that four requests come to need."""
    given: Mapping[str, Any] = {
        "max_num_batched_tokens": 37, "dtype": "float32", "num_threads": 1,
        "speculation": False,  # replies of the same length, which come to need the blocks together
        **options,
    }  # fmt: skip
    return LLM(
        str(checkpoint), skip_tokenizer_init=True, max_model_len=160, max_num_seqs=4,
        num_gpu_blocks_override=num_blocks, **given,
    )  # fmt: skip


def generated(case: Case, prompt: list[int], count: int = NEW_TOKENS) -> list[int]:
    """By transformers alone."""
    model = reference_model(case, torch.float32)
    ids = torch.tensor([prompt])
    with torch.no_grad():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False
        )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


def greedy(count: int = NEW_TOKENS, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, **more)


def logprobs_of(output: Any) -> list[dict[int, float]]:
    return [
        {token: one.logprob for token, one in entries.items()}
        for entries in output.outputs[0].logprobs
    ]


@pytest.mark.sweep(2)
def test_tokens_are_those_of_generate_and_bits_depend_on_nothing_else(
    case: Case, checkpoint: Path
) -> None:
    prompts = [prompt_of(case, length) for length in LENGTHS]
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
    params = greedy(logprobs=3)
    with small_llm(
        checkpoint, 64, enable_prefix_caching=False, max_num_batched_tokens=512
    ) as roomy:
        alone = [roomy.generate(one, params, use_tqdm=False)[0] for one in inputs]
    for prompt, output in zip(prompts, alone, strict=True):
        assert list(output.outputs[0].token_ids) == generated(case, prompt)
    with small_llm(checkpoint, disable_log_stats=False) as crowded:
        for _ in range(2):
            outputs = crowded.generate(inputs, params, use_tqdm=False)
            for output, wanted in zip(outputs, alone, strict=True):
                assert output.outputs[0].token_ids == wanted.outputs[0].token_ids
                assert logprobs_of(output) == logprobs_of(wanted)
        [hit] = crowded.generate(inputs[-1], greedy(5, logprobs=3), use_tqdm=False)
        assert hit.num_cached_tokens == 32
        assert logprobs_of(hit) == logprobs_of(alone[-1])[:5]
        counts = {one.name: getattr(one, "value", None) for one in crowded.get_metrics()}
    assert counts["vllm:num_preemptions"] > 0


@pytest.fixture(scope="module")
def plain_case() -> Case:
    return CASES[0]


@pytest.fixture(scope="module")
def plain(plain_case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(plain_case, tmp_path_factory.mktemp("plain"))


@pytest.fixture
def copied(plain: Path, tmp_path: Path) -> Path:
    for file in plain.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_prompt_logprobs_are_transformers(plain_case: Case, plain: Path) -> None:
    prompt = prompt_of(plain_case, 40)
    with small_llm(plain) as llm:
        [output] = llm.generate(
            {"prompt_token_ids": prompt}, greedy(1, prompt_logprobs=2), use_tqdm=False
        )
    with torch.no_grad():
        logits = reference_model(plain_case, torch.float32)(torch.tensor([prompt])).logits[0]
    truth = torch.log_softmax(logits.double(), dim=-1)
    assert output.prompt_logprobs is not None
    for token, row, entries in zip(prompt[1:], truth, output.prompt_logprobs[1:], strict=False):
        assert abs(entries[token].logprob - float(row[token])) < 1e-3


def test_bfloat16_and_an_int8_cache_compute(plain_case: Case, plain: Path) -> None:
    prompt = {"prompt_token_ids": prompt_of(plain_case, 40)}
    with small_llm(plain, dtype="auto", kv_cache_dtype="int8") as llm:
        [output] = llm.generate(prompt, greedy(8), use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 8


def test_a_known_architecture_by_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_BACKEND", "reference")
    case = _case("llama", "LlamaConfig")
    write_checkpoint(case, tmp_path)
    prompt = {"prompt_token_ids": prompt_of(case, 40)}
    found = {}
    for impl in ("auto", "vllm", "transformers"):
        with small_llm(tmp_path, model_impl=impl) as llm:
            [output] = llm.generate(prompt, greedy(16), use_tqdm=False)
            found[impl] = list(output.outputs[0].token_ids)
    assert found["auto"] == found["vllm"] == found["transformers"]


def test_made_up_weights(plain: Path) -> None:
    with small_llm(plain, load_format="dummy") as llm:
        [output] = llm.generate({"prompt_token_ids": [1, 2, 3]}, greedy(4), use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 4


def test_numbers_that_are_not_finite_are_named(copied: Path) -> None:
    tensors = load_file(copied / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][5, 7] = float("nan")
    save_file(tensors, copied / "model.safetensors", metadata={"format": "pt"})
    with small_llm(copied) as llm:
        [output] = llm.generate({"prompt_token_ids": list(range(20))}, greedy(4), use_tqdm=False)
    assert output.outputs[0].finish_reason == "error"
    assert "first in: layer 1, mlp.up_proj" in str(output.error)


def test_explain(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(plain), "--no-timing"]) == 0
    text = capsys.readouterr().out
    assert "CwmForCausalLM" in text
    assert "transformers: modules of transformers" in text
    assert main(["explain", str(plain)]) == 0
    assert "the transformers backend does not time steps" in capsys.readouterr().out


# What does not run


def planned(directory: Path, **given: Any) -> None:
    build_engine_config(EngineArgs(str(directory), **given))


@pytest.fixture
def without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.models.transformers.choice.find_spec", {}.get)


@pytest.mark.usefixtures("without_the_extra")
@pytest.mark.parametrize("impl", ["auto", "transformers"])
def test_without_the_extra_the_error_names_it(plain: Path, impl: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"pip install 'quire-engine\[transformers\]'"):
        planned(plain, model_impl=impl)


def test_only_the_families_here_if_asked(plain: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"CwmForCausalLM.*not supported"):
        planned(plain, model_impl="vllm")
    with pytest.raises(ConfigError, match="model_impl"):
        planned(plain, model_impl="terratorch")
    with pytest.raises(ConfigError, match="leave backend out"):
        planned(plain, backend="reference")
    with pytest.raises(ConfigError, match="quantization"):
        planned(plain, quantization="int8")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architectures": ["MambaForCausalLM"], "model_type": "mamba"}, "a state in addition"),
        ({"architectures": ["NoSuchForCausalLM"], "model_type": "no"}, "has no text decoder"),
        ({"architectures": ["BartForCausalLM"], "model_type": "bart"}, "an encoder"),
        ({"architectures": ["BertLMHeadModel"], "model_type": "bert"}, "see later ones"),
        ({"architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "num_hidden_layers": 2,
          "layer_types": ["conv", "full_attention"]}, "layers of the kind conv"),
        ({"architectures": ["CwmForCausalLM"], "model_type": "cwm",
          "quantization_config": {"quant_method": "fp8"}}, "do not support quantised weights"),
    ],
)  # fmt: skip
def test_what_transformers_cannot_run_here(config: dict[str, Any], message: str) -> None:
    is_family = config["model_type"] in ("mamba", "lfm2")
    with pytest.raises(UnsupportedModelError, match=message):
        with_model_impl(config, "transformers" if is_family else "auto")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, '"model_type": "cwm"'),
        ({"num_hidden_layers": 1 << 20}, "num_hidden_layers"),
        ({"hidden_size": 1 << 40}, "hidden_size"),
        ({"num_attention_heads": "many"}, "num_attention_heads"),
    ],
)
def test_damaged_configurations(copied: Path, changes: dict[str, Any], message: str) -> None:
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(CheckpointError, match=message):
        planned(copied)


def test_code_of_a_checkpoint_is_not_run(copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling.Evil", "AutoConfig": "modeling.Evil"}
    (copied / "config.json").write_text(json.dumps(config))
    (copied / "modeling.py").write_text("raise RuntimeError('this was run')")
    with small_llm(copied, trust_remote_code=True) as llm:
        assert llm.generate({"prompt_token_ids": [1, 2]}, greedy(1), use_tqdm=False)


def test_weights_that_do_not_fit(copied: Path) -> None:
    tensors = load_file(copied / "model.safetensors")
    lost = tensors.pop("model.layers.1.mlp.up_proj.weight")
    save_file(tensors, copied / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lacks tensors.*layers\.1\.mlp\.up_proj"):
        small_llm(copied)
    tensors["model.layers.1.mlp.up_proj.weight"] = lost[:50].clone()
    save_file(tensors, copied / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"up_proj"):
        small_llm(copied)


@pytest.mark.long
def test_torch_is_imported_for_such_models_alone(plain: Path, tmp_path: Path) -> None:
    write_checkpoint(_case("llama", "LlamaConfig"), tmp_path)
    code = (
        "import sys; from quire import LLM\n"
        "for directory in sys.argv[1:]:\n"
        "    llm = LLM(directory, skip_tokenizer_init=True, max_model_len=64,\n"
        "              num_gpu_blocks_override=16, num_threads=1)\n"
        "    print(sorted({'torch', 'transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(plain)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["[]", "['torch', 'transformers']"]


def test_the_files_decide_whether_the_head_is_tied(tmp_path: Path) -> None:
    """transformers keeps a head that differs, and misses one that is not there."""
    case = _case("diffllama", "DiffLlamaConfig", num_key_value_heads=2, num_hidden_layers=1)
    directory = write_checkpoint(case, tmp_path / "model")
    settings = json.loads((directory / "config.json").read_text())
    stored = load_file(directory / "model.safetensors")

    def logprobs(tensors: dict[str, Any], *, is_tied: bool) -> dict[int, float]:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        text = json.dumps({**settings, "tie_word_embeddings": is_tied})
        (directory / "config.json").write_text(text)
        with small_llm(directory) as llm:
            prompt = {"prompt_token_ids": prompt_of(case)[:9]}
            [found] = llm.generate(prompt, greedy(1, logprobs=5), use_tqdm=False)
            return logprobs_of(found)[0]

    own = logprobs(stored, is_tied=False)
    assert logprobs(stored, is_tied=True) == own
    bare = {name: tensor for name, tensor in stored.items() if name != "lm_head.weight"}
    table = logprobs(bare, is_tied=True)
    assert logprobs(bare, is_tied=False) == table
    assert table != own
