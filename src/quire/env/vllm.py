"""The environment variables of vLLM, and which of them work in Quire, in one table.

Each `VLLM_` variable belongs to one of four groups: it works; it requests behaviour that Quire
always has; it has no effect, which is warned about once; or vLLM does not know it either. The
functions that read variables are in `env`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from quire.env import is_true
from quire.env.without_effect import DROPPED, WITHOUT_EFFECT
from quire.errors import ConfigError, quoted
from quire.suggest import nearest

Effect = Literal["works", "always so", "refused"]


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable of vLLM, and how Quire treats it."""

    name: str
    effect: Effect
    text: str
    """Setting of the variable, the behaviour that always applies, or the reason for refusal."""
    option: str | None = None
    """The server option (a number) whose default the variable sets."""


VARIABLES: dict[str, Variable] = {
    entry.name: entry
    for entry in (
        Variable("VLLM_CPU_KVCACHE_SPACE", "works", "size of the KV cache in GiB"),
        Variable(
            "VLLM_CPU_OMP_THREADS_BIND", "works",
            "cores of the compute threads, e.g. 0-3,8; auto and nobind leave them to the system",
        ),
        Variable(
            "VLLM_CPU_NUM_OF_RESERVED_CPU", "works", "number of cores without compute threads"
        ),
        Variable(
            "VLLM_RAY_BUNDLE_INDICES", "works",
            "bundles of the placement group for the ranks, with distributed_executor_backend=ray",
        ),
        Variable("VLLM_LOGGING_LEVEL", "works", "like QUIRE_LOG_LEVEL, which has priority"),
        Variable("VLLM_LOGGING_CONFIG_PATH", "works", "like --log-config-file"),
        Variable("VLLM_CONFIGURE_LOGGING", "works", "0: the application configures logging"),
        Variable(
            "VLLM_LOG_STATS_INTERVAL", "works", "like QUIRE_LOG_STATS_INTERVAL, which has priority"
        ),
        Variable(
            "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "works",
            "0: KV events have hashes of 32 bytes instead of numbers of 64 bits",
        ),
        Variable(
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "works",
            "1: routes that load and unload adapters, with --enable-lora",
        ),
        Variable(
            "VLLM_LORA_RESOLVER_CACHE_DIR", "works",
            "a folder of adapters that requests may name, with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1",
        ),
        Variable("VLLM_API_KEY", "works", "like QUIRE_API_KEY"),
        Variable("VLLM_SERVER_DEV_MODE", "works", "1: development routes"),
        Variable(
            "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "works", "seconds that an idle connection is kept",
            "keep_alive_timeout",
        ),
        Variable(
            "VLLM_HTTP_MAX_REQUEST_BODY_SIZE", "works", "bytes of a request's body",
            "max_body_bytes",
        ),
        Variable("VLLM_MAX_N_SEQUENCES", "works", "largest n of a request", "max_n"),
        Variable("VLLM_MAX_NUM_BAD_WORDS", "works", "token sequences of a request's bad_words"),
        Variable("VLLM_MAX_COMPLETION_PROMPTS", "works", "prompts in a request", "max_prompts"),
        Variable("VLLM_MAX_STOP_STRINGS", "works", "stop strings in a request", "max_stop_strings"),
        Variable(
            "VLLM_CHAT_TEMPLATE_RENDER_TIMEOUT", "works", "seconds for a chat template",
            "template_timeout",
        ),
        Variable(
            "VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB", "works",
            "MiB of the files that one request names by URLs; 256 by default, 0: no limit",
        ),
        Variable(
            "VLLM_TORCH_PROFILER_DIR", "works",
            "directory of the traces of start_profile, unless --profiler-config is given",
        ),
        Variable("VLLM_USE_MODELSCOPE", "refused", "models come from the Hugging Face hub"),
        Variable("VLLM_NO_USAGE_STATS", "always so", "nothing is sent anywhere"),
        Variable("VLLM_DO_NOT_TRACK", "always so", "nothing is sent anywhere"),
        Variable("VLLM_USAGE_SOURCE", "always so", "nothing is sent anywhere"),
        Variable("VLLM_USAGE_STATS_SERVER", "always so", "nothing is sent anywhere"),
        Variable("VLLM_BATCH_INVARIANT", "always so", "tokens never depend on the batch"),
        Variable("VLLM_COMPUTE_NANS_IN_LOGITS", "always so", "logits are always checked"),
        Variable("VLLM_RAISE_ON_LOGIT_NANS", "always so", "such a request ends with an error"),
        Variable("VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", "always so", "ids stay unchanged"),
        Variable("VLLM_CHAT_TEMPLATE_FUEL", "always so", "no template of a request is rendered"),
        Variable(
            "VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES", "always so",
            "the pixels of a picture, and the time for all files of a request, are limited",
        ),
        Variable("VLLM_DISABLE_LOG_LOGO", "always so", "no logo is printed"),
        Variable("VLLM_LOGGING_COLOR", "always so", "the log has no colours"),
        Variable("VLLM_ENABLE_V1_MULTIPROCESSING", "always so", "results are the same"),
        Variable("VLLM_WORKER_MULTIPROC_METHOD", "always so", "results are the same"),
        *(
            Variable(f"VLLM_{name}", "always so", "a property of vLLM's build")
            for name in (
                "TARGET_DEVICE", "MAIN_CUDA_VERSION", "USE_PRECOMPILED", "USE_PRECOMPILED_RUST",
                "SKIP_PRECOMPILED_VERSION_SUFFIX", "SKIP_VERSION_SUFFIX", "DOCKER_BUILD_CONTEXT",
                "BUILD_COMMIT", "BUILD_PIPELINE", "BUILD_URL", "IMAGE_TAG",
            )
        ),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unheard:
    """Variables that are set but have no effect."""

    without_effect: tuple[str, ...]
    unknown: Mapping[str, str | None]
    """Variables that vLLM does not know either, with the nearest known name."""


def unheard_variables() -> Unheard:
    """Find variables without effect. Raises ConfigError for a refused variable."""
    found = sorted(name for name in os.environ if name.startswith("VLLM_"))
    for name in found:
        entry = VARIABLES.get(name)
        if entry is not None and entry.effect == "refused" and is_true(name):
            raise ConfigError(f"{name}={quoted(os.environ[name])}: {entry.text}; unset it")
    known = {*VARIABLES, *WITHOUT_EFFECT, *DROPPED}
    return Unheard(
        tuple(name for name in found if name in WITHOUT_EFFECT | DROPPED),
        {name: nearest(name, known) for name in found if name not in known},
    )


def server_defaults() -> dict[str, float]:
    """Defaults of server options from the environment. Raises ConfigError if one is not a
    number."""
    found: dict[str, float] = {}
    for entry in VARIABLES.values():
        text = os.environ.get(entry.name, "").strip()
        if entry.option is None or not text:
            continue
        try:
            found[entry.option] = int(text) if text.lstrip("-").isdigit() else float(text)
        except ValueError:
            raise ConfigError(
                f"{entry.name} must be a number ({entry.text}), got {quoted(text)}"
            ) from None
        if not found[entry.option] > 0:
            raise ConfigError(
                f"{entry.name} must be more than 0 ({entry.text}), got {quoted(text)}; unset it"
            )
    return found
