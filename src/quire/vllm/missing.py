"""Names and modules of vLLM that Quire lacks, by the missing feature.

`MISSING_NAMES` can be imported and named in annotations, but raise an error when they are used.
Modules in `MISSING_MODULES` cannot be imported. Both errors name the missing feature.
"""

from __future__ import annotations

from typing import Any, NoReturn

from quire.errors import ConfigError
from quire.vllm.surface import VLLM_VERSION, surface_names

_LORA = "LoRA adapters are configured by arguments of the engine and named by LoRARequest"
_POOLING = "a part of vLLM's pooling that Quire does not have"
_MEDIA = "vLLM's classes for media do not exist here; prompts take PIL images: docs/images.md"
_ASSETS = (
    "vLLM downloads its pictures, sounds and videos; open a file with PIL.Image.open, or read a "
    "URL with vllm.multimodal.utils.fetch_image"
)
_PROCESSORS = (
    "logits processors have the interface of vllm.v1.sample.logits_processor, and no other"
)
_PARSERS = (
    "replies are read by formats of Quire's own: ToolParserManager and ReasoningParserManager have "
    "a class for each"
)
_RANKS = "arguments of the engine start the ranks, in Quire's own way: docs/parallel.md"
_TIERS = "K/V is kept and loaded by Quire itself: docs/kv_store.md"
_WEIGHTS = (
    "no trainer connects to the engine; new weights come from a folder (reload_weights) or from "
    "memory (model_runner.model.load_weights)"
)
_RECORD = "vLLM's internal configuration; give the values to LLM or EngineArgs"
_WATERMARK = "Quire does not watermark text; a logits processor can"
_SERVER = "the server is not made of vLLM's parts; start it with the command `serve`"
_MODELS = "models are not torch modules here; quire.models has them"
_INTERNAL = "a part of vLLM's engine, which Quire does not share"
_HELPERS = "a helper of vLLM's own code, not of its public interface"
_COMPILED = (
    "it is a compiled library of vLLM, whose kernels take tensors of torch; Quire's own library is "
    "loaded with the first model"
)
_OLD = "vLLM 0.33 has no such package either; it belonged to the engine of earlier versions"

MISSING_NAMES: dict[str, dict[str, str]] = {
    _LORA: {"vllm.config": "LoRAConfig"},
    _POOLING: {"vllm.outputs": "RequestError", "vllm.pooling_params": "LateInteractionParams"},
    _PARSERS: {"vllm.config": "ReasoningConfig"},
    _WATERMARK: {
        "vllm.config": "WatermarkConfig",
        "vllm.config.watermarking": "WatermarkConfig derive_watermark_key",
    },
    _MEDIA: {"vllm.config": "MultiModalConfig", "vllm.inputs": "DataPrompt"},
    _ASSETS: {
        "vllm.assets.audio": "AudioAsset",
        "vllm.assets.image": "ImageAsset",
        "vllm.assets.video": "VideoAsset",
    },
    "a tokenizer is read from tokenizer.json, not from Mistral's own files": {
        "vllm.tokenizers.mistral": "MistralTokenizer"
    },
    _PROCESSORS: {
        "vllm.v1.worker.gpu.sample.logits_processor": "LogitsContext LogitsProcessor "
        "LogitsProcRequestState"
    },
    "Quire writes the statistics line and /metrics itself; StatLoggerBase is for other loggers": {
        "vllm.v1.metrics.loggers": "AggregatedLoggingStatLogger LoggingStatLogger "
        "PerEngineStatLoggerAdapter PrometheusStatLogger StatLoggerManager"
    },
    "nothing here is compiled or captured at run time": {
        "vllm.config": "CompilationConfig CompilationMode CUDAGraphMode PassConfig"
    },
    _RANKS: {"vllm": "initialize_ray_cluster", "vllm.config": "ParallelConfig"},
    _TIERS: {"vllm.config": "ECTransferConfig"},
    _WEIGHTS: {"vllm.config": "WeightTransferConfig", "vllm.outputs": "WeightVersionSpan"},
    "outputs do not report which tokens were allowed": {"vllm.outputs": "SamplingMask"},
    _RECORD: {
        "vllm.config": "AttentionConfig CacheConfig DeviceConfig LoadConfig "
        "ObservabilityConfig SchedulerConfig SpeculativeConfig VllmConfig "
        "WatchdogConfig"
    },
    _SERVER: {
        "vllm.entrypoints.openai.api_server": "build_and_serve build_app "
        "build_async_engine_client build_async_engine_client_from_engine_args init_app_state "
        "run_server run_server_worker setup_server"
    },
    "ranks exchange values in Quire's own way": {"vllm.sequence": "IntermediateTensors"},
}
"""Missing feature -> module of vLLM -> names."""

MISSING_MODULES: dict[str, str] = {
    **dict.fromkeys(
        (
            "vllm._aiter_ops",
            "vllm.connections",
            "vllm.device_allocator",
            "vllm.env_override",
            "vllm.forward_context",
            "vllm.inputs.engine",
            "vllm.ir",
            "vllm.logging_utils",
            "vllm.logprobs",
            "vllm.platforms",
            "vllm.renderers",
            "vllm.scalar_type",
            "vllm.snapshot",
            "vllm.tokenizers",
            "vllm.tracing",
            "vllm.triton_utils",
            "vllm.utils",
        ),
        _HELPERS,
    ),
    **dict.fromkeys(
        (
            "vllm._C",
            "vllm._C_stable_libtorch",
            "vllm._custom_ops",
            "vllm._flashmla_C",
            "vllm._flashmla_extension_C",
            "vllm._ipex_ops",
            "vllm._moe_C",
            "vllm._rocm_C",
            "vllm.cumem_allocator",
            "vllm.vllm_flash_attn",
        ),
        _COMPILED,
    ),
    **dict.fromkeys(("vllm.core", "vllm.spec_decode", "vllm.worker"), _OLD),
    "vllm.assets": _ASSETS,
    "vllm.attention": _INTERNAL,
    "vllm.benchmarks": "the benchmarks are commands: `bench`",
    "vllm.compilation": "nothing here is compiled or captured at run time",
    "vllm.config": _RECORD,
    "vllm.distributed": _RANKS,
    "vllm.distributed.kv_transfer": _TIERS,
    "vllm.distributed.weight_transfer": _WEIGHTS,
    "vllm.entrypoints": _SERVER,
    "vllm.entrypoints.pooling": _POOLING,
    "vllm.entrypoints.speech_to_text": _MEDIA,
    "vllm.lora": _LORA,
    "vllm.model_executor": _MODELS,
    "vllm.multimodal": _MEDIA,
    "vllm.parser": _PARSERS,
    "vllm.plugins": "plug-ins are entry points that Quire loads itself: docs/scope.md",
    "vllm.reasoning": _PARSERS,
    "vllm.tool_parsers": _PARSERS,
    "vllm.transformers_utils": "checkpoints are read by quire.config and quire.models",
    "vllm.utils.gpu_sync_debug": _PROCESSORS,
    "vllm.v1": _INTERNAL,
    "vllm.v1.executor": _RANKS,
    "vllm.v1.sample": _INTERNAL,
    "vllm.v1.sample.logits_processor": _PROCESSORS,
    "vllm.v1.watermarking": _WATERMARK,
}
"""Package of vLLM -> the reason why it and its modules, except those in `surface`, are missing."""


class _Placeholder(type):
    """A class that can be named and compared. Any other use raises an error with the reason."""

    reason: str

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> _Placeholder:
        if bases:
            bases[0]()  # raises: subclassing is a use
        return super().__new__(cls, name, bases, namespace)

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        del args, kwargs
        raise ConfigError(f"{cls.__module__}.{cls.__name__}: {cls.reason}")

    def __getattr__(cls, name: str) -> NoReturn:
        raise AttributeError(f"{cls.__module__}.{cls.__name__}.{name}: {cls.reason}")


def missing_names(module: str) -> dict[str, str]:
    """Return the missing names of a module, each with the reason."""
    return {
        name: reason
        for reason, modules in MISSING_NAMES.items()
        for name in modules.get(module, "").split()
    }


def placeholder(module: str, name: str, reason: str) -> type:
    """Return a stand-in for a missing class or function. It raises ConfigError when it is used."""
    return _Placeholder(name, (), {"__module__": module, "__qualname__": name, "reason": reason})


def explain(name: str) -> str:
    """Return an error message for a missing module or a missing name of a module."""
    from quire.suggest import did_you_mean

    parent, _, last = name.rpartition(".")
    prefixes = (name.rsplit(".", n)[0] for n in range(name.count(".")))
    reason = next((MISSING_MODULES[p] for p in prefixes if p in MISSING_MODULES), None)
    siblings = [*surface_names(parent), *missing_names(parent)]
    why = reason or f"it has the public names of vLLM {VLLM_VERSION}"
    return f"Quire has no {name}: {why}{did_you_mean(last, siblings)}"
