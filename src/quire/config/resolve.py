"""Turns choices, checkpoint facts and machine facts into concrete values; one function a concern.

Called by `planning`, which brings what lies above this layer (a backend's abilities, a
program's sizes) in as plain numbers. Raises ConfigError naming the argument, its value and
one that works.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from typing import Any, Literal, cast, get_args

from quire.config.checkpoint.model_files import GenerationConfig, default_sampling_params
from quire.config.checkpoint.never_generated import WHISPER_KEYS, never_generated, without_effect
from quire.config.declaration import with_same_names
from quire.config.engine_args import EngineArgs
from quire.config.kv_cache import KVMemoryChoice
from quire.config.ranks import MAX_RANKS
from quire.config.records import Dtype, ExecutorBackend, ParallelConfig, SchedulerConfig
from quire.errors import ConfigError, RequestError, quoted
from quire.forbidden_tokens import ForbiddenTokens
from quire.log import get_logger
from quire.params import SamplingParams

logger = get_logger(__name__)

Usage = Literal["llm", "server"]
"""Who uses the engine: `LLM` in a script, or the clients of a server. Selects defaults."""

_BUDGETS: dict[Usage, int] = {"llm": 4096, "server": 2048}
_SOURCES_BUDGET = 512
"""Budget where a request begins with the rows of an encoder: more of them at once are not faster,
and take memory."""
_SEQS: dict[Usage, int] = {"llm": 256, "server": 128}
_SLOWDOWN: dict[Usage, float | None] = {"llm": None, "server": 1.75}
_QUEUED_REQS: dict[Usage, int | None] = {"llm": None, "server": 1024}
_QUEUED_TOKENS: dict[Usage, int | None] = {"llm": None, "server": 4 * 1024 * 1024}
_SPELLINGS: dict[str, str] = {
    "float": "float32", "float32": "float32", "bfloat16": "bfloat16",
    "half": "float16", "float16": "float16",
}  # fmt: skip


FLOAT16_NOTE = (
    "float16 is computed in bfloat16, of the same size: weights and activations have 8 bits of "
    "precision instead of 11, and a wider range; float32 keeps all bits"
)
"""Explanation of `dtype=float16` for users."""


def spelled_dtype(name: str) -> str | None:
    """The dtype that a name such as `half` means; None for an unknown name."""
    return _SPELLINGS.get(name)


def resolve_dtype(
    args: EngineArgs, hf_config: Mapping[str, Any], dtypes: Collection[str], *, pools: bool = False
) -> Dtype:
    """The dtype of the computation: bfloat16, or float32 if requested or the backend has no other.

    `dtypes`: those of the backend. `pools`: the model gives vectors, which are compared with those
    of other programs: a float32 checkpoint is computed in float32."""
    stored = str(hf_config.get("dtype") or hf_config.get("torch_dtype") or "float32")
    stored = stored.removeprefix("torch.")
    wanted = spelled_dtype(args.dtype)
    if args.dtype == "auto":
        is_wide = "bfloat16" not in dtypes or (pools and stored == "float32")
        wanted = "float32" if is_wide else "bfloat16"
        if stored != wanted:
            logger.info("the checkpoint is %s; computing in %s", stored, wanted)
    if wanted is None:
        names = ", ".join(("auto", *_SPELLINGS))
        raise ConfigError(f"dtype={quoted(args.dtype)} is not known; use one of {names}")
    if wanted == "float16" and "bfloat16" in dtypes:
        logger.warning("dtype=%s: %s", args.dtype, FLOAT16_NOTE)
        wanted = "bfloat16"
    if wanted not in dtypes:
        raise ConfigError(
            f"dtype={args.dtype!r} is not computed here; use one of auto, {', '.join(dtypes)} "
            "(a float16 checkpoint is read and converted)"
        )
    return "float32" if wanted == "float32" else "bfloat16"


def resolve_max_model_len(args: EngineArgs, derived: int, default: int) -> int | None:
    """The context length; `derived` is the checkpoint's limit. None: as long as fits in memory, up
    to `default`."""
    wanted = args.max_model_len
    if wanted is None:
        return default
    if wanted == -1:
        return None
    if wanted < 1:
        raise ConfigError(f"max_model_len must be positive or -1, got {wanted}; try {derived}")
    if wanted > derived:
        raise ConfigError(
            f"max_model_len={wanted} is larger than the model's own limit of {derived}, for which "
            f"it was trained; use at most {derived}"
        )
    return wanted


def resolve_parallel(args: EngineArgs, usage: Usage) -> ParallelConfig:
    """The ranks, the executor that starts them, and the number of engines."""
    _check_sizes(args)
    tensor, stages = args.tensor_parallel_size, args.pipeline_parallel_size
    engines = args.data_parallel_size
    if usage == "llm" and engines > 1:
        raise ConfigError(
            f"data_parallel_size={engines} must be 1 for LLM, which runs one engine; quire serve "
            "and AsyncLLM run several, or start several processes"
        )
    _check_nodes(args, tensor * stages)
    chosen = args.distributed_executor_backend or ("uni" if tensor * stages == 1 else "mp")
    if chosen not in get_args(ExecutorBackend):
        raise ConfigError(
            f"distributed_executor_backend={quoted(chosen)} is not known; use uni, mp or ray"
        )
    if chosen == "uni" and tensor * stages > 1:
        raise ConfigError(
            f"distributed_executor_backend='uni' runs one rank, and tensor_parallel_size={tensor} "
            f"times pipeline_parallel_size={stages} are {tensor * stages}; use 'mp'"
        )
    if chosen == "ray":
        _check_ray(args)
    worker_class = "" if args.worker_cls == "auto" else args.worker_cls
    return with_same_names(
        ParallelConfig,
        args,
        distributed_executor_backend=cast(ExecutorBackend, chosen),
        worker_class=worker_class,
    )


def _check_ray(args: EngineArgs) -> None:
    """Raises ConfigError where Ray is not installed, or is not what divides the work."""
    if find_spec("ray") is None:
        raise ConfigError(
            "distributed_executor_backend='ray' needs Ray: pip install 'quire-engine[ray]'; or use "
            "'mp'"
        )
    if args.nnodes > 1:
        raise ConfigError(
            f"nnodes={args.nnodes} must be 1 with distributed_executor_backend='ray': Ray chooses "
            "the machines"
        )
    if args.data_parallel_size > 1:
        raise ConfigError(
            f"data_parallel_size={args.data_parallel_size} must be 1 with "
            "distributed_executor_backend='ray'; quire.ray.serve starts several replicas"
        )


def _check_nodes(args: EngineArgs, num_ranks: int) -> None:
    """Raises ConfigError for machines that cannot compute together."""
    nodes, number = args.nnodes, args.node_rank
    if num_ranks % nodes:
        raise ConfigError(
            f"nnodes={nodes} must divide the {num_ranks} ranks of tensor_parallel_size="
            f"{args.tensor_parallel_size} and pipeline_parallel_size={args.pipeline_parallel_size}"
        )
    if not 0 <= number < nodes:
        raise ConfigError(f"node_rank={number} must be from 0 to nnodes-1={nodes - 1}")
    if number:
        raise ConfigError(
            f"node_rank={number} needs --headless: the engine and its server run on node 0"
        )
    if nodes > 1 and args.data_parallel_size > 1:
        raise ConfigError(
            f"data_parallel_size={args.data_parallel_size} must be 1 with nnodes={nodes}; "
            "start a server on each machine"
        )
    if not 1 <= args.master_port < 65536:
        raise ConfigError(f"master_port={args.master_port} must be from 1 to 65535")


def _check_sizes(args: EngineArgs) -> None:
    """Raises ConfigError for too many ranks and engines."""
    sizes: dict[str, int] = {
        name: getattr(args, name)
        for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    }
    if math.prod(sizes.values()) > MAX_RANKS:
        found = " times ".join(f"{name}={size}" for name, size in sizes.items() if size > 1)
        raise ConfigError(f"{found} must be at most {MAX_RANKS} ranks")


def resolve_scheduler(
    args: EngineArgs,
    usage: Usage,
    max_model_len: int,
    *,
    needs_whole: bool = False,
    has_sources: bool = False,
) -> SchedulerConfig:
    """Limits of a step and of the queue. The defaults are vLLM's for a CPU. `needs_whole`: the
    model computes all tokens of a request in one step. `has_sources`: a request begins with the
    rows of an encoder."""
    chunked = args.enable_chunked_prefill is not False and not needs_whole
    usual = _SOURCES_BUDGET if has_sources else _BUDGETS[usage]
    budget, seqs = _step_limits(args, usage, max_model_len, chunked, usual)
    return with_same_names(
        SchedulerConfig,
        args,
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        enable_chunked_prefill=chunked,
        **({"long_prefill_token_threshold": 0} if needs_whole else {}),
        max_decode_slowdown=_max_decode_slowdown(args, usage, chunked),
        policy=args.scheduling_policy,
        max_num_queued_reqs=args.max_num_queued_reqs or _QUEUED_REQS[usage],
        max_num_queued_tokens=args.max_num_queued_tokens or _QUEUED_TOKENS[usage],
        queue_may_stand=usage == "llm" or args.max_num_queued_reqs is not None,
        speculation=args.create_speculative_config(),
        num_stages=args.pipeline_parallel_size,
        max_loras=args.max_loras if args.enable_lora else None,
    )


def _step_limits(
    args: EngineArgs, usage: Usage, max_model_len: int, chunked: bool, usual: int
) -> tuple[int, int]:
    """max_num_batched_tokens, of which `usual` is the default, and max_num_seqs."""
    budget = args.max_num_batched_tokens
    if budget is None:
        budget = usual if chunked else max(usual, max_model_len)
    _check_positive("max_num_batched_tokens", budget, usual)
    seqs = args.max_num_seqs
    if seqs is None:
        seqs = min(_SEQS[usage], budget)
    _check_positive("max_num_seqs", seqs, _SEQS[usage])
    if budget < seqs:
        raise ConfigError(
            f"max_num_batched_tokens ({budget}) must be greater than or equal to "
            f"max_num_seqs ({seqs})"
        )
    if not chunked and budget < max_model_len:
        raise ConfigError(
            f"max_num_batched_tokens ({budget}) is smaller than max_model_len ({max_model_len}), "
            "and without chunked prefill, which encoders cannot have, a longer prompt cannot run; "
            f"use at least {max_model_len}, or leave enable_chunked_prefill on"
        )
    return budget, seqs


def _max_decode_slowdown(args: EngineArgs, usage: Usage, chunked: bool) -> float | None:
    wanted = args.max_decode_slowdown
    if wanted is None:
        return _SLOWDOWN[usage] if chunked else None
    if wanted == 0:
        return None
    if not math.isfinite(wanted) or wanted <= 1 or not chunked:
        raise ConfigError(
            f"max_decode_slowdown must be larger than 1, or 0 for no limit, got {wanted}; it "
            "needs chunked prefill; try 1.75"
        )
    return float(wanted)


def resolve_kv_choice(args: EngineArgs, environment_bytes: int | None = None) -> KVMemoryChoice:
    """The user's say in the size of the KV cache: the arguments, then what the environment says."""
    share = args.gpu_memory_utilization
    if not (isinstance(share, (int, float)) and math.isfinite(share) and 0 < share <= 1):
        raise ConfigError(
            f"gpu_memory_utilization must be in (0, 1], got {quoted(share)}; try 0.92"
        )
    cache_bytes = args.kv_cache_memory_bytes
    if cache_bytes is None and args.num_gpu_blocks_override is None:
        cache_bytes = environment_bytes
    elif environment_bytes is not None:
        logger.warning("VLLM_CPU_KVCACHE_SPACE gives way to the argument for the KV cache's size")
    return KVMemoryChoice(args.num_gpu_blocks_override, cache_bytes, float(share))


_OTHER_DEFAULTS = ("seed", "stop", "repeat_last_n")
"""Those that a checkpoint does not recommend, and a user may."""


def resolve_sampling_defaults(args: EngineArgs, own: GenerationConfig) -> dict[str, Any]:
    """Sampling defaults for requests that leave them open, checked as a request's would be;
    `own` are the model's own."""
    given = GenerationConfig(args.override_generation_config or {}, "override_generation_config")
    sources = [one.source for one in (own, given) if one.values]
    found: dict[str, Any] = {**default_sampling_params(own), **default_sampling_params(given)}
    found |= {name: given.values[name] for name in _OTHER_DEFAULTS if name in given.values}
    try:
        SamplingParams.from_optional(**found)
    except RequestError as error:
        raise ConfigError(
            f"the sampling defaults of the model cannot be used: {error} They come from "
            f"{' and '.join(sources)}. Set generation_config='vllm' to ignore them"
        ) from error
    if found and args.generation_config != "vllm":
        logger.info(
            "Default sampling parameters come from the model's generation_config.json: %s. "
            "If this is not intended, use generation_config='vllm'.",
            found,
        )
    return found


def resolve_never_generated(
    args: EngineArgs,
    own: GenerationConfig,
    eos_token_ids: Collection[int],
    vocab_size: int,
    *,
    is_whisper: bool = False,
) -> ForbiddenTokens:
    """Tokens that no request generates; a warning names the settings of the model or
    of the user that have no effect. `own` are the model's own. `is_whisper`: those that the model
    suppresses are left to transcriptions, because its reply to a prompt without a language or a
    task begins with them."""
    given = args.override_generation_config or {}
    source = own.source if own.values else "override_generation_config"
    skipped = WHISPER_KEYS if is_whisper else ()
    values = {key: one for key, one in own.values.items() if key not in skipped} | given
    if ignored := without_effect(values):
        logger.warning(
            "These settings of %s have no effect here: %s",
            source,
            ", ".join(f"{key}={quoted(value)}" for key, value in ignored.items()),
        )
    return never_generated(values, source, eos_token_ids, vocab_size)


def resolve_max_output_tokens(args: EngineArgs, defaults: Mapping[str, Any]) -> int | None:
    """Most tokens of any reply of a server, as vLLM has it: the `max_new_tokens` that the user set
    by an override or a directory of its own. What a model recommends is a default alone."""
    if args.generation_config not in ("auto", "vllm"):
        return defaults.get("max_tokens")
    most: int | None = (args.override_generation_config or {}).get("max_new_tokens")
    return most


def served_names(args: EngineArgs, model: str) -> tuple[str, ...]:
    """The names under which a server offers the model."""
    chosen = args.served_model_name or model
    names = (chosen,) if isinstance(chosen, str) else tuple(chosen)
    for name in names:
        if not name or not name.isprintable():
            raise ConfigError(
                f"served_model_name must be one or more printable names, got {quoted(name)}; try "
                "my-model"
            )
    return names


def _check_positive(name: str, value: int | None, example: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(
            f"{name} must be a positive whole number, got {quoted(value)}; try {example}"
        )
