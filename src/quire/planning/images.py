"""Whether an engine takes images or audio, and how: from the arguments and the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire import env
from quire.config.engine_args import EngineArgs
from quire.config.records import SchedulerConfig
from quire.errors import ConfigError, ModelError, quoted
from quire.gguf.projectors.names import NO_IMAGES
from quire.images.config import PROCESSOR_KWARGS, ImagesConfig
from quire.images.modality import MODALITIES
from quire.log import get_logger
from quire.models.media.model import VisionModel
from quire.weights import open_encoder

if TYPE_CHECKING:
    from quire.planning.checkpoint import Checkpoint

logger = get_logger(__name__)

_MOST_IMAGES = 999
"""vLLM's default limit."""
_TEXT_MODEL = "it is a text model"
_WINDOWS_KEPT = 16
"""Windows whose encoded rows are kept, at most: those that are being decoded."""


@dataclass(frozen=True, slots=True)
class ImagesChoice:
    """An engine's settings for images or audio, or the reason why it takes none."""

    config: ImagesConfig | None
    why_not: str = ""


def images_choice(
    args: EngineArgs, checkpoint: Checkpoint, scheduler: SchedulerConfig
) -> ImagesChoice:
    """Decide from the arguments and the model. Raises ConfigError for impossible arguments, and if
    images or audio are asked for and the model cannot take them."""
    limits = args.limit_mm_per_prompt
    _check_limits(limits)
    why_not, kind = _why_not(checkpoint), _kind(checkpoint)
    if limits and why_not == _TEXT_MODEL:
        logger.info("limit_mm_per_prompt=%s has no effect here: %s", quoted(limits), why_not)
        return ImagesChoice(None, why_not)
    for other in (one.name for one in MODALITIES.values() if not one.goes_with):
        if (limits or {}).get(other) and _limit(limits, other) and (why_not or kind != other):
            why = why_not or f"the model takes {kind} alone"
            raise ConfigError(f"limit_mm_per_prompt must have no {other}: {why}")
    if _limit(limits, kind) == 0 or why_not:
        if checkpoint.model.facts.num_sources:
            why = why_not or f"limit_mm_per_prompt must allow one {kind}"
            raise ConfigError(f"{checkpoint.name} cannot work without its encoder: {why}")
        return ImagesChoice(None, why_not or "limit_mm_per_prompt allows none")
    _check_vision(args.mm_processor_kwargs, checkpoint, scheduler)
    return ImagesChoice(
        ImagesConfig(
            {
                one.name: _limit(limits, one.name) if kind in (one.name, one.goes_with) else 0
                for one in MODALITIES.values()
            },
            takes_embeds=args.enable_mm_embeds,
            local_path=_folder(args.allowed_local_media_path),
            domains=_domains(args.allowed_media_domains),
            download_bytes=env.max_download_bytes(),
            **_cache_sizes(checkpoint),
        )
    )


def _cache_sizes(checkpoint: Checkpoint) -> dict[str, int]:
    """The sizes of the caches of a model that hears a window of a sound once; else the usual
    ones."""
    facts = checkpoint.model.facts
    if not facts.num_sources:
        return {}
    return {
        "cache_bytes": _WINDOWS_KEPT * 4 * facts.num_sources * facts.hidden_size,
        "pixel_bytes": 1 << 22,
    }


def _check_vision(
    kwargs: Mapping[str, Any] | None, checkpoint: Checkpoint, scheduler: SchedulerConfig
) -> None:
    """Raises ConfigError if no step has room for an image, and reports settings without effect."""
    from quire.models.media.families import vision_model  # for models with images alone

    vision = vision_model(checkpoint.model.hf_config)
    if vision is not None and vision.patching.sees_itself:
        fewest = vision.patching.most_rows + scheduler.max_num_seqs
        if scheduler.max_num_batched_tokens < fewest:
            raise ConfigError(
                f"max_num_batched_tokens must be at least {fewest} for this model, got "
                f"{scheduler.max_num_batched_tokens}: a step has all {vision.patching.most_rows} "
                f"tokens of an image, and one of each other request (max_num_seqs "
                f"{scheduler.max_num_seqs}). Set limit_mm_per_prompt={{'image': 0}} to take no "
                "images"
            )
    unknown = [one for one in kwargs or () if vision is None or one not in vision.settings]
    if unknown:
        logger.warning(
            "%s of %s has no effect: the image processor of this model has no such setting",
            ", ".join(map(quoted, unknown)),
            PROCESSOR_KWARGS,
        )


def _kind(checkpoint: Checkpoint) -> str:
    """Whether a model with an encoder takes images or audio; that of others has no effect."""
    from quire.models.media.families import vision_model  # for models with images alone

    try:
        vision = vision_model(checkpoint.model.hf_config)
    except ModelError:  # `_why_not` gives the reason
        return "image"
    return "image" if vision is None else vision.kind


def _why_not(checkpoint: Checkpoint) -> str:
    """Why the model takes neither images nor audio; "": it does."""
    from quire.models.media.families import vision_model  # for models with images alone

    model = checkpoint.model
    try:
        vision = vision_model(model.hf_config)
    except ModelError as error:
        return str(error)
    if vision is None:
        kind = str(model.hf_config.get("model_type", "this kind of model"))
        if model.has_other_parts:
            return f"images and audio are not supported yet for {kind}"
        if checkpoint.is_gguf:
            return str(model.hf_config.get(NO_IMAGES, "no file with an image encoder (mmproj) is "
                       "next to the GGUF file"))  # fmt: skip
        return _TEXT_MODEL
    if checkpoint.pooling is not None:
        return "models that pool take texts alone"
    if model.is_transformers:
        return "transformers computes the model"
    if checkpoint.weights == "packed":
        return "packed weights (quire quantize) have no encoder"
    if checkpoint.weights == "checkpoint" and not _has_encoder(checkpoint, vision):
        return "the checkpoint has no tensors of the encoder"
    return ""


def _has_encoder(checkpoint: Checkpoint, vision: VisionModel) -> bool:
    with closing(open_encoder(checkpoint.path)) as store:
        return any(name.startswith(vision.prefixes) for name in store.names())


def _check_limits(given: Any) -> None:
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"limit_mm_per_prompt must be a dict such as {{'image': 4}}, got {given!r}"
        )
    for name, value in given.items():
        if name not in MODALITIES:
            *names, last = MODALITIES
            known = f"{', '.join(names)} or {last}"
            raise ConfigError(f"limit_mm_per_prompt must name {known}, got {name!r}")
        count = value.get("count", 0) if isinstance(value, Mapping) else value
        if type(count) is not int or not 0 <= count <= _MOST_IMAGES:
            raise ConfigError(
                f"limit_mm_per_prompt[{name!r}] must be a whole number from 0 to {_MOST_IMAGES}, "
                f"got {value!r}"
            )


def _limit(given: Mapping[str, Any] | None, name: str) -> int:
    """Files of one modality in a prompt, at most."""
    found = (given or {}).get(name, _MOST_IMAGES)
    return int(found.get("count", _MOST_IMAGES) if isinstance(found, Mapping) else found)


def _folder(given: Any) -> str:
    if not given:
        return ""
    path = Path(str(given))
    if not path.is_dir():
        raise ConfigError(f"allowed_local_media_path must be a folder, got {str(given)!r}")
    return str(path.resolve())


def _domains(given: Any) -> tuple[str, ...]:
    if given is None:
        return ()
    if not isinstance(given, list | tuple) or not all(isinstance(one, str) for one in given):
        raise ConfigError(f"allowed_media_domains must be a list of names, got {given!r}")
    return tuple(one.lower().rstrip(".") for one in given)
