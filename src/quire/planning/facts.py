"""Reads everything that planning an engine needs: the model's files and the machine.

Called by `plan_engine`. Later stages decide from `Facts` and the arguments alone, and read nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from quire import env
from quire.backends.base import Backend
from quire.backends.registry import choose_device, make_backend
from quire.config.checkpoint.model_files import (
    GenerationConfig,
    eos_token_ids,
    read_generation_config,
)
from quire.config.engine_args import EngineArgs
from quire.config.kv_cache import KVEventsConfig
from quire.config.memory import AvailableMemory
from quire.config.model_lookup.hub import resolve_model
from quire.config.records import DeviceConfig, ObservabilityConfig
from quire.errors import CheckpointError, ConfigError, ModelNotFoundError, quoted, reason
from quire.logits_processors.loading import ProcessorName, processor_names
from quire.planning.checkpoint import Checkpoint, read_checkpoint
from quire.planning.environment import check_environment, log_config_file, log_level
from quire.planning.kv.disk import StoreDisk, store_disk
from quire.planning.kv.events import kv_events_config
from quire.planning.kv.options import AskedStore, asked_store
from quire.planning.kv.weights_digest import weights_digest
from quire.planning.machine import available_memory
from quire.planning.profiler import profiler_config

if TYPE_CHECKING:
    from quire.planning.draft_model import DraftFacts


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts from the files, the environment and the machine."""

    checkpoint: Checkpoint
    weights_digest: str
    """Result of `weights_digest` for the weights' files."""
    tokenizer_path: Path | None
    chat_template: str | None
    """Text of the chat template given by the user."""
    generation: GenerationConfig
    """Source of the sampling defaults."""
    eos_token_ids: tuple[int, ...]
    observability: ObservabilityConfig
    device: DeviceConfig
    logits_processors: tuple[ProcessorName, ...]
    """Processors from the arguments and from installed packages, loaded once."""
    kv_cache_bytes: int | None
    """Size from the environment; None: not set."""
    kv_store: AskedStore
    kv_disk: StoreDisk
    kv_events: KVEventsConfig | None
    """None: KV events are off."""
    backend: Backend
    memory: AvailableMemory
    draft: DraftFacts | None = None
    """The draft model; None: there is none."""


def gather_facts(args: EngineArgs) -> Facts:
    """Read all facts. Raises ConfigError, ModelError or BackendError."""
    check_environment(args)
    checkpoint = read_checkpoint(args)
    device = choose_device(
        args.backend,
        args.num_threads,
        device=args.device,
        runs_transformers=checkpoint.model.is_transformers,
    )
    device = replace(device, enforce_eager=args.enforce_eager)
    num_ranks = args.tensor_parallel_size * args.pipeline_parallel_size * args.data_parallel_size
    num_ranks //= max(1, args.nnodes)
    if args.num_threads is None and num_ranks > 1:
        device = replace(device, num_threads=max(1, device.num_threads // num_ranks))
    backend = make_backend(device)
    path = checkpoint.path
    kv_store = asked_store(args)
    draft = None
    speculation = args.create_speculative_config()
    if speculation is not None and speculation.has_model:
        from quire.planning.draft_heads import head_facts
        from quire.planning.draft_model import draft_facts

        read = head_facts if speculation.has_head else draft_facts
        draft = read(args, speculation, checkpoint)
    own = read_generation_config(path, checkpoint.model.hf_config)
    return Facts(
        checkpoint=checkpoint,
        weights_digest=weights_digest(path, checkpoint.weights),
        tokenizer_path=_tokenizer_path(args, path),
        chat_template=_chat_template(args.chat_template),
        generation=_generation_defaults(args.generation_config, own),
        eos_token_ids=eos_token_ids(own),
        observability=ObservabilityConfig(
            log_stats=not args.disable_log_stats,
            stats_interval_s=env.stats_interval_s(),
            otlp_traces_endpoint=args.otlp_traces_endpoint or env.otlp_traces_endpoint(),
            log_level=log_level(args),
            log_config_file=log_config_file(args),
            profiler=profiler_config(args.profiler_config),
        ),
        device=device,
        logits_processors=processor_names(args.logits_processors),
        kv_cache_bytes=env.kv_cache_bytes(),
        kv_store=kv_store,
        kv_disk=store_disk(kv_store),
        kv_events=kv_events_config(args.kv_events_config),
        backend=backend,
        # Engines on GPUs have one each.
        memory=backend.device_memory
        or _share_of_engine(available_memory(), args.data_parallel_size),
        draft=draft,
    )


def _share_of_engine(memory: AvailableMemory, num_engines: int) -> AvailableMemory:
    """Return what each of several engines may use."""
    if num_engines <= 1:  # less than one is refused later
        return memory
    source = f"{memory.source}, divided among {num_engines} engines"
    return replace(memory, available_bytes=memory.available_bytes // num_engines, source=source)


def _tokenizer_path(args: EngineArgs, path: Path) -> Path | None:
    if args.skip_tokenizer_init:
        return None
    if args.tokenizer is None:
        return path
    try:
        return resolve_model(
            args.tokenizer,
            revision=args.tokenizer_revision,
            download_dir=args.download_dir,
            hf_token=args.hf_token,
            needs_weights=False,
        )
    except ModelNotFoundError as error:
        raise ModelNotFoundError(f"tokenizer: {error}") from None


def _chat_template(choice: str | None) -> str | None:
    if choice is None:
        return None
    from quire.chat.template_files import read_chat_template

    try:
        return read_chat_template(choice)
    except (CheckpointError, OSError, RuntimeError) as error:  # `~` may have no home directory
        what = f"chat_template={quoted(choice)}"
        raise ConfigError(f"{what} cannot be read: {reason(error)}") from None


def _generation_defaults(choice: str, own: GenerationConfig) -> GenerationConfig:
    """Return the defaults that `generation_config` selects: empty for `vllm`, `own` for `auto`, or
    those of a directory."""
    if choice == "vllm":
        return GenerationConfig({}, "")
    if choice == "auto":
        return own
    try:
        return read_generation_config(Path(choice), {})
    except OSError as error:
        raise ConfigError(
            f"generation_config={quoted(choice)} cannot be read: {error.strerror}; use auto, "
            "vllm or a directory"
        ) from None
