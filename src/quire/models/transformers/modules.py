"""Finds the class of the installed transformers for a config.json, and its configuration.

No code of a checkpoint is run, and nothing is downloaded: keys of config.json that name code or
other places are removed. Imported only for models of transformers; imports torch.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from quire.errors import CheckpointError, UnsupportedModelError, quoted, reason
from quire.models.base import HfConfig
from quire.models.config_reader import (
    MAX_FEED_FORWARD,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_VOCAB,
    ConfigReader,
)
from quire.models.quantised.in_config import quantisation_of
from quire.models.registry import architectures_of

with warnings.catch_warnings():  # what other libraries warn of as they are imported is theirs
    warnings.simplefilter("ignore")
    import torch
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

_MAX_EXPERTS = 4096
_LIMITS = {
    "num_hidden_layers": MAX_LAYERS,
    "num_attention_heads": MAX_HEADS,
    "num_key_value_heads": MAX_HEADS,
    "hidden_size": MAX_HIDDEN,
    "intermediate_size": MAX_FEED_FORWARD,
    "vocab_size": MAX_VOCAB,
    "num_experts": _MAX_EXPERTS,
    "num_local_experts": _MAX_EXPERTS,
    "n_routed_experts": _MAX_EXPERTS,
}
_MAX_NUMBER = 1 << 31
_LEFT_OUT = frozenset({
    "auto_map", "custom_pipelines", "attn_implementation", "experts_implementation",
    "fusion_config", "kernel_config", "distributed_config", "quire_model_impl",
})  # fmt: skip
"""Keys that name code or control the computation. Keys that begin with an underscore are removed
too."""
_ATTENTIONS = ("full_attention", "sliding_attention", "chunked_attention")


@dataclass(frozen=True, slots=True)
class Found:
    """A class of transformers and the configuration to create it with."""

    config: Any
    """A `PreTrainedConfig`."""
    module: Any
    """A subclass of `PreTrainedModel`."""


def find(hf_config: HfConfig) -> Found:
    """Return the class that `architectures` names.

    Raises UnsupportedModelError if it is not a text decoder of the installed transformers, or keeps
    other state than K and V; CheckpointError if transformers cannot read config.json.
    """
    name = _decoder_name(hf_config)
    try:
        module = getattr(transformers, name)
    except (ImportError, RuntimeError) as error:
        raise UnsupportedModelError(
            f"transformers cannot import {name} in this installation: {_first(error)}"
        ) from None
    config_class = module.config_class
    model_type = hf_config.get("model_type")
    if model_type != config_class.model_type:
        raise CheckpointError(
            f"config.json: model_type is {quoted(model_type)}; {name} needs "
            f'"model_type": "{config_class.model_type}"'
        )
    _check_numbers(hf_config)
    if quantisation_of(hf_config) is not None:
        raise UnsupportedModelError(
            f"{name} runs on transformers' modules, which do not support quantised weights; "
            "load the unquantised checkpoint"
        )
    try:
        config = config_class.from_dict(_plain(hf_config))
    except Exception as error:
        raise CheckpointError(
            f"config.json: transformers cannot read it for {name}: {reason(error)}"
        ) from None
    _check_sizes(config)
    _check_kind(name, module, config)
    return Found(config, module)


def _first(error: BaseException) -> BaseException:
    """The error with which an import began to fail."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def build(found: Found) -> Any:
    """Create the module on torch's `meta` device: shapes without memory. Raises CheckpointError."""
    try:
        with quiet(), torch.device("meta"):
            found.config._attn_implementation = "eager"
            found.config._experts_implementation = "eager"
            module = found.module(found.config)
            module.tie_weights()
    except Exception as error:
        raise CheckpointError(
            f"config.json: transformers cannot make {found.module.__name__} of it: {reason(error)}"
        ) from None
    return module.eval()


def cache_name(module: Any) -> str:
    """Return the name of the module's `Cache` argument: `cache` since transformers 5.24, which
    warns about the older name."""
    return "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings, messages and progress bars of transformers."""
    log = transformers.utils.logging
    verbosity, has_bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.set_verbosity(verbosity)
        if has_bars:
            log.enable_progress_bar()


def _decoder_name(hf_config: HfConfig) -> str:
    decoders: set[str] = set()
    for names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        decoders.update([names] if isinstance(names, str) else names)
    architectures = architectures_of(hf_config)
    found = next((name for name in architectures if name in decoders), None)
    if found is None:
        raise UnsupportedModelError(
            f"transformers {transformers.__version__} has no text decoder {architectures} either"
        )
    return found


def _check_numbers(value: Any) -> None:
    """Check that all numbers are bounded, because modules are created from them."""
    for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
        if isinstance(item, Mapping | list | tuple):
            _check_numbers(item)
        elif isinstance(item, int) and not isinstance(item, bool) and abs(item) > _MAX_NUMBER:
            raise CheckpointError(
                f"config.json: {key} is {quoted(item)}; it must be at most {_MAX_NUMBER}"
            )


def _check_sizes(config: Any) -> None:
    sizes: dict[str, Any] = {key: getattr(config, key, None) for key in _LIMITS}
    reader = ConfigReader(sizes)
    for key, limit in _LIMITS.items():
        size = sizes[key]
        if isinstance(size, list | tuple):  # one for each layer
            reader.sizes(key, len(size), limit, example=1)
        elif size is not None and size != 0:
            reader.size(key, limit, example=1)


def _check_kind(name: str, module: Any, config: Any) -> None:
    why = ""
    if getattr(config, "is_encoder_decoder", False):
        why = "it has an encoder"
    elif getattr(module, "_is_stateful", False):
        why = "it keeps a state in addition to keys and values"
    elif not getattr(config, "is_causal", True) or _is_made_an_encoder(module, config):
        why = "its tokens see later ones (is_decoder or is_causal is false)"
    other = set(getattr(config, "layer_types", None) or ()) - set(_ATTENTIONS)
    if other and not why:
        why = f"it has layers of the kind {', '.join(sorted(map(str, other)))}"
    if why:
        raise UnsupportedModelError(
            f"{name} of transformers does not run here: {why}; what runs are decoders that keep "
            "keys and values of every token, and nothing else"
        )


def _is_made_an_encoder(module: Any, config: Any) -> bool:
    """Whether a class that can be a decoder or an encoder, such as BERT's, is configured as an
    encoder. Other classes ignore the key."""
    if getattr(config, "is_decoder", True) is not False:
        return False
    return "self.is_decoder = " in inspect.getsource(inspect.getmodule(module))  # type: ignore[arg-type]


def _plain(hf_config: HfConfig) -> dict[str, Any]:
    """Return a deep copy without the removed keys; `from_dict` may change it."""
    return {
        key: _plain(value) if isinstance(value, Mapping) else copy.deepcopy(value)
        for key, value in hf_config.items()
        if key not in _LEFT_OUT and not key.startswith("_")
    }
