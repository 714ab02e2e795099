"""`unpack`: a model directory for a GGUF file, in the user's cache.

It holds what a checkpoint of transformers holds: config.json, tokenizer.json, ...
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from quire.errors import ModelError
from quire.gguf.architectures import Config
from quire.gguf.container import read_header
from quire.gguf.keys import Keys
from quire.gguf.model_config import generation_config, model_config, sentence_files
from quire.gguf.projectors.joined import with_projector
from quire.gguf.projectors.names import NO_IMAGES, PROJECTOR_NAME
from quire.gguf.projectors.row import vision_keys
from quire.gguf.split import files_of, read_headers
from quire.gguf.tokenizers.files import token_texts, tokenizer_files
from quire.gguf.unpacked import Contents, unpacked
from quire.log import get_logger, phase

logger = get_logger(__name__)

_VERSION = 9
"""Version of the unpacked files; increase it when their contents change."""
MAIN_NAME = "model.gguf"
"""The link to a model of one file."""


def unpack(path: Path, projectors: Sequence[Path] = (), *, is_asked: bool = False) -> Path:
    """The directory of the model that this file holds, or is a part of.

    `projectors`: files with image encoders, of which the first is used that belongs to the model;
    `is_asked`: one of them must. Raises CheckpointError or UnsupportedModelError for a file that
    cannot be used, and ConfigError where no directory can be written.
    """
    files = [file.absolute() for file in files_of(path)]
    encoders = [file.absolute() for file in projectors]
    return unpacked(
        "gguf", _VERSION, [*files, *encoders], lambda: _contents(files, encoders, is_asked)
    )


def _contents(files: list[Path], encoders: list[Path], is_asked: bool) -> Contents:
    texts, encoder = _texts(files, encoders, is_asked)
    links = {MAIN_NAME if len(files) == 1 else file.name: file for file in files}
    if encoder is not None:
        links[PROJECTOR_NAME] = encoder
    return Contents(texts, links)


def _texts(
    files: list[Path], projectors: list[Path], is_asked: bool
) -> tuple[dict[str, str], Path | None]:
    """The contents of the directory's files by name, and the image encoder's file."""
    with phase(logger, f"{files[0].name} unpacked"):
        keys = Keys(read_headers(files))
        config, tokens = model_config(keys), token_texts(keys)
        texts = tokenizer_files(keys) | sentence_files(keys)
        generation = generation_config(keys, tokens)
    settings: Config = {}
    encoder, failure = None, ""
    for file in projectors:
        try:
            config, settings = with_projector(
                config, keys, tokens, vision_keys([read_header(file)])
            )
        except ModelError as error:
            if is_asked:
                raise
            failure = failure or str(error)
        else:
            encoder, failure = file, ""
            break
    if failure:
        logger.warning("%s takes no images: %s", files[0].name, failure)
        config[NO_IMAGES] = failure
    contents = {"config.json": config, "generation_config.json": generation}
    if encoder is not None:
        contents["preprocessor_config.json"] = settings
    return texts | {name: json.dumps(one, indent=2) for name, one in contents.items()}, encoder
