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
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from quire import env
from quire.errors import CheckpointError, ConfigError, reason
from quire.files import write_text
from quire.gguf.keys import Keys
from quire.gguf.model_config import generation_config, model_config, sentence_files
from quire.gguf.split import files_of, read_headers
from quire.gguf.tokenizer import token_texts, tokenizer_files
from quire.log import get_logger, phase

logger = get_logger(__name__)

_VERSION = 6
"""Version of the unpacked files; increase it when their contents change."""
_PREFIX = "gguf-"
MAIN_NAME = "model.gguf"
"""The link to a model of one file."""


def unpack(path: Path) -> Path:
    """The directory of the model that this file holds, or is a part of.

    Raises CheckpointError or UnsupportedModelError for a file that cannot be used, and ConfigError
    where no directory can be written.
    """
    files = [file.absolute() for file in files_of(path)]
    try:
        name = _PREFIX + _digest(files)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {reason(error)}") from None
    for parent in _parents():
        directory = parent / name
        if (directory / "config.json").is_file():
            return directory
    texts = _texts(files)
    failure: OSError | None = None
    for parent in _parents():
        try:
            return _write(parent, name, texts, files)
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


def _texts(files: list[Path]) -> dict[str, str]:
    """The contents of the directory's files by name."""
    with phase(logger, f"{files[0].name} unpacked"):
        keys = Keys(read_headers(files))
        config = model_config(keys)
        texts = tokenizer_files(keys)
        generation = generation_config(keys, token_texts(keys))
        texts |= sentence_files(keys)
    texts["generation_config.json"] = json.dumps(generation, indent=2)
    return {**texts, "config.json": json.dumps(config, indent=2)}


def _write(parent: Path, name: str, texts: dict[str, str], files: list[Path]) -> Path:
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
        for file in files:
            (unfinished / (MAIN_NAME if len(files) == 1 else file.name)).symlink_to(file)
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
