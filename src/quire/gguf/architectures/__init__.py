"""The architectures of GGUF files that are read, one row each: `dense`, `llama_like`,
`gemma_inputs`, `layer_norms`, `mixtures`, `sigmoid_mixtures`, `encoders` and those of `hybrid`; and
why others are not (`refusals`).
"""

from __future__ import annotations

from collections.abc import Callable

from quire.gguf.architectures.dense import DENSE
from quire.gguf.architectures.encoders import (
    ENCODERS,
    OLD_JINA2,
    ROBERTA_CLASSIFIER,
    has_classifier,
    is_old_jina2,
)
from quire.gguf.architectures.facts import has_part, window
from quire.gguf.architectures.gemma_inputs import GEMMA_INPUTS
from quire.gguf.architectures.latent import DEEPSEEK_V3, LATENT, has_sigmoid
from quire.gguf.architectures.layer_norms import FALCON_40B, LAYER_NORMS
from quire.gguf.architectures.llama_like import CHATGLM, LLAMA_LIKE, OLMO3
from quire.gguf.architectures.mixtures import LLAMA_WITH_EXPERTS, MIXTURES
from quire.gguf.architectures.recurrent import FALCON_MAMBA, RECURRENT, has_norms_of_steps
from quire.gguf.architectures.refusals import not_read
from quire.gguf.architectures.row import Architecture, Config, Place
from quire.gguf.architectures.sigmoid_mixtures import SIGMOID_MIXTURES
from quire.gguf.keys import Keys

__all__ = ["ARCHITECTURES", "Architecture", "Config", "Place", "architecture_of"]

ARCHITECTURES: dict[str, Architecture] = {
    **DENSE,
    **LLAMA_LIKE,
    **GEMMA_INPUTS,
    **LAYER_NORMS,
    **MIXTURES,
    **SIGMOID_MIXTURES,
    **ENCODERS,
    **RECURRENT,
    **LATENT,
}
"""By `general.architecture`."""


def _has_experts(keys: Keys) -> bool:
    return keys.whole("{arch}.expert_count", 0) > 0


def _has_windows(keys: Keys) -> bool:
    return window(keys) is not None


def _has_two_norms(keys: Keys) -> bool:
    return has_part(keys, "attn_norm_2.weight")


def _has_fused_qkv(keys: Keys) -> bool:
    return has_part(keys, "attn_qkv.weight")


_OTHERS: dict[str, tuple[Callable[[Keys], bool], Architecture]] = {
    "llama": (_has_experts, LLAMA_WITH_EXPERTS),
    "olmo2": (_has_windows, OLMO3),
    "falcon": (_has_two_norms, FALCON_40B),
    "chatglm": (_has_fused_qkv, CHATGLM),
    "bert": (has_classifier, ROBERTA_CLASSIFIER),
    "jina-bert-v2": (is_old_jina2, OLD_JINA2),
    "mamba": (has_norms_of_steps, FALCON_MAMBA),
    "deepseek2": (has_sigmoid, DEEPSEEK_V3),
}
"""Values of `general.architecture` that stand for two models: the second model, and the test that
finds its files."""


def architecture_of(keys: Keys) -> Architecture:
    """The row of a file. Raises UnsupportedModelError."""
    row = ARCHITECTURES.get(keys.architecture)
    if row is None:
        raise not_read(keys, ARCHITECTURES)
    is_other, other = _OTHERS.get(keys.architecture, (None, row))
    return other if is_other is not None and is_other(keys) else row
