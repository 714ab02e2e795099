"""FP8, bitsandbytes, NVFP4 and act-order checkpoints: held as they are, or read as plain numbers.

Each is made from a random model. What a stored matrix stands for is computed in `quantised_files`,
by the formulas of the projects that write such files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_harness import Runner, load
from quantised_files import BNB, FLOATS, KINDS, compressed, experts, llama, write
from safetensors.torch import load_file, save_file

from quire import LLM, SamplingParams
from quire.backends.base import Backend
from quire.backends.cpu import CpuBackend
from quire.backends.reference import ReferenceBackend
from quire.cli import main
from quire.config.checkpoint.model_files import read_config
from quire.config.engine_args import EngineArgs
from quire.errors import CheckpointError, UnsupportedModelError
from quire.models import Shipped, as_expanded, build_program, name_map, shipped_format
from quire.planning.plan import plan_engine
from quire.planning.quantize import quantize_model
from quire.planning.stored_matrices import as_stored
from quire.program import GroupedFormat
from quire.weights import bind, open_checkpoint
from quire.weights.quantised.float_tables import E4M3
from quire.weights.quantised.store import as_shipped

EXPANDED = [kind for kind in KINDS if kind != "nvfp4"]
FORMATS = {
    "fp8-held-blocks": "e4m3 g32 f32 (9.00 bits per weight)",
    "nvfp4": "e2m1 g16 e4m3 a16 (4.50 bits per weight)",
    "nf4-nested": "nf4 g64 f32 (4.50 bits per weight)",
    "gptq-act-order": "u4 g32 f32+zero+order a16 (5.25 bits per weight)",
}
HELD = [kind for kind in KINDS if kind not in ("fp8-blocks", "bitsandbytes-8")]


def weights_of(directory: Path, *, expanded: bool = False) -> Any:
    config = as_stored(read_config(directory), directory)
    if expanded:
        config = as_expanded(config)
    store = as_shipped(open_checkpoint(directory), shipped_format(config))
    return bind(build_program(config), store, name_map(config).canonical)


@pytest.mark.parametrize("kind", HELD)
def test_what_is_held_is_the_formula(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    meant = write(kind, llama(), tmp_path)
    program, bound = build_program(read_config(tmp_path)), weights_of(tmp_path)
    formats = {part.name: param.format for param in program.params() for part in param.parts}
    for name, tensor in meant.items():
        found = bound.get(name)
        has_whole_groups = not kind.startswith(("nf4", "fp4")) or tensor.shape[-1] % 64 == 0
        is_held = name.endswith("proj.weight") and has_whole_groups
        assert isinstance(formats.get(name, "dense"), GroupedFormat) == is_held, name
        assert (found.dtype == "GROUPED") == is_held
        np.testing.assert_array_equal(found.to_float32(), tensor.float().numpy(), err_msg=name)


@pytest.mark.parametrize("kind", EXPANDED)
def test_the_numbers_are_those_of_the_formula(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    meant = write(kind, llama(), tmp_path)
    bound = weights_of(tmp_path, expanded=True)
    for name, tensor in meant.items():
        found = bound.get(name)
        assert found.dtype != "GROUPED"
        np.testing.assert_array_equal(found.to_float32(), tensor.float().numpy(), err_msg=name)


@pytest.mark.parametrize("kind", ["fp8-blocks", "fp8-held-blocks", "gptq-act-order", "nvfp4"])
def test_experts_are_read_too(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    meant = write(kind, experts(), tmp_path)
    bound = weights_of(tmp_path)
    names = [name for name in meant if ".experts." in name]
    assert names
    for name in names:
        np.testing.assert_array_equal(bound.get(name).to_float32(), meant[name].numpy())


@pytest.mark.parametrize("kind", [*HELD, "fp8-blocks"])
@pytest.mark.parametrize("backend", [CpuBackend(2), ReferenceBackend()], ids=["cpu", "reference"])
@pytest.mark.parametrize("make", [llama, experts])
def test_logits_are_those_of_transformers(
    kind: str, backend: Backend, make: Callable[[], torch.nn.Module], tmp_path: Path
) -> None:
    """Of a step of the prompt, and the same bits of a step for each token."""
    torch.manual_seed(0)
    model = make()
    meant = write(kind, model, tmp_path)
    model.load_state_dict(as_loaded(model, meant))
    tokens = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0].numpy()
    runner = Runner(load(tmp_path, backend))
    [logits] = runner.step([(runner.request(tokens), len(tokens))])
    np.testing.assert_allclose(logits, expected, atol=2e-3 * float(np.abs(expected).max()))
    one_by_one = runner.request(tokens)
    alone = [runner.step([(one_by_one, 1)])[0][0] for _ in tokens]
    np.testing.assert_array_equal(np.stack(alone), logits)


def as_loaded(model: torch.nn.Module, meant: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of a file under the names of the model in memory, which has experts in one tensor."""
    state = dict(meant)
    for name in model.state_dict():
        if name.endswith("experts.gate_up_proj") or name.endswith("experts.down_proj"):
            prefix, kinds = name.rpartition(".")[0], ("gate_proj", "up_proj")
            wanted = kinds if name.endswith("gate_up_proj") else ("down_proj",)
            count = len(model.state_dict()[name])
            state[name] = torch.stack(
                [
                    torch.cat([state.pop(f"{prefix}.{e}.{k}.weight") for k in wanted])
                    for e in range(count)
                ]
            )
    return state


def plan_of(directory: Path, quantization: str | None = None) -> Any:
    return plan_engine(
        EngineArgs(str(directory), quantization=quantization, skip_tokenizer_init=True)
    )


def test_matrices_that_the_file_has_as_numbers_stay_so(tmp_path: Path) -> None:
    """A configuration of FP8 does not list them all."""
    torch.manual_seed(0)
    meant = write("fp8-held-blocks", llama(), tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    stored[name] = meant[name]
    del stored[f"{name}_scale_inv"]
    save_file(stored, tmp_path / "model.safetensors")
    formats = {param.name: param.format for param in plan_of(tmp_path).compiled.program.params()}
    assert formats["layers.1.down.weight"] == "dense"
    assert isinstance(formats["layers.0.down.weight"], GroupedFormat)


@pytest.mark.parametrize("kind", ["gptq-act-order", "packed-act-order"])
def test_orders_that_are_unlike_are_expanded(kind: str, tmp_path: Path) -> None:
    """q, k and v are multiplied as one."""
    torch.manual_seed(0)
    write(kind, llama(), tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    name = "g_idx" if kind == "gptq-act-order" else "weight_g_idx"
    order = stored[f"model.layers.0.self_attn.k_proj.{name}"]
    assert isinstance(shipped_format(plan_of(tmp_path).config.model.hf_config), Shipped)
    stored[f"model.layers.0.self_attn.k_proj.{name}"] = order.flip(0).contiguous()
    save_file(stored, tmp_path / "model.safetensors")
    plan = plan_of(tmp_path)
    assert {param.format for param in plan.compiled.program.params()} == {"dense"}
    found = shipped_format(plan.config.model.hf_config)
    assert "which differs between" in found.what


@pytest.mark.sweep(3)
@pytest.mark.parametrize("kind", ["fp8-held-blocks", "nvfp4", "nf4-nested", "gptq-act-order"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_packed_weights_give_the_same_tokens(
    kind: str, dtype: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    write(kind, experts(), tmp_path / "model")
    args = EngineArgs(str(tmp_path / "model"), dtype=dtype, skip_tokenizer_init=True)
    packed = quantize_model(args, tmp_path / "packed").path

    def tokens(model: Path) -> list[int]:
        with LLM(str(model), dtype=dtype, skip_tokenizer_init=True, max_model_len=64) as llm:
            prompt = {"prompt_token_ids": [1, 2, 3, 4, 5]}
            params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
            [found] = llm.generate(prompt, params, use_tqdm=False)
            return list(found.outputs[0].token_ids)

    assert tokens(packed) == tokens(tmp_path / "model")
    assert main(["explain", str(packed), "--skip-tokenizer-init", "--no-timing"]) == 0
    assert FORMATS[kind] in capsys.readouterr().out


def test_every_byte_is_the_number_that_torch_has_of_it() -> None:
    codes = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn)
    np.testing.assert_array_equal(E4M3, codes.float().numpy())


def test_it_is_said_that_they_are_expanded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write("fp8-blocks", llama(), tmp_path)
    config = read_config(tmp_path)
    with caplog.at_level(logging.INFO, logger="quire"):
        as_shipped(open_checkpoint(tmp_path), shipped_format(config))
    assert "FP8 with a scale for each 48 x 40: 14 of 14 matrices are expanded" in caplog.text


def test_a_format_may_be_asked_for_beside(tmp_path: Path) -> None:
    """The numbers are rounded like those of any checkpoint; the method's own name changes none."""
    write("fp8-blocks", llama(), tmp_path)
    for name, held in (("int8", "int8"), ("fp8", None), (None, None)):
        assert plan_of(tmp_path, name).config.model.quantization == held


@pytest.mark.parametrize("kind", ["fp8-held-blocks", "nf4-nested", "packed-act-order"])
def test_what_is_held_may_be_rounded_instead(kind: str, tmp_path: Path) -> None:
    method = KINDS[kind][1]["quant_method"]
    write(kind, llama(), tmp_path)
    assert plan_of(tmp_path, method).config.model.quantization is None
    plan = plan_of(tmp_path, "int8")
    assert plan.config.model.quantization == "int8"
    assert {str(param.format) for param in plan.compiled.program.params()} == {"dense", "int8"}


@pytest.mark.parametrize(
    ("kind", "part", "change"),
    [
        ("fp8-blocks", "weight_scale_inv", lambda t: t[:, :-1].contiguous()),
        ("fp8-tensor", "weight_scale", lambda t: t.repeat(3)),
        ("nf4", "weight.absmax", lambda t: t[1:].contiguous()),
        ("nf4", "weight.quant_map", lambda t: t * float("nan")),
        ("nf4", "weight", lambda t: t[1:].contiguous()),
        ("nf4", "weight.quant_state.bitsandbytes__nf4", lambda t: t[1:].contiguous()),
        ("nf4-nested", "weight.nested_quant_map", lambda t: t[:9].contiguous()),
        ("gptq-act-order", "g_idx", lambda t: t + 1),
        ("gptq-act-order", "g_idx", lambda t: t[1:].contiguous()),
        ("gptq-act-order", "g_idx", lambda t: t - 1),
    ],
)
def test_parts_that_do_not_fit_are_named(
    kind: str, part: str, change: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    write(kind, llama(), tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    base = "model.layers.0.mlp.down_proj"
    stored[f"{base}.{part}"] = change(stored[f"{base}.{part}"])
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"down_proj\.weight' do not fit together"):
        weights_of(tmp_path).get(f"{base}.weight")


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt 'e5m2'"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, r"blocks of \[128\]"),
        ({**BNB, "bnb_4bit_quant_type": "int4"}, "bnb_4bit_quant_type 'int4'"),
        ({**KINDS["gptq-act-order"][1], "bits": 5}, "bits 5"),
        (compressed("float-quantized", {**FLOATS, "strategy": "token"}), "strategy 'token'"),
    ],
)
def test_other_numbers_are_refused(config: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        shipped_format({"quantization_config": config})
