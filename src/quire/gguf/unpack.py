"""`unpack`: a model directory for a GGUF file, in the user's cache.

It holds what a checkpoint of transformers holds: config.json, tokenizer.json, ...; its weights are
links to the file. It is made once for a file of this place, size and time of change. Everything
else of Quire then knows directories alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from quire import env
from quire.errors import CheckpointError, ConfigError, ModelError, reason
from quire.files import write_text
from quire.gguf.architectures import Config
from quire.gguf.container import read_header
from quire.gguf.keys import Keys
from quire.gguf.model_config import generation_config, model_config, sentence_files
from quire.gguf.projectors.joined import with_projector
from quire.gguf.projectors.names import NO_IMAGES, PROJECTOR_NAME
from quire.gguf.projectors.row import vision_keys
from quire.gguf.split import files_of, read_headers
from quire.gguf.tokenizers.files import token_texts, tokenizer_files
from quire.log import get_logger, phase

logger = get_logger(__name__)

_VERSION = 9
"""Version of the unpacked files; increase it when their contents change."""
_PREFIX = "gguf-"
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
    try:
        name = _PREFIX + _digest([*files, *encoders])
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {reason(error)}") from None
    for parent in _parents():
        directory = parent / name
        if (directory / "config.json").is_file():
            return directory
    texts, encoder = _texts(files, encoders, is_asked)
    links = {MAIN_NAME if len(files) == 1 else file.name: file for file in files}
    if encoder is not None:
        links[PROJECTOR_NAME] = encoder
    failure: OSError | None = None
    for parent in _parents():
        try:
            return _write(parent, name, texts, links)
        except OSError as error:
            failure = error
    raise ConfigError(
        f"{path}: no directory can be written for what the file says of the model: {failure}; set "
        "XDG_CACHE_HOME to a place that can be written"
    )


def is_unpacked(directory: Path) -> bool:
    """Whether `unpack` has made this directory, so that its links lead where the user has said."""
    return directory.name.startswith(_PREFIX) and any(
        directory.parent == parent.resolve() for parent in _parents()
    )


def _parents() -> Iterable[Path]:
    """The places of such directories, the first one that can be written first."""
    with suppress(RuntimeError):
        yield env.cache_dir() / "gguf"
    yield Path(tempfile.gettempdir()) / f"quire-gguf-{os.getuid()}"


def _digest(files: list[Path]) -> str:
    state = hashlib.sha256(f"{_VERSION}".encode())
    for file in files:
        status = file.stat()
        state.update(os.fsencode(file.resolve()))
        state.update(f"\n{status.st_size} {status.st_mtime_ns}\n".encode())
    return state.hexdigest()[:32]


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


def _write(parent: Path, name: str, texts: dict[str, str], links: dict[str, Path]) -> Path:
    """Makes the directory under another name and renames it, so that it is there as a whole."""
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if parent.stat().st_uid != os.getuid():
        raise PermissionError(f"{parent} belongs to another user")
    _remove_stale(parent)
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=parent))
    try:
        for file_name, text in texts.items():
            (unfinished / file_name).parent.mkdir(exist_ok=True)
            write_text(unfinished / file_name, text)
        for link, file in links.items():
            (unfinished / link).symlink_to(file)
        with suppress(OSError):  # another process was quicker
            unfinished.rename(parent / name)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    if not (parent / name / "config.json").is_file():
        raise FileNotFoundError(f"{parent / name} cannot be made")
    return parent / name


def _remove_stale(parent: Path) -> None:
    """Directories whose files are gone, so that the cache does not grow without bound."""
    for directory in parent.glob(f"{_PREFIX}*"):
        links = list(directory.glob("*.gguf"))
        if not links or not all(link.exists() for link in links):
            shutil.rmtree(directory, ignore_errors=True)
