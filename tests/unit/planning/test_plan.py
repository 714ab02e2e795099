"""From arguments to a concrete configuration, without loading a weight."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoint import write_tiny_checkpoint

from quire.backends.cpu import load
from quire.config.engine_args import EngineArgs
from quire.errors import (
    BackendError,
    CheckpointError,
    ConfigError,
    DoesNotFitError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from quire.planning.plan import build_engine_config, plan_engine


def args(model_dir: Path, **given: Any) -> EngineArgs:
    return EngineArgs(str(model_dir), backend="reference", **given)


def test_everything_is_settled(model_dir: Path) -> None:
    config = build_engine_config(args(model_dir, kv_cache_memory_bytes=1 << 20))
    assert config.model.path == model_dir
    assert config.model.architecture == "Qwen3ForCausalLM"
    assert config.model.dtype == config.cache.kv_cache_dtype == "bfloat16"
    assert config.model.max_model_len == 512
    assert config.model.eos_token_ids == (256,)
    assert config.model.served_model_name == (str(model_dir),)
    assert config.model.tokenizer_path == model_dir
    assert config.cache.num_blocks == (1 << 20) // config.cache.block_bytes
    assert config.scheduler.max_num_seqs == 256
    assert build_engine_config(args(model_dir), "server").scheduler.max_num_seqs == 128


def test_a_text_model_may_have_limits_of_images(
    model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "quire"):
        limits = {"image": 5, "audio": 1, "video": {"num_frames": 8}}
        plan = plan_engine(args(model_dir, limit_mm_per_prompt=limits))
    assert plan.config.model.images is None
    assert "has no effect here: it is a text model" in caplog.text


def test_the_numbers_behind_it(model_dir: Path) -> None:
    plan = plan_engine(args(model_dir))
    file_bytes = (model_dir / "model.safetensors").stat().st_size
    assert abs(plan.needs.weight_bytes - file_bytes) < 8192, "the reference holds float32"
    assert plan.needs.kv_block_bytes == 2 * 2 * 16 * 2 * 16 * 2  # layers, K and V, slots, ...
    assert plan.facts.memory.available_bytes > 0


@pytest.mark.parametrize("name", ["int8", "int8_w8a8", "int4", "int4_w4a8"])
def test_quantised_weights_are_planned_for(model_dir: Path, name: str) -> None:
    plain, plan = (plan_engine(args(model_dir, quantization=q)) for q in (None, name))
    assert plan.config.model.quantization == name
    formats = {"dense", name, name.replace("int4_w4a8", "int8_w8a8").replace("int4", "int8")}
    assert {param.format for param in plan.compiled.program.params()} == formats
    assert plan.config.cache.fingerprint != plain.config.cache.fingerprint
    if cpu_is_built():
        given = {"backend": "cpu", "quantization": name}
        num_bytes = plan_engine(EngineArgs(str(model_dir), **given)).needs.weight_bytes
        dense = plan_engine(EngineArgs(str(model_dir), backend="cpu")).needs.weight_bytes
        bits = 8 if name.startswith("int8") else 4
        # The table of an untied head stays in bfloat16.
        assert bits / 16 < num_bytes / dense < bits / 16 + 0.3


def test_an_int8_cache_holds_nearly_twice_as_many_blocks(model_dir: Path) -> None:
    """A scale of 4 bytes for each token and head, beside 16 numbers that had 2 bytes each."""
    given = {"kv_cache_memory_bytes": 1 << 20}
    whole, half = (
        plan_engine(args(model_dir, kv_cache_dtype=d, **given)) for d in ("auto", "int8")
    )
    assert half.needs.kv_block_bytes == 2 * 2 * 16 * 2 * (16 + 4)
    assert half.config.cache.num_blocks == (1 << 20) // half.needs.kv_block_bytes
    assert half.config.cache.num_blocks > 1.55 * whole.config.cache.num_blocks
    named = build_engine_config(args(model_dir, kv_cache_dtype="int8_per_token_head"))
    assert named.cache.kv_cache_dtype == "int8"
    if cpu_is_built():
        sizes = [
            plan_engine(
                EngineArgs(str(model_dir), backend="cpu", kv_cache_dtype=dtype)
            ).needs.kv_block_bytes
            for dtype in ("bfloat16", "int8", "int4")
        ]
        scales = 2 * 2 * 16 * 2 * 4
        assert sizes[1:] == [sizes[0] // 2 + scales, sizes[0] * 9 // 32 + scales]


def test_a_block_size_that_the_backend_cannot_hold(model_dir: Path) -> None:
    assert build_engine_config(args(model_dir, block_size=24)).cache.block_size == 24
    if not cpu_is_built():
        pytest.skip("the native library, which wants whole groups, is not built here")
    with pytest.raises(ConfigError, match="block_size must be a multiple of 16, got 24; try"):
        build_engine_config(EngineArgs(str(model_dir), backend="cpu", block_size=24))


def cpu_is_built() -> bool:
    try:
        load()
    except BackendError:
        return False
    return True


def test_layers_with_a_window_are_planned_as_such(tmp_path: Path) -> None:
    """Two layers of each kind: a block holds two layers, as half a block did that held all."""
    types = ["sliding_attention", "full_attention"] * 2
    checkpoint = {
        "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 4,
        "use_sliding_window": True, "sliding_window": 33, "layer_types": types,
    }  # fmt: skip
    model = write_tiny_checkpoint(tmp_path, **checkpoint)
    given = {"max_num_batched_tokens": 64, "max_num_seqs": 4}
    plan, short = (plan_engine(args(model, max_model_len=n, **given)) for n in (512, 33))
    layout = plan.config.cache.layout
    assert [(g.window, g.layers) for g in layout.groups] == [(33, (0, 2)), (None, (1, 3))]
    assert short.config.cache.layout.keeps_all
    assert short.needs.kv_block_bytes == 2 * plan.needs.kv_block_bytes
    # 512 tokens in full, and 33 - 1 + 64 of a window.
    assert plan.needs.kv_blocks(512) == 32 + 7
    with pytest.raises(DoesNotFitError, match=r"\(512\).*set max_model_len=496"):
        plan_engine(args(model, num_gpu_blocks_override=38, **given))
    fitted = plan_engine(args(model, num_gpu_blocks_override=38, max_model_len=-1, **given))
    assert fitted.config.model.max_model_len == 496
    assert fitted.config.cache.layout == layout


def test_the_context_is_fitted_on_request(model_dir: Path) -> None:
    block_bytes = build_engine_config(args(model_dir)).cache.block_bytes
    size = 3 * block_bytes
    config = build_engine_config(args(model_dir, max_model_len=-1, kv_cache_memory_bytes=size))
    assert config.model.max_model_len == 48
    with pytest.raises(DoesNotFitError, match="set max_model_len=48"):
        build_engine_config(args(model_dir, kv_cache_memory_bytes=size))
    with pytest.raises(DoesNotFitError, match="too small for any context"):
        build_engine_config(args(model_dir, max_model_len=-1, kv_cache_memory_bytes=1))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"quantization": "int3"}, ConfigError, "quantization='int3'"),
        ({"max_logprobs": -2}, ConfigError, "max_logprobs"),
        ({"chat_template": "/no/such/file"}, ConfigError, "/no/such/file"),
        ({"max_model_len": 1000}, ConfigError, "use at most 512"),
        ({"tokenizer": "/no/such/place"}, ModelNotFoundError, "/no/such/place"),
        (
            {"hf_overrides": {"architectures": ["FooForCausalLM"]}},
            UnsupportedModelError,
            "is Qwen3",
        ),
        ({"hf_overrides": {"hidden_size": -1}}, CheckpointError, "hidden_size"),
        ({"backend": "tpu"}, ConfigError, "backend='tpu'"),
        ({"block_size": 0}, ConfigError, "block_size"),
    ],
)
def test_what_cannot_work_is_refused_before_loading(
    model_dir: Path, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build_engine_config(EngineArgs(str(model_dir), **{"backend": "reference", **given}))


def test_a_place_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"config\.json"):
        build_engine_config(args(tmp_path))
    with pytest.raises(ModelNotFoundError):
        build_engine_config(args(tmp_path / "nothing"))


def test_extra_end_tokens_beyond_the_vocabulary_are_left_out(
    model_dir: Path, tmp_path: Path
) -> None:
    copied = Path(shutil.copytree(model_dir, tmp_path / "copy"))
    (copied / "generation_config.json").write_text(json.dumps({"eos_token_id": [256, 9999]}))
    assert build_engine_config(args(copied)).model.eos_token_ids == (256,)


def test_where_sampling_defaults_come_from(model_dir: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(model_dir, tmp_path / "copy"))
    own, other = {"temperature": 0.6, "eos_token_id": 5}, {"temperature": 0.7, "eos_token_id": 6}
    (copied / "generation_config.json").write_text(json.dumps(own))
    (tmp_path / "generation_config.json").write_text(json.dumps(other))
    for choice, held in (
        ("auto", {"temperature": 0.6}),
        ("vllm", {}),
        (str(tmp_path), {"temperature": 0.7}),
    ):
        model = build_engine_config(args(copied, generation_config=choice)).model
        assert model.default_sampling_params == held
        assert model.eos_token_ids == (5,), "the model's own, wherever the defaults come from"


def test_a_chat_template_from_a_file(model_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{{ messages }}")
    config = build_engine_config(args(model_dir, chat_template=str(file)))
    assert config.model.chat_template == "{{ messages }}"


def test_an_instruction_set_that_does_not_exist(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_ISA", "mmx")
    with pytest.raises((ConfigError, BackendError), match=r"mmx|not built"):
        build_engine_config(EngineArgs(str(model_dir), backend="cpu"))


@pytest.mark.parametrize("backend", ["xgrammar", "outlines", "lm-format-enforcer"])
def test_the_choice_of_a_grammar_backend_is_told_to_have_no_effect(
    model_dir: Path, backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "quire"):
        plan_engine(args(model_dir, structured_outputs_config={"backend": "guidance"}))
        assert "backend" not in caplog.text
        plan_engine(args(model_dir, structured_outputs_config={"backend": backend}))
    assert f"structured_outputs_config.backend='{backend}' has no effect here" in caplog.text
