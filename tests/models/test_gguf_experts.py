"""GGUF files with experts, as gguf-py writes them: the numbers that it says, bit for bit, and what
transformers computes with them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import random_tensors
from gguf_harness import (
    TOKENS,
    Model,
    as_numbers,
    check_binding,
    check_numbers,
    compare,
    gguf_model,
    model_file,
)
from gguf_mixture_cases import MIXTURES, OTHER_TENSORS
from model_cases import Case, prompt_of
from model_harness import Runner, load

from quire import LLM, SamplingParams
from quire.backends.base import Backend
from quire.backends.reference import ReferenceBackend
from quire.config.checkpoint.model_files import read_config
from quire.config.engine_args import EngineArgs
from quire.config.model_lookup.hub import resolve_model
from quire.errors import CheckpointError, ModelError, UnsupportedModelError
from quire.models import build_program
from quire.planning.quantize import quantize_model
from quire.program.ops import Experts, Route
from quire.program.values import GroupedFormat

gguf_mixtures = pytest.importorskip("gguf_mixtures")  # needs gguf-py


pytestmark = pytest.mark.usefixtures("own_cache")


def _mixture(case: Case, directory: Path) -> Any:
    return model_file(gguf_mixtures.MixtureFile, case, directory)


def _model(case: Case, tmp_path: Path, type_of: Callable[[str], str], **written: Any) -> Model:
    return gguf_model(gguf_mixtures.MixtureFile, case, tmp_path, type_of, **written)


@pytest.mark.sweep(8)
@pytest.mark.parametrize("case", MIXTURES, ids=str)
def test_numbers_as_they_are(case: Case, backend: Backend, tmp_path: Path) -> None:
    model = _model(case, tmp_path, as_numbers)
    if case.name not in OTHER_TENSORS:
        check_numbers(model)
    compare(model, backend, 2e-4)


@pytest.mark.sweep(6)
@pytest.mark.parametrize("case", MIXTURES, ids=str)
def test_experts_are_held_as_the_file_has_them(
    case: Case, backend: Backend, tmp_path: Path
) -> None:
    """Gate and up in one type, down in another, attention in a third."""

    def type_of(name: str) -> str:
        if "exps" in name:
            return "Q8_0" if "down" in name else "Q4_0" if case.name != "gpt-oss" else "MXFP4"
        return "Q5_1" if "attn" in name else "Q8_0"

    model = _model(case, tmp_path, type_of)
    if case.name not in OTHER_TENSORS:
        check_numbers(model)
    program = build_program(read_config(resolve_model(str(model.file))))
    tables = {"MXFP4": "e2m1", "Q4_0": "s4"}
    experts = [op for op in program.ops if isinstance(op, Experts)]
    assert experts
    for op in experts:
        assert isinstance(op.gate_up.format, GroupedFormat)
        assert isinstance(op.down.format, GroupedFormat)
        assert op.gate_up.format.table == tables[type_of("ffn_up_exps")]
        assert op.down.format.table == "s8"
    compare(model, backend, 3e-3, 0.9)


@pytest.mark.parametrize("kinds", [("Q4_K", "Q6_K"), ("Q5_K", "Q4_K"), ("Q8_0", "MXFP4")])
@pytest.mark.parametrize("name", ["qwen3moe", "granitemoe"])
def test_types_with_blocks_of_256(
    name: str, kinds: tuple[str, str], cpu_backend: Backend, tmp_path: Path
) -> None:
    sizes = {"hidden_size": 256, "moe_intermediate_size": 256, "intermediate_size": 256,
             "shared_intermediate_size": 256, "head_dim": 64}  # fmt: skip
    case = next(case for case in MIXTURES if case.name == name)
    case = Case(name, case.config_class, {**case.settings, **sizes})
    model = _model(case, tmp_path, lambda name: kinds["down" in name])
    check_numbers(model)
    compare(model, cpu_backend, 3e-3, 0.9)


def test_types_that_are_not_held(cpu_backend: Backend, tmp_path: Path) -> None:
    """Numbers of 16 bits; and two types in the halves of what granite has in one matrix."""
    case = next(case for case in MIXTURES if case.name == "granitemoe")

    def type_of(name: str) -> str:
        if "shexp" in name:
            return "BF16"
        return "Q8_0" if "ffn_gate" in name else "Q4_0" if "ffn_up" in name else "F16"

    model = _model(case, tmp_path, type_of)
    check_numbers(model)
    compare(model, cpu_backend, 2e-4)


def test_gate_and_up_of_unlike_types_are_refused(cpu_backend: Backend, tmp_path: Path) -> None:
    case = next(case for case in MIXTURES if case.name == "qwen3moe")
    model = _model(case, tmp_path, lambda name: "Q8_0" if "gate_exps" in name else "Q4_0")
    with pytest.raises(UnsupportedModelError, match=r"in different formats.*quantization='int8'"):
        load(resolve_model(str(model.file)), cpu_backend)


def test_layers_that_predict_further_tokens_are_left_out(
    cpu_backend: Backend, tmp_path: Path
) -> None:
    """GLM-4.5 has one behind the last, with experts of its own."""
    case = next(case for case in MIXTURES if case.name == "glm4moe")
    mixture = _mixture(case, tmp_path / "other")
    copies = {
        name.replace("blk.2.", "blk.3."): array
        for name, array, _ in mixture.stored
        if name.startswith("blk.2.")
    }
    extra = {**copies, "blk.3.nextn.eh_proj.weight": np.ones((64, 128), np.float32)}
    model = _model(
        case,
        tmp_path,
        as_numbers,
        extra=extra,
        block_count=4,
        nextn_predict_layers=1,
    )
    compare(model, cpu_backend, 2e-4)


def test_a_tensor_for_each_expert(cpu_backend: Backend, tmp_path: Path) -> None:
    """As llama.cpp wrote Mixtral until April 2024; and gates and ups in one tensor."""
    case = MIXTURES[0]
    mixture = _mixture(case, tmp_path / "checkpoint")
    stored, others = list(mixture.stored), []
    for name, array, undo in stored:
        if match := re.fullmatch(r"blk\.(\d)\.ffn_(\w+)_exps\.weight", name):
            layer, part = match.groups()
            each = [(f"blk.{layer}.ffn_{part}.{e}.weight", array[e]) for e in range(5)]
            others += [(own, matrix, lambda values, held: None) for own, matrix in each]  # noqa: ARG005
        else:
            others.append((name, array, undo))
    mixture.stored = others
    file = mixture.write(tmp_path / "each.gguf")
    compare(Model(case, file, tmp_path / "checkpoint", mixture), cpu_backend, 2e-4)
    merged = [item for item in stored if "gate_exps" not in item[0] and "up_exps" not in item[0]]
    for layer in range(2):
        halves = [
            next(
                array for name, array, _ in stored if name == f"blk.{layer}.ffn_{part}_exps.weight"
            )
            for part in ("gate", "up")
        ]
        one = np.concatenate(halves, axis=1)
        name = f"blk.{layer}.ffn_gate_up_exps.weight"
        merged.append((name, one, lambda values, held: None))  # noqa: ARG005
    mixture.stored = merged
    file = mixture.write(tmp_path / "merged.gguf")
    compare(Model(case, file, tmp_path / "checkpoint", mixture), cpu_backend, 2e-4)


def test_activations_of_8_bits(cpu_backend: Backend, tmp_path: Path) -> None:
    """With a scale for each 32: what the reference says that they give. A value halfway between
    two steps may be rounded to either, which changes the rows of all later tokens."""
    sizes = {"hidden_size": 256, "moe_intermediate_size": 256, "head_dim": 64}
    case = next(case for case in MIXTURES if case.name == "qwen3moe")
    case = Case("qwen3moe", case.config_class, {**case.settings, **sizes})
    model = _model(case, tmp_path, lambda name: "Q6_K" if "down" in name else "Q4_K")
    directory = resolve_model(str(model.file))
    config = read_config(directory)
    config["quantization_config"]["activation_bits"] = 8
    (directory / "config.json").write_text(json.dumps(config))
    prompt = prompt_of(case, TOKENS)
    rows = []
    for backend in (ReferenceBackend(), cpu_backend):
        runner = Runner(load(directory, backend))
        [found] = runner.step([(runner.request(prompt), TOKENS)])
        rows.append(found)
    errors = np.abs(rows[0] - rows[1]).max(axis=1) / np.abs(rows[0]).max()
    assert np.quantile(errors, 0.25) < 1e-3
    assert errors.max() < 2e-2


def test_through_the_engine(tmp_path: Path) -> None:
    """Tokens are the same alone, in a batch, and from packed weights."""
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 288,
        "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "rms_norm_eps": 1e-6,
        "rope_theta": 1e4, "max_position_embeddings": 256, "tie_word_embeddings": False,
        "hidden_act": "silu", "num_experts": 6, "num_experts_per_tok": 2,
        "moe_intermediate_size": 256, "norm_topk_prob": True,
    }  # fmt: skip
    mixture = gguf_mixtures.MixtureFile("qwen3moe", config, random_tensors(config))
    file = mixture.write(tmp_path / "m.gguf", lambda name: "Q6_K" if "down" in name else "Q4_0")
    wanted = _tokens(file)
    assert _tokens(file, max_num_seqs=1) == wanted
    packed = quantize_model(EngineArgs(str(file)), tmp_path / "packed").path
    assert _tokens(packed) == wanted
    assert _tokens(file, quantization="int4") != wanted


def _tokens(model: Path, **given: Any) -> list[list[int]]:
    given = {"max_num_batched_tokens": 128, "max_num_seqs": 4, "max_model_len": 64, **given}
    with LLM(str(model), **given) as llm:
        params = SamplingParams(temperature=0.8, seed=3, max_tokens=12, ignore_eos=True)
        prompts: list[Any] = [{"prompt_token_ids": ids} for ids in ([1, 2, 3], list(range(40)))]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]


def test_routers_stay_numbers(tmp_path: Path) -> None:
    """Whatever type a file has for them, they are not held in it."""
    case = next(case for case in MIXTURES if case.name == "qwen3moe")
    model = _model(case, tmp_path, lambda name: "Q8_0")  # noqa: ARG005
    directory = resolve_model(str(model.file))
    config = read_config(directory)
    types = config["quantization_config"]["types"]
    types["model.layers.0.mlp.gate.weight"] = "Q8_0"
    program = build_program(config)
    routes = {op.logits.name for op in program.ops if isinstance(op, Route)}
    routers = [op for op in program.ops if getattr(op, "exact", False)]
    assert len(routers) == len(routes) == 2
    assert all(op.weight.format == "dense" for op in routers)


def _refused(case: Case, tmp_path: Path, **written: Any) -> str:
    mixture = _mixture(case, tmp_path / "checkpoint")
    file = mixture.write(tmp_path / "m.gguf", **written)
    with pytest.raises(ModelError) as caught:
        check_binding(file)
    return str(caught.value)


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ({"expert_count": 6}, r"ffn_gate_inp.weight' has shape \[5, 64\]; by the keys, 6 experts"),
        ({"expert_count": 1 << 30}, "expert_count is 1073741824; it must be a number of experts"),
        ({"expert_count": 0}, "expert_count is 0; it must be"),
        ({"expert_used_count": 9}, "expert_used_count is 9; it must be from 1 to the 5 experts"),
        ({"expert_used_count": None}, "expert_used_count is None; it must be a whole number"),
        ({"expert_feed_forward_length": 64}, r"has shape \[5, 32, 64\].*5 experts of 64 numbers"),
        ({"expert_gating_func": 2}, "expert_gating_func is 2; models of this architecture have 1"),
        ({"block_count": 1 << 31}, "block_count is 2147483648; it must be a number of layers"),
        ({"block_count": 3}, "missing tensor"),
        ({"block_count": 1}, "unexpected tensor"),
        (
            {"without": "blk.1.ffn_up_exps.weight"},
            "'blk.1.ffn_up_exps.weight' of shape .* is missing",
        ),
        ({"without": "blk.0.ffn_down_exps.weight"}, "tensor 'blk.0.ffn_down_exps.weight' of shape"),
        ({"without": "blk.1.attn_q.weight"}, "missing tensor 'model.layers.1.self_attn.q_proj"),
    ],
)
def test_lies_are_named(written: dict[str, Any], named: str, tmp_path: Path) -> None:
    case = next(case for case in MIXTURES if case.name == "qwen3moe")
    assert re.search(named, _refused(case, tmp_path, **written))


def test_a_layer_without_experts_and_half_a_matrix(tmp_path: Path) -> None:
    case = next(case for case in MIXTURES if case.name == "granitemoe")
    said = _refused(case, tmp_path, without="blk.1.ffn_gate_inp.weight")
    assert "layer 1 has no experts" in said
    said = _refused(case, tmp_path, without="blk.0.ffn_up_shexp.weight")
    assert "ffn_gate_shexp.weight' is one half of" in said


def test_two_tensors_of_one_name(tmp_path: Path) -> None:
    case = MIXTURES[0]
    extra = {"blk.0.ffn_gate.3.weight": np.ones((32, 64), np.float32)}
    mixture = _mixture(case, tmp_path / "checkpoint")
    file = mixture.write(tmp_path / "m.gguf", extra=extra)
    with pytest.raises(CheckpointError, match=r"stand for 'model\.layers\.0\.block_sparse_moe"):
        check_binding(file)
