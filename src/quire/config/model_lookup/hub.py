"""Finds the local directory of a model, given as a path or a hub id (`org/name`).

A directory is used without any network access. A hub id is looked up in the hub's local cache;
missing files are downloaded with huggingface_hub, which is imported only then. Called when an
engine is configured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from quire import env
from quire.config.checkpoint.model_files import DEMO_MODEL, DEMO_MODEL_PATH, read_json_object
from quire.config.model_lookup import aliases, gguf
from quire.config.model_lookup.download import Fetched, Note, Report, download
from quire.config.model_lookup.known import suggestion
from quire.config.model_lookup.refusals import how_to_fetch
from quire.config.model_lookup.short_names import meant_by
from quire.errors import CheckpointError, ConfigError, ModelNotFoundError, quoted, reason
from quire.units import MiB

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_HUB_ADDRESS = re.compile(r"^(?:https://)?(?:hf\.co|huggingface\.co)/")
_MAX_HUB_ID = 96
"""The hub's limit, in characters."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "tekken.json", "tokenizer.model")
_WEIGHT_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


def resolve_model(
    model: str,
    *,
    revision: str | None = None,
    download_dir: str | None = None,
    hf_token: str | bool | None = None,
    needs_weights: bool = True,
    prefers_gguf: bool = False,
    mmproj: str | None = None,
    fetches: bool = True,
) -> Path:
    """The directory that holds `model`: a path, a hub id, or a GGUF file, which is unpacked.

    `download_dir` replaces the hub's cache directory. `needs_weights` False: only the tokenizer is
    needed. `prefers_gguf`: prefer GGUF files to other weights. `mmproj`: the file with the image
    encoder of a GGUF model; None: the one next to it. `fetches` False: nothing is
    downloaded. Raises ModelNotFoundError that names the missing files and how to get them.
    """
    directory = _local_directory(model, prefers_gguf, mmproj)
    if directory is None and (target := aliases.target_of(model)) is not None:
        model, directory = target, _local_directory(target, prefers_gguf, mmproj)
    if directory is not None:
        return directory
    cache = env.expanded(download_dir) if download_dir else env.hub_cache_dir()
    written = model
    model, wanted_gguf = hub_name(model, cache)
    try:
        snapshot = _cached_snapshot(cache, model, revision or "main")
    except OSError as error:
        raise ModelNotFoundError(
            f"the hub's cache {quoted(str(cache))} cannot be searched for {model!r}, revision "
            f"{quoted(revision or 'main')}: {error.strerror}"
        ) from None
    missing = _missing_files(snapshot, needs_weights) if snapshot else ["everything"]
    if wanted_gguf is not None:
        found = gguf.chosen(snapshot, wanted_gguf) if snapshot else None
        if found is not None and gguf.has_all_parts(found):
            return _unpacked(found, mmproj)
        missing = [f"the GGUF file {wanted_gguf}" if found is None else f"parts of {found.name}"]
    elif snapshot and (only := gguf.only_gguf(snapshot, prefers=prefers_gguf)):
        if not gguf.has_all_parts(only):  # a killed download
            return resolve_model(
                f"{model}:{only.name}", revision=revision, download_dir=download_dir,
                hf_token=hf_token, mmproj=mmproj, fetches=fetches,
            )  # fmt: skip
        return _with_gguf(snapshot, prefers_gguf, mmproj)
    elif snapshot and not missing:
        return _with_whisper(snapshot) or snapshot
    if not fetches:
        raise ModelNotFoundError(
            f"this machine has neither a directory {quoted(written)} nor the whole model of that "
            f"name; quire pull {written} fetches it.{suggestion(written, cache)}"
        )
    if env.hub_is_offline():
        raise ModelNotFoundError(
            _offline_message(written, model, revision, cache, missing, wanted_gguf)
        )
    try:
        fetched = download(
            model, revision, cache, hf_token, wanted=wanted_gguf, needs_weights=needs_weights
        )
    except ModelNotFoundError as error:
        if written in str(error):
            raise
        raise ModelNotFoundError(f"{quoted(written)}: {error}") from None
    if fetched.file is not None:
        return _unpacked(fetched.file, mmproj)
    return _with_gguf(fetched.snapshot, prefers_gguf, mmproj)


def fetch_model(
    model: str,
    *,
    revision: str | None = None,
    report: Report | None = None,
    note: Note | None = None,
) -> Fetched:
    """Downloads what the cache lacks of a hub model's present state.

    `report` gets the progress in place of bars, and `note` a text when the download waits. A
    download that was killed is continued. Raises ModelNotFoundError, CheckpointError, and
    ConfigError if the files cannot be written.
    """
    cache = env.hub_cache_dir()
    name, wanted_gguf = hub_name(aliases.target_of(model) or model, cache)
    if env.hub_is_offline():
        raise ModelNotFoundError(
            f"{model} cannot be fetched: {env.offline_variable()} forbids it. "
            + how_to_fetch(name, revision, cache, wanted_gguf)
        )
    return download(name, revision, cache, None, wanted=wanted_gguf, report=report, note=note)


def hub_name(model: str, cache: Path) -> tuple[str, str | None]:
    """The hub id and the GGUF file that a name means, with or without `hf.co/`. Raises
    ModelNotFoundError for a text that is not a hub id."""
    written, model = model, meant_by(_HUB_ADDRESS.sub("", model))
    model, wanted_gguf = gguf.name_of_file(model)
    if len(model) > _MAX_HUB_ID or not _HUB_ID.fullmatch(model) or ".." in model or "--" in model:
        raise ModelNotFoundError(
            f"there is no directory {quoted(written)}, and a hub id must have the form org/name."
            + suggestion(written, cache)
        )
    if wanted_gguf is None and "/" not in model and model.lower().endswith(".gguf"):
        raise ModelNotFoundError(
            f"there is no file {quoted(written)}; a GGUF file of the hub is named like "
            f"org/name:Q4_K_M." + suggestion(written, cache)
        )
    if wanted_gguf is not None and "/" not in model:
        raise ModelNotFoundError(
            f"there is no directory {quoted(written)}, and a GGUF file of the hub is named like "
            f"org/name:Q4_K_M." + suggestion(written, cache)
        )
    return model, wanted_gguf


def _with_gguf(directory: Path, prefers_gguf: bool, mmproj: str | None) -> Path:
    """The directory, or that of the file in it if its weights are one of another format."""
    file = gguf.only_gguf(directory, prefers=prefers_gguf)
    if file is None:
        return _with_whisper(directory) or directory
    return _unpacked(file, mmproj)


def _with_whisper(path: Path) -> Path | None:
    """The directory of a Whisper model that is not one of transformers; None: it is another
    model."""
    from quire.config.whisper.unpack import unpack_whisper, whisper_file

    file = whisper_file(path)
    return None if file is None else unpack_whisper(file)


def _unpacked(file: Path, mmproj: str | None) -> Path:
    from quire.gguf.unpack import unpack

    if not gguf.is_gguf(file) and (whisper := _with_whisper(file)) is not None:
        return whisper
    if mmproj is None:
        return unpack(file, gguf.projectors(file))
    path = env.expanded(mmproj)
    if not path.is_file():
        raise ConfigError(f"mmproj must be a GGUF file with an image encoder, got {mmproj!r}")
    return unpack(file, [path], is_asked=True)


def _local_directory(model: str, prefers_gguf: bool, mmproj: str | None) -> Path | None:
    """The directory of this path, or of the bundled model; None if there is none."""
    try:
        path = env.expanded(model)
    except ConfigError as error:
        raise ModelNotFoundError(str(error)) from None
    try:
        if model == DEMO_MODEL and not (path / "config.json").is_file():
            return DEMO_MODEL_PATH
        if model and path.is_dir():
            return _with_gguf(path, prefers_gguf, mmproj)
        is_file = path.is_file()
        name, wanted_gguf = gguf.name_of_file(model)
        place = env.expanded(name) if wanted_gguf is not None else None
        is_place = place is not None and place.is_dir()
    except (OSError, RuntimeError) as error:  # a name that is too long, or a circle of links
        raise ModelNotFoundError(
            f"{quoted(model)} cannot be a model: {reason(error)}; give a directory or a hub id"
        ) from None
    if is_file and gguf.is_gguf(path):
        return _unpacked(path, mmproj)
    if is_file and (whisper := _with_whisper(path)) is not None:
        return whisper
    if is_file:
        raise ModelNotFoundError(
            f"{model!r} is a file, and neither a GGUF file nor one of whisper.cpp; give the "
            "directory that holds config.json"
        )
    if place is not None and wanted_gguf is not None and is_place:
        return _unpacked(gguf.downloaded(place, wanted_gguf, name), mmproj)
    return None


def _cached_snapshot(cache: Path, model: str, revision: str) -> Path | None:
    """The snapshot in the hub's cache layout: refs/<revision> names a folder of snapshots/."""
    repo = cache / f"models--{model.replace('/', '--')}"
    commit = revision
    if not _COMMIT.fullmatch(revision):
        ref = repo / "refs" / revision
        if not ref.is_file():
            return None
        commit = ref.read_text(encoding="ascii", errors="replace").strip()
        if not _COMMIT.fullmatch(commit):
            return None
    snapshot = repo / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def _missing_files(directory: Path, needs_weights: bool) -> list[str]:
    """The parts that a snapshot lacks, as text; a dangling link counts as missing."""
    missing = []
    if not any((directory / name).is_file() for name in _TOKENIZER_FILES):
        missing.append("the tokenizer")
    if needs_weights:
        if not (directory / "config.json").is_file():
            missing.append("config.json")
        missing += missing_weights(directory)
    return missing


def missing_weights(directory: Path) -> list[str]:
    """The files of weights that a snapshot lacks, as text."""
    for name in _WEIGHT_INDEXES:
        if (directory / name).is_file():
            index = read_json_object(directory / name, max_bytes=64 * MiB)
            weight_map = index.get("weight_map")
            if not isinstance(weight_map, dict):
                raise CheckpointError(f"{directory / name} must have a weight_map")
            files = sorted({str(file) for file in weight_map.values()})
            missing = [file for file in files if not _is_file(directory / file)]
            is_stale = _is_file(directory / name.removesuffix(".index.json"))
            return [] if is_stale else missing
    for pattern in ("*.safetensors", "*.bin"):
        if any(file.is_file() for file in directory.glob(pattern)):
            return []
    return ["the weights"]


def _is_file(path: Path) -> bool:
    """Also False for an invalid file name, which a damaged index may hold."""
    try:
        return path.is_file()
    except OSError:
        return False


def _offline_message(
    written: str,
    model: str,
    revision: str | None,
    cache: Path,
    missing: Iterable[str],
    wanted: str | None,
) -> str:
    return (
        f"there is no directory {written!r}, and the hub's cache {cache} lacks "
        f"{', '.join(missing)} of the model of that name; {env.offline_variable()} forbids "
        "fetching it. " + how_to_fetch(model, revision, cache, wanted) + suggestion(model, cache)
    )
