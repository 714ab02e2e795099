"""Programs that a backend compiles for a model's encoder, and the memory that they need."""

from __future__ import annotations

from dataclasses import dataclass

from quire.backends.base import Backend
from quire.backends.records import CompileOptions, KVCacheSpec
from quire.config.quantization import Quantization
from quire.config.records import Dtype
from quire.images.config import ImagesConfig
from quire.models.base import HfConfig
from quire.models.media.model import VisionModel
from quire.program import Program, kv_layout
from quire.program.passes import run_passes

_MAX_PIECE_TOKENS = 2048
"""A larger image is encoded in pieces of so many rows, which bounds most of the workspace."""
_MAX_SOURCE_TOKENS = 512
"""The same for the encoder of a model that consists of it and a decoder, whose windows have few
rows: larger pieces are not faster there."""


@dataclass(frozen=True, slots=True)
class EncoderPlan:
    """The arguments of `Backend.compile` except the weights."""

    program: Program
    kv: KVCacheSpec
    options: CompileOptions

    def num_bytes(self, backend: Backend) -> int:
        """Bytes of weights and workspace."""
        weights = backend.weight_bytes(self.program, self.options.dtype)
        return weights + backend.workspace_bytes(self.program, self.kv, self.options)


def encoder_plans(
    backend: Backend,
    vision: VisionModel,
    dtype: Dtype,
    max_model_len: int,
    quantization: Quantization | None = None,
) -> list[EncoderPlan]:
    """The plans of the stem, the tower and the projector that the encoder has, in order. A picture
    with more than `max_model_len` rows does not reach the encoder, because its prompt is refused.
    `quantization`: that of the model, which an encoder has too if the model consists of it and a
    decoder."""
    patching = vision.patching
    most_rows = min(patching.most_rows, max_model_len)
    most_patches = -(-patching.most_patches * most_rows // patching.most_rows)
    block = max(16, backend.capabilities.block_size_multiple)
    piece = _MAX_SOURCE_TOKENS if vision.is_source else _MAX_PIECE_TOKENS
    plans = []
    programs = [(vision.tower, most_patches)]
    if vision.stem is not None:
        programs.insert(0, (vision.stem, 2 * most_patches))
    if vision.projector is not None:
        programs.append((vision.projector, most_rows))
    for program, num_rows in programs:
        program = run_passes(program, quantization if vision.is_source else None)
        kv = KVCacheSpec(1, block, dtype, kv_layout(program, num_rows))
        options = CompileOptions(dtype, num_rows, 1, num_rows, max_piece_tokens=piece)
        plans.append(EncoderPlan(program, kv, options))
    return plans


def encoder_bytes(
    backend: Backend,
    hf_config: HfConfig,
    images: ImagesConfig | None,
    dtype: Dtype,
    max_model_len: int,
    quantization: Quantization | None,
) -> int:
    """Bytes of the encoder and of the caches of pictures and its results; 0: the engine takes no
    images."""
    from quire.models.media.families import vision_model  # for models with images alone

    vision = None if images is None else vision_model(hf_config)
    if images is None or vision is None:
        return 0
    plans = encoder_plans(backend, vision, dtype, max_model_len, quantization)
    caches = images.cache_bytes + images.pixel_bytes
    return caches + sum(plan.num_bytes(backend) for plan in plans)
