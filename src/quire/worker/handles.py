"""Objects with vLLM's names for an operator's code in a worker: the model runner and the model.

A worker extension, or a function for `collective_rpc`, can call
`self.model_runner.model.load_weights`. Attributes that vLLM's objects have and these do not have
raise errors that give the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from quire.backends.base import CompiledModel
from quire.config.records import EngineConfig, ModelConfig
from quire.errors import ConfigError

_LORA = "LoRA adapters are loaded by add_lora of the engine; limits are in vllm_config.lora_config"
_START = "Quire starts its workers in another way; the model is already loaded"
_SLEEP = "call sleep and wake_up of the engine"
_TRANSFER = (
    "weights come from files (reload_weights) or from memory (model_runner.model.load_weights)"
)
_NO_MODULE = "the model is not a torch module; its weights are set by load_weights"
_NO_TENSORS = "K/V is in memory of the backend, not in tensors"

_OF_WORKER = {
    _LORA: "add_lora remove_lora list_loras pin_lora lora_config",
    _START: "init_device init_cache_engine initialize_cache initialize_from_config load_model "
    "determine_available_memory determine_num_available_blocks get_kv_cache_spec load_config "
    "compile_or_warm_up_model execute_model sample_tokens execute_dummy_batch",
    _SLEEP: "sleep wake_up",
    _TRANSFER: "init_weight_transfer_engine shutdown_weight_transfer_engine start_weight_update "
    "update_weights finish_weight_update update_config save_sharded_state save_tensorized_model",
    _NO_TENSORS: "cache_engine gpu_cache kv_cache",
    "call start_profile and stop_profile of the engine": "profile",
    "these settings are in vllm_config": "compilation_config kv_transfer_config speculative_config",
}
_OF_RUNNER = {
    _LORA: "lora_config lora_manager add_lora",
    _START: "load_model profile_run capture_model execute_model initialize_kv_cache",
    _NO_TENSORS: "kv_caches kv_cache attn_backends",
    "call reload_weights of the worker": "reload_weights",
    "the worker's requests are internal": "requests input_batch",
}
_OF_MODEL = {
    _NO_MODULE: "parameters named_parameters buffers named_buffers modules named_modules children "
    "named_children state_dict load_state_dict get_parameter get_submodule forward compute_logits "
    "train eval to cpu"
}


def absent(features: dict[str, str]) -> dict[str, str]:
    """The reason why a name is missing, by name."""
    return {name: reason for reason, names in features.items() for name in names.split()}


def refuse(owner: str, name: str, reasons: dict[str, str]) -> NoReturn:
    """Raises ConfigError for names of `reasons`, AttributeError for others."""
    if name in reasons:
        raise ConfigError(f"{owner} has no {name} here: {reasons[name]}")
    raise AttributeError(f"{owner} has no attribute {name!r}")


ABSENT_OF_WORKER = absent(_OF_WORKER)
_ABSENT_OF_RUNNER = absent(_OF_RUNNER)
_ABSENT_OF_MODEL = absent(_OF_MODEL)


class ModelHandle:
    """The loaded model: `load_weights`, and all attributes of `CompiledModel`."""

    def __init__(
        self, compiled: CompiledModel, update: Callable[[Iterable[tuple[str, Any]]], set[str]]
    ) -> None:
        self._compiled = compiled
        self._update = update

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> set[str]:
        """Replaces weights, given as names of the checkpoint with arrays or torch tensors. Returns
        the names that the model uses. The next step loads them; running requests compute their
        tokens again. Raises ConfigError and replaces none if one does not fit."""
        return self._update(weights)

    def __getattr__(self, name: str) -> Any:
        if name in _ABSENT_OF_MODEL or name.startswith("__"):
            refuse("the model", name, _ABSENT_OF_MODEL)
        return getattr(self._compiled, name)


class RunnerHandle:
    """The model runner, as far as extensions need it."""

    def __init__(self, model: ModelHandle, config: EngineConfig, device: Any) -> None:
        self.model = model
        self.vllm_config = config
        self.device = device

    @property
    def model_config(self) -> ModelConfig:
        """Configuration of the served model."""
        return self.vllm_config.model

    def get_model(self) -> ModelHandle:
        """`model`."""
        return self.model

    def __getattr__(self, name: str) -> NoReturn:
        refuse("model_runner", name, _ABSENT_OF_RUNNER)
