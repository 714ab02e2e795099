"""`with_projector`: config.json and preprocessor_config.json of a text model and an image encoder.

The result describes a checkpoint of transformers that has both.
"""

from __future__ import annotations

from quire.errors import CheckpointError, UnsupportedModelError
from quire.gguf.architectures.row import Config
from quire.gguf.keys import Keys
from quire.gguf.projectors.families import projector_of
from quire.gguf.projectors.row import Projector, shape_of

_OUTER_KEYS = ("dtype", "tie_word_embeddings", "quantization_config", "bos_token_id",
               "eos_token_id")  # fmt: skip
"""Keys of the text model that checkpoints of both have outside of `text_config`, too."""


def with_projector(
    config: Config, model: Keys, tokens: list[str], vision: Keys
) -> tuple[Config, Config]:
    """The two files. `config`: that of the text model. Raises CheckpointError or
    UnsupportedModelError if the encoder cannot be read or belongs to another model."""
    row = projector_of(vision)
    _check_belongs(row, config, model, vision)
    found = row.describe(vision)
    # The enclosing checkpoint has the architecture, and the text model has a type.
    text = {key: value for key, value in config.items() if key != "architectures"}
    text |= _rotation(row, config, model)
    joined: Config = {
        "architectures": [row.hf_name],
        "model_type": row.model_type,
        **{key: config[key] for key in _OUTER_KEYS if key in config},
        **found.outer,
        **_token_ids(row, tokens, model, vision),
        "text_config": text,
        "vision_config": found.vision,
    }
    return joined, found.settings


def _check_belongs(row: Projector, config: Config, model: Keys, vision: Keys) -> None:
    kind = vision.text("clip.projector_type") or vision.text("clip.vision.projector_type")
    if model.architecture not in row.texts:
        raise UnsupportedModelError(
            f"{vision.path}: an image encoder of type {kind!r:.60} belongs to a model of "
            f"architecture {', '.join(sorted(row.texts))}; that of {model.path} is "
            f"{model.architecture!r:.60}"
        )
    width = shape_of(vision, row.output)[row.is_transposed]
    if width != config["hidden_size"]:
        raise CheckpointError(
            f"{vision.path}: tensor {row.output!r} gives rows of {width} numbers, and the model "
            f"{model.path} has rows of {config['hidden_size']}: the file belongs to another model"
        )


def _token_ids(row: Projector, tokens: list[str], model: Keys, vision: Keys) -> Config:
    found: Config = {}
    for key, text in row.tokens.items():
        if text not in tokens and row.spare_token in tokens:
            found["image_token"] = text = row.spare_token
        if text not in tokens:
            raise CheckpointError(
                f"{model.path}: the vocabulary must have the token {text!r} for the images of "
                f"{vision.path}"
            )
        found[key] = tokens.index(text)
    return found


def _rotation(row: Projector, config: Config, model: Keys) -> Config:
    """The division of the frequencies among three axes (Qwen-VL)."""
    if not row.divides_rotation:
        return {}
    key = "{arch}.rope.dimension_sections"
    sections = model.numbers(key, int, 4)
    if sections is None or any(sections[3:]):
        raise model.error(key, "a list of three numbers and a 0")
    scaling = config.get("rope_scaling") or {"rope_type": "default"}
    interleaved = {"mrope_interleaved": True} if row.divides_rotation == "interleaved" else {}
    return {"rope_scaling": {**scaling, "mrope_section": sections[:3], **interleaved}}
