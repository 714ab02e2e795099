"""Which models can be split among ranks, and what that switches off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoint import write_tiny_checkpoint

from quire.backends.registry import make_backend
from quire.config.engine_args import EngineArgs
from quire.config.ranks import Rank
from quire.errors import ConfigError
from quire.models import build_program
from quire.planning.compile_plan import compile_plan
from quire.planning.plan import build_engine_config
from quire.program.passes import of_rank, run_passes

_RECURRENT = {
    "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "conv_L_cache": 3,
    "layer_types": ["conv", "full_attention"], "norm_eps": 1e-6,
}  # fmt: skip
_LATENT = {
    "architectures": ["MiniCPM3ForCausalLM"], "model_type": "minicpm3", "q_lora_rank": 24,
    "kv_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10,
    "dim_model_base": 20, "scale_emb": 3, "scale_depth": 1.4, "num_key_value_heads": 4,
}  # fmt: skip
_WHISPER = {
    "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "d_model": 32,
    "decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 80, "vocab_size": 300,
    "alignment_heads": [[0, 1], [1, 0]],
}  # fmt: skip


@pytest.mark.parametrize("split", ["tensor_parallel_size", "pipeline_parallel_size"])
@pytest.mark.parametrize(
    ("config", "given"),
    [(_RECURRENT, {}), (_LATENT, {}), ({}, {"runner": "pooling"})],
    ids=["recurrent", "latent", "vectors"],
)
def test_every_rank_has_room_for_its_part(
    tmp_path: Path, config: dict[str, Any], given: dict[str, Any], split: str
) -> None:
    """A state takes as many blocks on all ranks; on none is there less room than it needs."""
    args = EngineArgs(str(write_tiny_checkpoint(tmp_path, **config)), backend="reference", **given)
    whole = build_engine_config(args).cache.layout
    config_of_ranks = build_engine_config(replace(args, **{split: 2}))
    layout = config_of_ranks.cache.layout
    assert len(layout.groups) == len(whole.groups)
    for state in layout.states:
        for rank in config_of_ranks.parallel.ranks:
            plan = compile_plan(config_of_ranks, rank)
            backend = make_backend(config_of_ranks.device)
            assert backend.sized(plan.program, plan.kv).layout.states[0].num_blocks <= (
                state.num_blocks
            )


@pytest.mark.parametrize(
    ("rank", "message"),
    [
        (Rank(0, 0, 2, 1), "pipeline_parallel_size must be 1: every layer of whisper attends"),
        (Rank(0, 0, 1, 3), "tensor_parallel_size=3: the model has 2 query heads"),
    ],
    ids=["stages", "heads"],
)
def test_what_a_decoder_of_sources_cannot_be_split_into(rank: Rank, message: str) -> None:
    program = run_passes(build_program(_WHISPER))
    assert of_rank(program, Rank(0, 1, 1, 2)).program.num_sources == 1500
    with pytest.raises(ConfigError, match=message):
        of_rank(program, rank)


def test_a_pipeline_guesses_by_lookup_alone(model_dir: Path) -> None:
    given: dict[str, Any] = {"model": str(model_dir), "backend": "reference"}
    one = build_engine_config(EngineArgs(**given, tensor_parallel_size=2))
    assert one.scheduler.speculation is not None
    given["pipeline_parallel_size"] = 2
    guesses = build_engine_config(EngineArgs(**given)).scheduler.speculation
    assert guesses is not None
    assert guesses.method == "ngram"
    given["speculative_config"] = {"model": str(model_dir), "num_speculative_tokens": 3}
    with pytest.raises(ConfigError, match="a draft model or a head needs all of them"):
        build_engine_config(EngineArgs(**given))
