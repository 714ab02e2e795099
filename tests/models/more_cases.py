"""Cases of the families that differ from Llama by values: each with all its deltas on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import transformers

# Tests compute more tokens than the original length: transformers takes the long factors from there
# on, Quire always where the context is longer.
_LONG = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 30,
    "short_factor": [1.0 + 0.01 * i for i in range(6)],
    "long_factor": [1.5 + 0.3 * i for i in range(6)],
}  # fmt: skip


def more_cases(decoder: Callable[..., Any], no_special: Mapping[str, Any]) -> list[Any]:
    """`decoder(name, config_class, **settings)` makes a case of a Llama-like shape."""
    gqa = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 24, "hidden_size": 84}
    square = {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96}
    untied = {"tie_word_embeddings": False}

    def rope(**parameters: Any) -> dict[str, Any]:
        return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, **parameters}}

    def plain(name: str, config: str, **settings: Any) -> Any:
        """Without head_dim, which the class does not have."""
        case = decoder(name, getattr(transformers, config), **settings)
        kept = {key: value for key, value in case.settings.items() if key != "head_dim"}
        return type(case)(case.name, case.config_class, kept)

    def own(name: str, config: str, **settings: Any) -> Any:
        """Only what is given."""
        case = decoder(name, getattr(transformers, config))
        return type(case)(name, case.config_class, {"vocab_size": 151, **no_special, **settings})

    def like(name: str, config: str, **settings: Any) -> Any:
        return decoder(name, getattr(transformers, config), **{**gqa, **untied, **settings})

    half = rope(partial_rotary_factor=0.5)
    by_kind = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
        "full_attention": {"rope_type": "proportional", "rope_theta": 5e4,
                           "partial_rotary_factor": 0.3},
    }  # fmt: skip
    gemma = {
        "sliding_window": 19, "num_hidden_layers": 6, "final_logit_softcapping": 5.0,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
    }  # fmt: skip
    found = [
        plain("phi3-longrope", "Phi3Config", **square, max_position_embeddings=160,
              original_max_position_embeddings=30, sliding_window=50,
              rope_parameters={**_LONG, "partial_rotary_factor": 0.75}),
        plain("phi3", "Phi3Config", **square, tie_word_embeddings=True),
        like("smollm3", "SmolLM3Config", num_hidden_layers=4, no_rope_layers=[1, 0, 1, 0]),
        plain("olmo", "OlmoConfig", **square, clip_qkv=0.8, num_hidden_layers=3),
        plain("olmo2", "Olmo2Config", **square, attention_bias=True, num_hidden_layers=4),
        plain("olmo3", "Olmo3Config", **square, num_hidden_layers=4, sliding_window=19,
              rope_parameters={
                  "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
                  "full_attention": {"rope_type": "yarn", "rope_theta": 5e3, "factor": 4.0,
                                     "original_max_position_embeddings": 64}}),
        like("exaone4", "Exaone4Config", num_hidden_layers=4, sliding_window=19,
             sliding_window_pattern=2),
        like("exaone4-no-window", "Exaone4Config", sliding_window=None,
             layer_types=["full_attention"] * 2),
        like("glm", "GlmConfig", attention_bias=True, **half),
        like("glm4", "Glm4Config", attention_bias=True, **half),
        plain("cohere", "CohereConfig", **square, logit_scale=0.3, use_qk_norm=True,
              tie_word_embeddings=False),
        like("cohere2", "Cohere2Config", num_hidden_layers=4, sliding_window=19, logit_scale=0.4),
        like("ministral3", "Ministral3Config", max_position_embeddings=160, rope_parameters={
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "beta_fast": 32.0,
            "beta_slow": 1.0, "original_max_position_embeddings": 20,
            "llama_4_scaling_beta": 0.4, "mscale": 1.0, "mscale_all_dim": 1.0}),
        like("seed-oss", "SeedOssConfig", attention_bias=True, attention_out_bias=False),
        like("ernie4.5", "Ernie4_5Config", use_bias=True),
        like("hunyuan", "HunYuanDenseV1Config",
             rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0,
                              "factor": 1.0}),
        plain("starcoder2", "Starcoder2Config", **square, sliding_window=33,
              hidden_act="gelu_pytorch_tanh", tie_word_embeddings=False),
        plain("stablelm", "StableLmConfig", **square, use_qkv_bias=True, qk_layernorm=True, **half),
        plain("stablelm-parallel", "StableLmConfig", **square, use_parallel_residual=True, **half),
        plain("phi", "PhiConfig", **square, hidden_act="gelu_new", **half),
        plain("gpt-neox", "GPTNeoXConfig", **square, hidden_act="gelu", **half),
        plain("gpt-neox-serial", "GPTNeoXConfig", **square,
              use_parallel_residual=False, hidden_act="gelu", **half),
        own("gptj", "GPTJConfig", n_embd=84, n_head=6, n_layer=3, n_positions=160, rotary_dim=6,
            n_inner=90, initializer_range=0.15),
        own("bloom", "BloomConfig", hidden_size=66, n_head=6, n_layer=3, initializer_range=0.2,
            tie_word_embeddings=False),
        own("falcon-7b", "FalconConfig", hidden_size=84, num_attention_heads=6,
            num_hidden_layers=3, initializer_range=0.2, bias=True, tie_word_embeddings=False),
        own("falcon-40b", "FalconConfig", hidden_size=96, num_attention_heads=6, num_kv_heads=2,
            num_hidden_layers=3, initializer_range=0.2, new_decoder_architecture=True,
            tie_word_embeddings=False),
        own("falcon-serial", "FalconConfig", hidden_size=84, num_attention_heads=6,
            num_hidden_layers=3, initializer_range=0.2, multi_query=False, parallel_attn=False,
            tie_word_embeddings=False),
        like("nemotron", "NemotronConfig", hidden_act="relu2", attention_bias=True, **half),
        like("arcee", "ArceeConfig", hidden_act="relu2"),
        like("gemma3n", "Gemma3nTextConfig", **gemma, num_kv_shared_layers=3,
             intermediate_size=[90, 70, 90, 70, 80, 80], vocab_size_per_layer_input=140,
             hidden_size_per_layer_input=12, laurel_rank=7, altup_num_inputs=3,
             altup_active_idx=1, activation_sparsity_pattern=[0.9, 0.0, 0.6, 0.3, 0.0, 0.8],
             rope_parameters={
                 "full_attention": {"rope_type": "default", "rope_theta": 5e5},
                 "sliding_attention": {"rope_type": "default", "rope_theta": 3e3}}),
        like("gemma4", "Gemma4TextConfig", **gemma, num_kv_shared_layers=2, global_head_dim=40,
             attention_k_eq_v=True, num_global_key_value_heads=3, use_double_wide_mlp=True,
             hidden_size_per_layer_input=12, vocab_size_per_layer_input=151,
             attention_bias=True, rope_parameters=by_kind),
        like("gemma4-mixture", "Gemma4TextConfig", **{**gemma, "num_hidden_layers": 3,
             "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
             global_head_dim=48, hidden_size_per_layer_input=0, enable_moe_block=True,
             num_experts=7, top_k_experts=3, moe_intermediate_size=27, rope_parameters=by_kind),
        like("gemma4-unified", "Gemma4UnifiedTextConfig", **gemma, global_head_dim=16,
             rope_parameters=by_kind),
        like("apertus", "ApertusConfig", initializer_range=0.3, **rope()),
        like("helium", "HeliumConfig", head_dim=14),
        like("internlm3", "InternLM3Config", attention_bias=True, mlp_bias=True)
        if hasattr(transformers, "InternLM3Config") else None,
        like("ministral", "MinistralConfig", sliding_window=17,
             layer_types=["sliding_attention", "full_attention"])
        if hasattr(transformers, "MinistralConfig") else None,
    ]  # fmt: skip
    return [case for case in found if case is not None]
