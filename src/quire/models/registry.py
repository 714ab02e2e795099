"""`ModelRegistry`: maps the `architectures` of config.json to a family.

A new model needs a `ModelFamily` in `families/`, and its architectures below, in the row of that
module. Families are imported on first use.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from quire.errors import CheckpointError, UnsupportedModelError
from quire.models.base import HfConfig, ModelFamily

_MODULES: dict[str, tuple[str | tuple[str, ...], ...]] = {
    "cohere": (("Cohere2ForCausalLM", "cohere2"), "CohereForCausalLM"),
    "glm": (
        "ChatGLMForConditionalGeneration", "ChatGLMModel", ("Glm4ForCausalLM", "glm4"),
        "GlmForCausalLM",
    ),
    "granite": (("GraniteForCausalLM", "granite"), "MiniCPMForCausalLM"),
    "bloom_mpt_starcoder": (
        "BloomForCausalLM", "MPTForCausalLM", "MptForCausalLM", "NemotronForCausalLM",
        "Starcoder2ForCausalLM",
    ),
    "gpt2_and_opt": ("GPT2LMHeadModel", "OPTForCausalLM"),
    "llama": (
        "ApertusForCausalLM", "ArceeForCausalLM", "Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM",
        "HeliumForCausalLM", "HunYuanDenseV1ForCausalLM", "InternLM3ForCausalLM",
        "LLaMAForCausalLM", ("LlamaForCausalLM", "llama"), ("Phi3ForCausalLM", "phi3"),
        "SeedOssForCausalLM", ("SmolLM3ForCausalLM", "smollm3"),
    ),
    "olmo": ("Exaone4ForCausalLM", "Olmo2ForCausalLM", "Olmo3ForCausalLM", "OlmoForCausalLM"),
    "neox_phi_falcon": (
        "FalconForCausalLM", "GPTJForCausalLM", "GPTNeoXForCausalLM", "PhiForCausalLM",
        "RWForCausalLM", "StableLMEpochForCausalLM", "StableLmForCausalLM",
    ),
    "internlm_baichuan_exaone": (
        "BaiChuanForCausalLM", "BaichuanForCausalLM", "ExaoneForCausalLM",
        ("InternLM2ForCausalLM", "internlm2"),
    ),
    "mistral": (
        ("Ministral3ForCausalLM", "ministral3"), "MinistralForCausalLM",
        ("MistralForCausalLM", "mistral"),
    ),
    "qwen": (
        ("Qwen2ForCausalLM", "qwen2", "qwen2_5_vl_text", "qwen2_vl_text"),
        ("Qwen3ForCausalLM", "qwen3", "qwen3_vl_text"),
    ),
    "bert": (
        "BertModel", "BgeM3EmbeddingModel", "CamembertModel", "DistilBertModel", "JinaBertModel",
        "MPNetModel", "RobertaModel", "XLMRobertaModel",
    ),
    "rotary_encoders": (
        "EuroBertModel", "GteModel", "JinaEmbeddingsV3Model", "ModernBertModel", "NewModel",
        "NomicBertModel",
    ),
    "experts.deepseek": ("DeepseekForCausalLM",),
    "experts.gpt_oss": (("GptOssForCausalLM", "gpt_oss"),),
    "experts.granite_moe": (
        "GraniteMoeForCausalLM", "GraniteMoeHybridForCausalLM", "GraniteMoeSharedForCausalLM",
    ),
    "experts.llama4": (("Llama4ForCausalLM", "llama4_text"),),
    "experts.mixtral": ("MixtralForCausalLM",),
    "experts.olmoe": ("FlexOlmoForCausalLM", "OlmoeForCausalLM"),
    "experts.phimoe": ("PhiMoEForCausalLM", "PhimoeForCausalLM"),
    "experts.qwen_moe": (
        "MellumForCausalLM", "Qwen2MoeForCausalLM", ("Qwen3MoeForCausalLM", "qwen3_moe"),
        ("Qwen3VLMoeForCausalLM", "qwen3_vl_moe_text"),
    ),
    "experts.ernie_and_hunyuan": (
        ("Ernie4_5_MoeForCausalLM", "ernie4_5_moe"), "HunYuanMoEV1ForCausalLM",
    ),
    "experts.glm_moe_and_others": (
        "Dots1ForCausalLM", "ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM",
        ("Glm4MoeForCausalLM", "glm4_moe"), "MiniMaxM2ForCausalLM", "SolarOpenForCausalLM",
    ),
    "gemma": (
        ("Gemma2ForCausalLM", "gemma2"), ("Gemma3ForCausalLM", "gemma3_text"),
        ("GemmaForCausalLM", "gemma"),
    ),
    "gemma3n": (("Gemma3nForCausalLM", "gemma3n_text"),),
    "gemma4": (
        ("Gemma4ForCausalLM", "gemma4_text"), ("Gemma4UnifiedForCausalLM", "gemma4_unified_text"),
    ),
    "hybrid.lfm2": (("Lfm2ForCausalLM", "lfm2"), ("Lfm2MoeForCausalLM", "lfm2_moe")),
    "hybrid.mamba": (
        "FalconMambaForCausalLM", "JambaForCausalLM", "MambaForCausalLM", "MambaLMHeadModel",
    ),
    "hybrid.mamba2": (
        "BambaForCausalLM", "FalconH1ForCausalLM", "Mamba2ForCausalLM", "NemotronHForCausalLM",
    ),
    "hybrid.qwen_next": (
        "Qwen3NextForCausalLM", ("Qwen3_5ForCausalLM", "qwen3_5_text"),
        ("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text"),
    ),
    "experts.deepseek_v3": (
        ("DeepseekV2ForCausalLM", "deepseek_v2"),
        ("DeepseekV3ForCausalLM", "deepseek_v3", "kimi_k2"), "Glm4MoeLiteForCausalLM",
        "MiniCPM3ForCausalLM",
    ),
    "experts.kimi_linear": ("KimiLinearForCausalLM",),
    "whisper": ("WhisperForConditionalGeneration",),
    "experts.longcat": ("LongcatFlashForCausalLM",),
}  # fmt: skip
"""The architectures of the families in each module of `families`. One that is the text part of
multimodal checkpoints has the values of `model_type` that stand for it there."""

_ROWS = {
    (row,) if isinstance(row, str) else row: f"quire.models.families.{module}"
    for module, rows in _MODULES.items()
    for row in rows
}
_BUILT_IN = {architecture: module for (architecture, *_), module in _ROWS.items()}
_TEXT_MODELS = {kind: architecture for architecture, *kinds in _ROWS for kind in kinds}

_POOLING_CLASSES = re.compile(
    r"(Model|For(MaskedLM|(Sequence|Token)Classification|RewardModel|ProcessRewardModel))$"
)
"""Endings of classes that are a base model, perhaps with a head that is not a language model's."""

_OTHER_STEMS = {"Gemma3Text": "Gemma3"}
"""Beginnings of names of base models and classifiers, with those of their language models."""


class _ModelRegistry:
    """Maps architecture names to families or their import paths. Shared by the whole process."""

    def __init__(self, rows: dict[str, str]) -> None:
        self._rows: dict[str, ModelFamily | str] = {**rows}

    def register_model(self, architecture: str, family: ModelFamily | str) -> None:
        """Add or replace an architecture. `family` may be "package.module:ATTRIBUTE"."""
        if isinstance(family, str) and len(family.split(":")) != 2:
            raise ValueError(f"{family!r} must have the form package.module:ATTRIBUTE")
        if not isinstance(family, str | ModelFamily):
            raise TypeError(f"{family!r} must be a ModelFamily or package.module:ATTRIBUTE")
        self._rows[architecture] = family

    def get_supported_archs(self) -> list[str]:
        """Return the known architectures, sorted."""
        return sorted(self._rows)

    def row_name(self, architecture: str) -> str | None:
        """Return the architecture's name in the table, where a base model, with a language model's
        head or another, has one name: `LlamaForCausalLM`, `BertModel`. None: it is unknown."""
        stem = _POOLING_CLASSES.sub("", architecture)
        stem = _OTHER_STEMS.get(stem, stem)
        names = (architecture, f"{stem}ForCausalLM", f"{stem}LMHeadModel", f"{stem}Model")
        return next((name for name in names if name in self._rows), None)

    def resolve(self, architectures: Sequence[str]) -> ModelFamily:
        """Return the family of the first known name. Raises UnsupportedModelError if there is
        none."""
        known = next((name for name in map(self.row_name, architectures) if name), None)
        if known is None:
            raise UnsupportedModelError(
                f"config.json: model architectures {list(architectures)} are not supported; "
                f"supported are {', '.join(self.get_supported_archs())}"
            )
        row = self._rows[known]
        if isinstance(row, ModelFamily):
            return row
        module, _, attribute = row.partition(":")
        found = vars(importlib.import_module(module))
        family = found[attribute] if attribute else _listing(found, known)
        if not isinstance(family, ModelFamily):
            raise TypeError(f"{row} is {family!r}, not a ModelFamily")
        return family


def _listing(module: Mapping[str, Any], architecture: str) -> ModelFamily | None:
    """The public family of a module that lists this architecture."""
    families = (
        value
        for name, value in module.items()
        if isinstance(value, ModelFamily) and not name.startswith("_")
    )
    return next((one for one in families if architecture in one.architectures), None)


ModelRegistry = _ModelRegistry(_BUILT_IN)


def resolve(registry: _ModelRegistry, config: HfConfig, is_wrapped: bool) -> ModelFamily:
    """Return the family of a text model's config.json by its `architectures`; if these name the
    enclosing multimodal model (`is_wrapped`), by its `model_type`. The error for an unknown model
    names the nearest family."""
    architectures = architectures_of(config)
    known = registry.get_supported_archs()
    of_type = _TEXT_MODELS.get(str(config.get("model_type")))
    if not any(map(registry.row_name, architectures)):
        if is_wrapped and of_type is not None:
            return registry.resolve([of_type])
        from quire.models.nearest import nearest, relative_of, why_never  # for this message alone

        name, like = architectures[0], relative_of(config)
        if like is None and (is_wrapped or why_never(config, name) is None):
            like = nearest(config, name, (registry.resolve([name]) for name in known))
        if like is not None:
            raise UnsupportedModelError(
                f"config.json: model architectures {architectures} are not supported; {like}; "
                "`quire models` lists all that are supported"
            )
    return registry.resolve(architectures)


def architectures_of(hf_config: Any) -> list[str]:
    """Return the `architectures` of config.json. Raises CheckpointError if they are missing."""
    found = hf_config.get("architectures")
    if (
        not isinstance(found, list | tuple)
        or not found
        or not all(isinstance(a, str) for a in found)
    ):
        raise CheckpointError(
            f"config.json: architectures is {found!r}; it must be a list of names, "
            'for example "architectures": ["LlamaForCausalLM"]'
        )
    return list(found)
