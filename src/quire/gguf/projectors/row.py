"""`Projector`: what is known of one value of `clip.projector_type`.

Source: llama.cpp, conversion/, tools/mtmd/clip.cpp and gguf-py/gguf/tensor_mapping.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from quire.errors import CheckpointError
from quire.gguf.architectures.row import Architecture, Config, Place
from quire.gguf.container import GgufHeader
from quire.gguf.keys import Keys

CLIP = "clip"
"""`general.architecture` of these files."""
_LAYER = "v.blk."


@dataclass(frozen=True, slots=True)
class ImageParts:
    """The configuration of a file, in the form of transformers."""

    vision: Config
    """`vision_config`."""
    outer: Config
    """Keys of config.json outside of it."""
    settings: Config
    """preprocessor_config.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Projector(Architecture):
    """One value of `clip.projector_type`. `hf_name` and `model_type` are those of the checkpoint of
    text and images; `top` has the names of the file without their kind."""

    describe: Callable[[Keys], ImageParts]
    texts: frozenset[str]
    """`general.architecture` of the text models."""
    tokens: Mapping[str, str]
    """Tokens that the vocabulary must have, by the keys of config.json for their ids."""
    output: str
    """The last matrix, whose rows are as many as the numbers of a row of the text model."""
    is_transposed: bool = False
    """Whether these are its columns."""
    wholes: Mapping[str, Place] = field(default_factory=dict)
    """Places of tensors whose names have no kind at the end."""
    divides_rotation: Literal["", "in order", "interleaved"] = ""
    """Division of the text model's frequencies among the axes of an image; "": there is none."""
    spare_token: str = ""
    """The token that stands for a row of an image if the vocabulary lacks that of `tokens`."""

    def places(self, name: str) -> tuple[Place, ...]:
        """Places of the tensor in a checkpoint; empty if it is not used."""
        if name.startswith(_LAYER):
            return Architecture.places(self, name.removeprefix("v."))
        if name in self.wholes:
            return (self.wholes[name],)
        stem, _, kind = name.rpartition(".")
        module = self.top.get(stem) if kind in ("weight", "bias") else None
        return () if module is None else (Place(f"{module}.{kind}"),)


def vision_keys(headers: list[GgufHeader]) -> Keys:
    """The metadata; `{arch}.` in a key stands for `clip.vision.`. Raises CheckpointError for a file
    that has no image encoder."""
    keys = Keys(headers, f"{CLIP}.vision")
    if headers[0].architecture != CLIP:
        raise CheckpointError(
            f"{keys.path}: general.architecture is {headers[0].architecture!r:.60}; that of a file "
            f"with an image encoder (mmproj) must be {CLIP!r}"
        )
    if keys.flag("clip.has_vision_encoder") is False:
        raise CheckpointError(f"{keys.path} has no image encoder (clip.has_vision_encoder)")
    return keys


def shape_of(keys: Keys, name: str, dimensions: int = 2) -> tuple[int, ...]:
    """The shape of a tensor. Raises CheckpointError if it is missing or has other dimensions."""
    tensor = keys.tensor(name)
    if tensor is None:
        raise CheckpointError(f"{keys.path} has no tensor {name!r}")
    if len(tensor.shape) != dimensions:
        raise CheckpointError(
            f"{keys.path}: tensor {name!r} has shape {list(tensor.shape)}; it must have "
            f"{dimensions} dimensions"
        )
    return tensor.shape
