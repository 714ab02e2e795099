"""`ModelRegistry`: maps the `architectures` of config.json to a family.

A new model needs a `ModelFamily` in `families/` and one row below. Families are imported on first
use.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from typing import Any

from quire.errors import CheckpointError, UnsupportedModelError
from quire.models.base import HfConfig, ModelFamily

_BUILT_IN = {
    "ApertusForCausalLM": "quire.models.families.llama:APERTUS",
    "ArceeForCausalLM": "quire.models.families.llama:ARCEE",
    "BaiChuanForCausalLM": "quire.models.families.remote:BAICHUAN_7B",
    "BaichuanForCausalLM": "quire.models.families.remote:BAICHUAN",
    "BertModel": "quire.models.families.encoders.bert:BERT",
    "BgeM3EmbeddingModel": "quire.models.families.encoders.bert:ROBERTA",
    "CamembertModel": "quire.models.families.encoders.bert:ROBERTA",
    "EuroBertModel": "quire.models.families.encoders.rotary:EUROBERT",
    "GteModel": "quire.models.families.encoders.rotary:GTE",
    "JinaBertModel": "quire.models.families.encoders.bert:JINA_V2",
    "JinaEmbeddingsV3Model": "quire.models.families.encoders.rotary:JINA_V3",
    "ModernBertModel": "quire.models.families.encoders.rotary:MODERNBERT",
    "NewModel": "quire.models.families.encoders.rotary:GTE",
    "NomicBertModel": "quire.models.families.encoders.rotary:NOMIC",
    "DistilBertModel": "quire.models.families.encoders.bert:DISTILBERT",
    "MPNetModel": "quire.models.families.encoders.bert:MPNET",
    "RobertaModel": "quire.models.families.encoders.bert:ROBERTA",
    "XLMRobertaModel": "quire.models.families.encoders.bert:ROBERTA",
    "BambaForCausalLM": "quire.models.families.hybrid.mamba2:BAMBA",
    "BloomForCausalLM": "quire.models.families.layer_norm:BLOOM",
    "ChatGLMForConditionalGeneration": "quire.models.families.glm:CHATGLM",
    "ChatGLMModel": "quire.models.families.glm:CHATGLM",
    "Cohere2ForCausalLM": "quire.models.families.cohere:COHERE2",
    "CohereForCausalLM": "quire.models.families.cohere:COHERE",
    "DeepseekForCausalLM": "quire.models.families.experts.shared_mlps:DEEPSEEK",
    "DeepseekV2ForCausalLM": "quire.models.families.latent.deepseek:DEEPSEEK_V2",
    "DeepseekV3ForCausalLM": "quire.models.families.latent.deepseek:DEEPSEEK_V3",
    "Dots1ForCausalLM": "quire.models.families.experts.sigmoid_routers:DOTS1",
    "Ernie4_5ForCausalLM": "quire.models.families.llama:ERNIE",
    "Ernie4_5_ForCausalLM": "quire.models.families.llama:ERNIE",
    "Ernie4_5_MoeForCausalLM": "quire.models.families.experts.shared_mlps:ERNIE_MOE",
    "Exaone4ForCausalLM": "quire.models.families.olmo:EXAONE4",
    "ExaoneForCausalLM": "quire.models.families.remote:EXAONE",
    "ExaoneMoEForCausalLM": "quire.models.families.experts.sigmoid_routers:EXAONE_MOE",
    "ExaoneMoeForCausalLM": "quire.models.families.experts.sigmoid_routers:EXAONE_MOE",
    "FalconForCausalLM": "quire.models.families.parallel:FALCON",
    "FalconH1ForCausalLM": "quire.models.families.hybrid.mamba2:FALCON_H1",
    "FalconMambaForCausalLM": "quire.models.families.hybrid.mamba:FALCON_MAMBA",
    "FlexOlmoForCausalLM": "quire.models.families.experts.olmoe:FLEX_OLMO",
    "GPT2LMHeadModel": "quire.models.families.learned_positions:GPT2",
    "GPTJForCausalLM": "quire.models.families.parallel:GPTJ",
    "GPTNeoXForCausalLM": "quire.models.families.parallel:NEOX",
    "Gemma2ForCausalLM": "quire.models.families.gemma.dense:GEMMA2",
    "Gemma3ForCausalLM": "quire.models.families.gemma.dense:GEMMA3",
    "Gemma3nForCausalLM": "quire.models.families.gemma.gemma3n:GEMMA3N",
    "Gemma4ForCausalLM": "quire.models.families.gemma.gemma4:GEMMA4",
    "Gemma4UnifiedForCausalLM": "quire.models.families.gemma.gemma4:GEMMA4_UNIFIED",
    "GemmaForCausalLM": "quire.models.families.gemma.dense:GEMMA",
    "Glm4ForCausalLM": "quire.models.families.glm:GLM4",
    "Glm4MoeForCausalLM": "quire.models.families.experts.sigmoid_routers:GLM4_MOE",
    "Glm4MoeLiteForCausalLM": "quire.models.families.latent.deepseek:GLM4_MOE_LITE",
    "GlmForCausalLM": "quire.models.families.glm:GLM",
    "GptOssForCausalLM": "quire.models.families.experts.gpt_oss:FAMILY",
    "GraniteForCausalLM": "quire.models.families.granite:FAMILY",
    "GraniteMoeForCausalLM": "quire.models.families.experts.granite_moe:FAMILY",
    "GraniteMoeHybridForCausalLM": "quire.models.families.experts.granite_moe:GRANITE4",
    "GraniteMoeSharedForCausalLM": "quire.models.families.experts.granite_moe:FAMILY",
    "HeliumForCausalLM": "quire.models.families.llama:HELIUM",
    "HunYuanDenseV1ForCausalLM": "quire.models.families.llama:HUNYUAN",
    "HunYuanMoEV1ForCausalLM": "quire.models.families.experts.shared_mlps:HUNYUAN_MOE",
    "InternLM2ForCausalLM": "quire.models.families.remote:INTERNLM2",
    "InternLM3ForCausalLM": "quire.models.families.llama:INTERNLM3",
    "JambaForCausalLM": "quire.models.families.hybrid.mamba:JAMBA",
    "KimiLinearForCausalLM": "quire.models.families.latent.kimi:KIMI_LINEAR",
    "LLaMAForCausalLM": "quire.models.families.llama:FAMILY",
    "Lfm2ForCausalLM": "quire.models.families.hybrid.lfm2:LFM2",
    "Lfm2MoeForCausalLM": "quire.models.families.hybrid.lfm2:LFM2_MOE",
    "Llama4ForCausalLM": "quire.models.families.experts.llama4:FAMILY",
    "LlamaForCausalLM": "quire.models.families.llama:FAMILY",
    "LongcatFlashForCausalLM": "quire.models.families.latent.longcat:LONGCAT_FLASH",
    "MPTForCausalLM": "quire.models.families.layer_norm:MPT",
    "Mamba2ForCausalLM": "quire.models.families.hybrid.mamba2:MAMBA2",
    "MambaForCausalLM": "quire.models.families.hybrid.mamba:MAMBA",
    "MambaLMHeadModel": "quire.models.families.hybrid.mamba:MAMBA",
    "MellumForCausalLM": "quire.models.families.experts.qwen_moe:MELLUM",
    "MiniCPM3ForCausalLM": "quire.models.families.latent.deepseek:MINICPM3",
    "MiniCPMForCausalLM": "quire.models.families.granite:MINICPM",
    "MiniMaxM2ForCausalLM": "quire.models.families.experts.sigmoid_routers:MINIMAX_M2",
    "Ministral3ForCausalLM": "quire.models.families.windows:MINISTRAL3",
    "MinistralForCausalLM": "quire.models.families.windows:MINISTRAL",
    "MistralForCausalLM": "quire.models.families.windows:MISTRAL",
    "MixtralForCausalLM": "quire.models.families.experts.mixtral:FAMILY",
    "MptForCausalLM": "quire.models.families.layer_norm:MPT",
    "NemotronForCausalLM": "quire.models.families.layer_norm:NEMOTRON",
    "NemotronHForCausalLM": "quire.models.families.hybrid.mamba2:NEMOTRON_H",
    "OPTForCausalLM": "quire.models.families.learned_positions:OPT",
    "Olmo2ForCausalLM": "quire.models.families.olmo:OLMO2",
    "Olmo3ForCausalLM": "quire.models.families.olmo:OLMO3",
    "OlmoForCausalLM": "quire.models.families.olmo:OLMO",
    "OlmoeForCausalLM": "quire.models.families.experts.olmoe:FAMILY",
    "Phi3ForCausalLM": "quire.models.families.llama:PHI3",
    "PhiForCausalLM": "quire.models.families.parallel:PHI",
    "PhiMoEForCausalLM": "quire.models.families.experts.phimoe:FAMILY",
    "PhimoeForCausalLM": "quire.models.families.experts.phimoe:FAMILY",
    "Qwen2ForCausalLM": "quire.models.families.windows:QWEN2",
    "Qwen2MoeForCausalLM": "quire.models.families.experts.qwen_moe:QWEN2_MOE",
    "Qwen3ForCausalLM": "quire.models.families.windows:QWEN3",
    "Qwen3MoeForCausalLM": "quire.models.families.experts.qwen_moe:QWEN3_MOE",
    "Qwen3VLMoeForCausalLM": "quire.models.families.experts.qwen_moe:QWEN3_VL_MOE",
    "Qwen3NextForCausalLM": "quire.models.families.hybrid.qwen:QWEN3_NEXT",
    "Qwen3_5ForCausalLM": "quire.models.families.hybrid.qwen:QWEN3_5",
    "Qwen3_5MoeForCausalLM": "quire.models.families.hybrid.qwen:QWEN3_5_MOE",
    "RWForCausalLM": "quire.models.families.parallel:FALCON",
    "SeedOssForCausalLM": "quire.models.families.llama:SEED_OSS",
    "SmolLM3ForCausalLM": "quire.models.families.llama:SMOLLM3",
    "SolarOpenForCausalLM": "quire.models.families.experts.sigmoid_routers:SOLAR_OPEN",
    "StableLMEpochForCausalLM": "quire.models.families.parallel:STABLELM",
    "StableLmForCausalLM": "quire.models.families.parallel:STABLELM",
    "Starcoder2ForCausalLM": "quire.models.families.layer_norm:STARCODER2",
}

_POOLING_CLASSES = re.compile(
    r"(Model|For(MaskedLM|(Sequence|Token)Classification|RewardModel|ProcessRewardModel))$"
)
"""Endings of classes that are a base model, perhaps with a head that is not a language model's."""

_OTHER_NAMES = {"Gemma3TextModel": "Gemma3ForCausalLM"}
"""Base models whose language models have names of another form."""

_TEXT_MODELS = {
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "lfm2_moe": "Lfm2MoeForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma3n_text": "Gemma3nForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
    "gemma4_unified_text": "Gemma4UnifiedForCausalLM",
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "granite": "GraniteForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "internlm2": "InternLM2ForCausalLM",
    "llama": "LlamaForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_5_vl_text": "Qwen2ForCausalLM",
    "qwen2_vl_text": "Qwen2ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_vl_moe_text": "Qwen3VLMoeForCausalLM",
    "qwen3_vl_text": "Qwen3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}
"""Architecture of the text part of a multimodal checkpoint, by its `model_type`."""


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
        other = _OTHER_NAMES.get(architecture, "")
        names = (architecture, other, f"{stem}ForCausalLM", f"{stem}Model")
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
        family = getattr(importlib.import_module(module), attribute)
        if not isinstance(family, ModelFamily):
            raise TypeError(f"{row} is {family!r}, not a ModelFamily")
        return family


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
