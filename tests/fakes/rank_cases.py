"""Random models, splits and requests, and what an engine gives for them."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from executor_plans import config_of
from thread_ranks import ThreadRanks

from quire.config.records import EngineConfig
from quire.core.engine_core import EngineCore
from quire.executor.multiproc import MultiprocExecutor
from quire.params import SamplingParams
from quire.protocol import EngineCoreRequest

_WIDE = {
    "num_attention_heads": 8, "head_dim": 8, "num_hidden_layers": 3, "intermediate_size": 112,
}  # fmt: skip
_LATENT = {
    "num_key_value_heads": 8, "kv_lora_rank": 28, "qk_nope_head_dim": 14, "qk_rope_head_dim": 8,
    "v_head_dim": 10, "q_lora_rank": 22,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], **_WIDE, "num_key_value_heads": 4},
    "llama": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", **_WIDE,
        "num_key_value_heads": 8, "tie_word_embeddings": True,
    },
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", **_WIDE,
        "num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 20,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "gemma2": {
        "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", **_WIDE,
        "num_key_value_heads": 1, "query_pre_attn_scalar": 8, "sliding_window": 20,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True,
    },
    "qwen2_moe": {
        "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", **_WIDE,
        "num_key_value_heads": 4, "num_experts": 6, "num_experts_per_tok": 3,
        "moe_intermediate_size": 48, "shared_expert_intermediate_size": 80,
    },
    "minicpm3": {
        "architectures": ["MiniCPM3ForCausalLM"], "model_type": "minicpm3", **_WIDE, **_LATENT,
        "dim_model_base": 20, "scale_emb": 3,
    },
    "deepseek_v3": {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", **_WIDE, **_LATENT,
        "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 27, "n_group": 4,
        "topk_group": 2, "first_k_dense_replace": 1, "n_shared_experts": 2,
        "routed_scaling_factor": 1.3, "norm_topk_prob": True, "scoring_func": "sigmoid",
        "topk_method": "noaux_tc", "moe_layer_freq": 1,
    },
    "lfm2": {
        "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", **_WIDE,
        "num_key_value_heads": 4, "block_multiple_of": 4, "block_ffn_dim_multiplier": 1.3,
        "num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "conv"],
        "conv_L_cache": 5, "conv_bias": True, "norm_eps": 1e-5,
    },
    "mamba2": {
        "architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "num_hidden_layers": 3,
        "num_heads": 10, "head_dim": 12, "n_groups": 2, "state_size": 18, "expand": 2,
        "hidden_size": 60, "conv_kernel": 4, "use_conv_bias": True, "use_bias": False,
        "layer_norm_epsilon": 1e-5, "rms_norm": True, "time_step_limit": [0.0, 100.0],
    },
    "mpt": {
        "architectures": ["MptForCausalLM"], "model_type": "mpt", "d_model": 64, "n_heads": 8,
        "n_layers": 3, "max_seq_len": 128, "expansion_ratio": 4, "attn_config": {"alibi": True},
        "no_bias": True,
    },
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 64, "n_head": 8,
        "n_layer": 3, "n_positions": 128, "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu",
    },
}  # fmt: skip
FORMATS = [
    ("float32", None, "auto"), ("bfloat16", None, "auto"), ("bfloat16", None, "int8"),
    ("bfloat16", "int8", "auto"), ("bfloat16", "int8_w8a8", "int8"), ("float32", None, "int4"),
    ("bfloat16", "int4", "auto"), ("bfloat16", "int4_w4a8", "auto"),
]  # fmt: skip
SPLITS = [(t, p) for t in (1, 2, 3, 4, 8) for p in (1, 2, 3) if t * p > 1]
BACKENDS = ["cpu"] * 4 + ["reference"]


@dataclass(frozen=True)
class Case:
    family: str
    given: dict[str, Any]
    split: dict[str, int]
    narrow: dict[str, Any]
    """Limits of the engine with ranks: chunks of prompts, and few blocks."""
    requests: list[tuple[int, EngineCoreRequest]]
    """With the step before which they arrive."""


def case_of(seed: str) -> Case:
    rng = random.Random(seed)
    family = rng.choice(list(FAMILIES))
    dtype, quantization, kv_cache_dtype = rng.choice(FORMATS)
    if kv_cache_dtype == "int4" and "kv_lora_rank" in FAMILIES[family]:
        kv_cache_dtype = "int8"  # of latent attention
    tensor, stages = rng.choice(SPLITS)
    given = {
        "dtype": dtype, "quantization": quantization, "kv_cache_dtype": kv_cache_dtype,
        "backend": rng.choice(BACKENDS),
    }  # fmt: skip
    narrow = {
        "max_num_batched_tokens": rng.choice([16, 24, 64]),
        "num_gpu_blocks_override": rng.choice([None, 12]),
        "enable_prefix_caching": rng.random() < 0.7,
    }
    shared = [rng.randrange(256) for _ in range(32)]
    requests = []
    for number in range(rng.randint(1, 10)):
        own = [rng.randrange(256) for _ in range(rng.randint(1, 24))]
        params = SamplingParams(
            temperature=rng.choice([0.0, 0.8, 1.2]),
            top_p=rng.choice([1.0, 0.9]),
            seed=number,
            max_tokens=rng.randint(1, 12),
            ignore_eos=True,
            logprobs=2,
        )
        request = EngineCoreRequest(
            request_id=str(number),
            prompt_token_ids=shared[: rng.choice([0, 16, 32])] + own,
            sampling_params=params,
            arrival_time=float(number),
        )
        requests.append((rng.choice([0, 0, 1, 3, 6]), request))
    split = {"tensor_parallel_size": tensor, "pipeline_parallel_size": stages}
    return Case(family, given, split, narrow, requests)


class Run(NamedTuple):
    digest: str
    """Of all tokens and log-probabilities, by request."""
    num_preemptions: int
    num_cached: int
    """The most tokens of a prompt that were not computed."""


def run(core: EngineCore, requests: list[tuple[int, EngineCoreRequest]]) -> Run:
    found: dict[str, list[Any]] = {request.request_id: [] for _, request in requests}
    waiting, step, num_preemptions = sorted(requests, key=lambda one: one[0]), 0, 0
    num_cached = 0
    while waiting or core.has_unfinished_requests():
        while waiting and waiting[0][0] <= step:
            core.add_request(waiting.pop(0)[1])
        outputs = core.step()
        core.scheduler.check_integrity()
        num_preemptions += outputs.stats.num_preemptions if outputs.stats else 0
        for one in outputs.outputs:
            assert one.error is None
            num_cached = max(num_cached, one.num_cached_tokens)
            logprobs = one.logprobs or [None] * len(one.new_token_ids)
            found[one.request_id] += zip(one.new_token_ids, map(repr, logprobs), strict=True)
        step += 1
    core.shutdown()
    sha256 = hashlib.sha256(json.dumps(found).encode()).hexdigest()
    return Run(sha256, num_preemptions, num_cached)


def engine_of_ranks(config: EngineConfig) -> EngineCore:
    return EngineCore(config, MultiprocExecutor(config, ThreadRanks(config)))


def check(case: Case, model: Path) -> int:
    """Fails unless ranks give the bits of one rank. Returns the number of preemptions."""
    wanted = run(EngineCore(config_of(model, **case.given)), case.requests)
    config = config_of(model, **{**case.given, **case.narrow, **case.split})
    found = run(engine_of_ranks(config), case.requests)
    assert found.digest == wanted.digest, case
    return found.num_preemptions
