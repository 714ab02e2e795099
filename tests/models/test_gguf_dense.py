"""GGUF files without experts, as gguf-py writes them: the numbers that it says, bit for bit, and
what transformers computes with them.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from damaged_gguf import damaged
from gguf_dense_cases import DENSE, GRANITE, LLAMA, dense
from gguf_harness import as_numbers, check_binding, check_numbers, compare, gguf_model, model_file
from model_cases import Case, prompt_of

from quire import LLM, SamplingParams
from quire.backends.base import Backend
from quire.config.checkpoint.model_files import read_config
from quire.config.engine_args import EngineArgs
from quire.config.model_lookup.hub import resolve_model
from quire.errors import ModelError, QuireError
from quire.models import build_program
from quire.planning.quantize import quantize_model
from quire.program.ops import Linear
from quire.program.values import GroupedFormat

gguf_dense = pytest.importorskip("gguf_dense")  # needs gguf-py

OTHER_LAYOUTS = ("gpt2", "chatglm:fused")
"""Of which Quire reads tensors of other shapes than transformers has."""


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.sweep(24)
@pytest.mark.parametrize("case", DENSE, ids=str)
def test_numbers_as_they_are(case: Case, backend: Backend, tmp_path: Path) -> None:
    model = gguf_model(gguf_dense.DenseFile, case, tmp_path, as_numbers)
    if case.name not in OTHER_LAYOUTS:
        check_numbers(model)
    compare(model, backend, 2e-4)


@pytest.mark.sweep(16)
@pytest.mark.parametrize("case", DENSE, ids=str)
def test_blocks_are_held(case: Case, cpu_backend: Backend, tmp_path: Path) -> None:
    """Matrices of two types: rows in another order than the file's, and parts of one tensor."""
    model = gguf_model(
        gguf_dense.DenseFile, case, tmp_path, lambda name: "Q4_0" if "ffn_up" in name else "Q8_0"
    )
    if case.name not in OTHER_LAYOUTS:
        check_numbers(model)
    program = build_program(read_config(resolve_model(str(model.file))))
    formats = [op.weight.format for op in program.ops if isinstance(op, Linear)]
    assert all(isinstance(format, GroupedFormat) for format in formats)
    assert {format.table for format in formats} == {"s4", "s8"}
    compare(model, cpu_backend, 1e-2, 0.9)


def test_older_files_of_minicpm_have_no_factors(backend: Backend, tmp_path: Path) -> None:
    factors = {"embedding_multiplier": 12.0, "residual_multiplier": 1.4 / 2**0.5,
               "logits_scaling": 64 / 256, "attention_multiplier": 0.25}  # fmt: skip
    without = dict.fromkeys(("embedding_scale", "residual_scale", "logit_scale"))
    case = dense("minicpm", GRANITE, **factors)
    compare(gguf_model(gguf_dense.DenseFile, case, tmp_path, as_numbers, **without), backend, 2e-4)


def test_yarn_without_its_ramp_is_a_linear_scaling(cpu_backend: Backend, tmp_path: Path) -> None:
    scaling = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
    case = dense("pangu-embedded", LLAMA, rope_parameters=scaling)
    written = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
               "rope.scaling.yarn_ext_factor": 0.0}  # fmt: skip
    model = gguf_model(gguf_dense.DenseFile, case, tmp_path, as_numbers, **written)
    compare(model, cpu_backend, 2e-4)


@pytest.mark.parametrize("name", ["phi3:short", "stablelm:12B", "falcon:40B", "gpt2", "apertus"])
def test_greedy_tokens(name: str, tmp_path: Path) -> None:
    """Through the engine, as transformers generates them."""
    case = _named(name)
    model = gguf_model(gguf_dense.DenseFile, case, tmp_path, as_numbers)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(model.checkpoint).float().eval()
    prompt = prompt_of(case, 9)
    with torch.no_grad():
        wanted = theirs.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=12)
    assert _tokens(model.file, prompt, dtype="float32") == wanted[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", ["stablelm:12B", "falcon:40B", "gpt2", "apertus"])
def test_packed(name: str, tmp_path: Path) -> None:
    """Blocks in another order of rows, heads' norms and numbers of keys come through packing."""
    model = gguf_model(gguf_dense.DenseFile, _named(name), tmp_path, lambda name: "Q8_0")  # noqa: ARG005
    packed = quantize_model(EngineArgs(str(model.file)), tmp_path / "packed").path
    prompt = prompt_of(model.case, 9)
    assert _tokens(packed, prompt) == _tokens(model.file, prompt)


def _tokens(model: Path, prompt: list[int], **given: Any) -> list[int]:
    with LLM(str(model), max_model_len=64, **given) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
        [output] = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        return list(output.outputs[0].token_ids)


def _named(name: str) -> Case:
    return next(case for case in DENSE if case.name == name)


_BIAS = {"blk.0.attn_q.bias": np.ones(64, np.float32)}


@pytest.mark.parametrize(
    ("name", "written", "said"),
    [
        (
            "phi3:long",
            {"without": "rope_factors_short.weight"},
            "rope_factors_short.weight must have",
        ),
        ("phi3:long", {"rope.scaling.type": "yarn"}, "rope.scaling.type is 'yarn'; it must be"),
        ("phi2", {"rope.dimension_count": 17}, "dimension_count is 17; it must be from 1 to"),
        ("gptneox", {"use_parallel_residual": None}, "use_parallel_residual is None; it must be"),
        ("gptneox", {"attention.head_count": 3}, "hidden size 64 does not divide into 3 heads"),
        ("falcon:7B", {"attention.head_count_kv": None}, "head_count_kv is None; it must be a"),
        ("bloom", {"feed_forward_length": 128}, "must be four times the embedding_length"),
        ("mpt", {"attention.max_alibi_bias": 0.0}, "learned positions"),
        ("mpt", {"feed_forward_length": 100}, "must be a multiple of the 64 of a row"),
        ("olmo", {"attention.layer_norm_epsilon": 1e-6}, "layer_norm_epsilon is .* must be 1e-05"),
        ("command-r", {"logit_scale": None}, "logit_scale is None; it must be a number"),
        ("cohere2", {"attention.sliding_window": None}, "sliding_window is None; it must be"),
        ("cohere2", {"rope.freq_base_swa": 7.0}, "another base of the rotation in windows"),
        ("cohere2", {"attention.sliding_window_pattern": 0}, "pattern is 0; it must be at least 1"),
        ("exaone4:32B", {"attention.sliding_window_pattern": [True]}, "a list of 4 times true or"),
        ("minicpm", {"embedding_scale": None}, "embedding_scale is None; it must be a number"),
        ("glm4", {"rope.dimension_sections": [8, 8, 0, 0]}, "a rotation for images"),
        ("chatglm:fused", {"rope.dimension_count": 16}, "is 16; it must be half of a head"),
        ("chatglm:fused", {"rope.scaling.type": "linear"}, "a rope scaling: GGUF files of arch"),
        ("apertus", {"xielu.alpha_p": None}, "xielu.alpha_p is None; it must be a list with"),
        ("apertus", {"xielu.eps": [0.5, 0.5]}, "must be -1e-06 in every layer"),
        ("baichuan", {"block_count": 31}, "another number of layers than the 32 of 7B"),
        ("pangu-embedded", {"rope.scaling.yarn_ext_factor": 0.5}, "yarn_ext_factor is 0.5; 1 is"),
        ("pangu-embedded", {"rope.scaling.yarn_ext_factor": 0.0}, "0 without a factor for att"),
        ("internlm2", {"extra": _BIAS}, "unexpected tensor .*q_proj.bias"),
    ],
)
def test_lies_are_named(name: str, written: dict[str, Any], said: str, tmp_path: Path) -> None:
    writer = model_file(gguf_dense.DenseFile, _named(name), tmp_path / "checkpoint")
    file = writer.write(tmp_path / "m.gguf", **written)
    with pytest.raises(ModelError, match=said):
        check_binding(file)


@pytest.mark.sweep(16)
@pytest.mark.parametrize("case", DENSE, ids=str)
def test_damaged_files_are_refused_by_an_error_of_quires(case: Case, tmp_path: Path) -> None:
    """Or they are read, where nothing that matters is damaged."""
    good = model_file(gguf_dense.DenseFile, case, tmp_path / "checkpoint").write(
        tmp_path / "good.gguf", as_numbers
    )
    raw, path = good.read_bytes(), tmp_path / "damaged.gguf"
    generator = random.Random(case.name)
    refused = 0
    for number in range(25):
        path.write_bytes(damaged(raw, raw.index(b"tokenizer.ggml"), generator))
        try:
            check_binding(path)
        except QuireError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"file {number}: {error!r}") from error
    assert refused > 5
