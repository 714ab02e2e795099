"""Finds the local directory of a model, given as a path or a hub id (`org/name`).

A directory is used without any network access. A hub id is looked up in the hub's local cache;
missing files are downloaded with huggingface_hub, which is imported only then. Called when an
engine is configured.
"""

from __future__ import annotations

import errno
import io
import re
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from quire import env
from quire.config.checkpoint.model_files import DEMO_MODEL, DEMO_MODEL_PATH, read_json_object
from quire.config.model_lookup import aliases, gguf
from quire.config.model_lookup.known import suggestion
from quire.errors import CheckpointError, ConfigError, ModelNotFoundError, quoted, reason
from quire.log import get_logger
from quire.units import MiB

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_HUB_ADDRESS = re.compile(r"^(?:https://)?(?:hf\.co|huggingface\.co)/")
_CANNOT_WRITE = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS,
    errno.ENOTDIR, errno.EEXIST,
)  # fmt: skip
_MAX_HUB_ID = 96
"""The hub's limit, in characters."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
TEXT_PATTERNS = ("*.json", "*.txt", "*.jinja", "*.model")
"""The files of a model directory other than weights."""
_IGNORED_PATTERNS = ["*/*", "consolidated*", "training_args*", "optimizer*"]
_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "tekken.json", "tokenizer.model")
_WEIGHT_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")

_logger = get_logger(__name__)


def resolve_model(
    model: str,
    *,
    revision: str | None = None,
    download_dir: str | None = None,
    hf_token: str | bool | None = None,
    needs_weights: bool = True,
    prefers_gguf: bool = False,
    mmproj: str | None = None,
) -> Path:
    """The directory that holds `model`: a path, a hub id, or a GGUF file, which is unpacked.

    `download_dir` replaces the hub's cache directory. `needs_weights` False: only the tokenizer is
    needed. `prefers_gguf`: prefer GGUF files to other weights. `mmproj`: the file with the image
    encoder of a GGUF model; None: the one next to it. Raises ModelNotFoundError that names the
    missing files and how to get them.
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
        if found is not None:
            return _unpacked(found, mmproj)
        missing = [f"the GGUF file {wanted_gguf}"]
    elif snapshot and gguf.only_gguf(snapshot, prefers=prefers_gguf):
        return _with_gguf(snapshot, prefers_gguf, mmproj)
    elif snapshot and not missing:
        return snapshot
    if env.hub_is_offline():
        raise ModelNotFoundError(_offline_message(written, model, revision, cache, missing))
    if wanted_gguf is not None:
        snapshot = _download(model, revision, cache, hf_token, gguf.pattern(wanted_gguf))
        return _unpacked(gguf.downloaded(snapshot, wanted_gguf, model), mmproj)
    weights = "" if needs_weights else None
    return _with_gguf(_download(model, revision, cache, hf_token, weights), prefers_gguf, mmproj)


def fetch_model(model: str, *, revision: str | None = None, report: Report | None = None) -> Path:
    """Downloads what the cache lacks of a hub model's present state; returns its snapshot.

    `report` replaces the progress bars. An interrupted download goes on where it ended. Raises
    ModelNotFoundError, and ConfigError if the files cannot be written.
    """
    cache = env.hub_cache_dir()
    name, wanted_gguf = hub_name(aliases.target_of(model) or model, cache)
    if env.hub_is_offline():
        raise ModelNotFoundError(
            f"{model} cannot be fetched: {env.offline_variable()} forbids it. "
            + _how_to_fetch(name, revision, cache)
        )
    weights = "" if wanted_gguf is None else gguf.pattern(wanted_gguf)
    snapshot = _download(name, revision, cache, None, weights, report)
    if wanted_gguf is not None:
        gguf.downloaded(snapshot, wanted_gguf, name)
    return snapshot


def hub_name(model: str, cache: Path) -> tuple[str, str | None]:
    """The hub id and the GGUF file that a name means, with or without `hf.co/`. Raises
    ModelNotFoundError for a text that is not a hub id."""
    written, model = model, _HUB_ADDRESS.sub("", model)
    model, wanted_gguf = gguf.name_of_file(model)
    if len(model) > _MAX_HUB_ID or not _HUB_ID.fullmatch(model) or ".." in model or "--" in model:
        raise ModelNotFoundError(
            f"there is no directory {quoted(written)}, and a hub id must have the form org/name."
            + suggestion(written, cache)
        )
    if wanted_gguf is not None and "/" not in model:
        raise ModelNotFoundError(
            f"there is no directory {quoted(written)}, and a GGUF file of the hub is named like "
            f"org/name:Q4_K_M." + suggestion(model, cache)
        )
    return model, wanted_gguf


def _with_gguf(directory: Path, prefers_gguf: bool, mmproj: str | None) -> Path:
    """The directory, or that of the GGUF file in it if its weights are one."""
    file = gguf.only_gguf(directory, prefers=prefers_gguf)
    return directory if file is None else _unpacked(file, mmproj)


def _unpacked(file: Path, mmproj: str | None) -> Path:
    from quire.gguf.unpack import unpack

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
    if is_file:
        raise ModelNotFoundError(
            f"{model!r} is a file, and no GGUF file; give the directory that holds config.json"
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
        missing += _missing_weights(directory)
    return missing


def _missing_weights(directory: Path) -> list[str]:
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
    written: str, model: str, revision: str | None, cache: Path, missing: Iterable[str]
) -> str:
    return (
        f"there is no directory {written!r}, and the hub's cache {cache} lacks "
        f"{', '.join(missing)} of the model of that name; {env.offline_variable()} forbids "
        "fetching it. " + _how_to_fetch(model, revision, cache) + suggestion(model, cache)
    )


def _how_to_fetch(model: str, revision: str | None, cache: Path) -> str:
    command = f"hf download {model}" + (f" --revision {revision}" if revision else "")
    directory = model.rpartition("/")[2]
    return (
        f"With a network, run: {command} --cache-dir {cache}. Or fetch it on another machine with "
        f"{command} --local-dir {directory}, copy the directory here, and give its path as the "
        "model."
    )


def _download(
    model: str,
    revision: str | None,
    cache: Path,
    hf_token: str | bool | None,
    weights: str | None,
    report: Report | None = None,
) -> Path:
    """Downloads the files that are needed and not in the cache yet. `weights`: the pattern of
    their names; "": whatever there is; None: none."""
    try:
        from huggingface_hub import HfApi, snapshot_download
    except ImportError:
        raise ModelNotFoundError(
            f"there is no directory {model!r}, and huggingface_hub, which would fetch the model of "
            f"that name, is not installed: {sys.executable} -m pip install huggingface_hub. "
            + _how_to_fetch(model, revision, cache)
            + suggestion(model, cache)
        ) from None
    _logger.info("%s: fetching what the cache lacks from the hub", model)
    patterns = list(TEXT_PATTERNS)
    try:
        if weights is not None:
            siblings = HfApi(token=hf_token).model_info(model, revision=revision).siblings or ()
            names = [file.rfilename for file in siblings]
            patterns = [weights] if weights else [*patterns, _weight_pattern(model, names)]
            if patterns[-1].endswith(".gguf"):
                patterns += gguf.projector_of(names, patterns[-1])
        return Path(
            snapshot_download(
                model,
                revision=revision,
                cache_dir=cache,
                token=hf_token,
                allow_patterns=patterns,
                ignore_patterns=_IGNORED_PATTERNS,
                tqdm_class=None if report is None else bar_class(report),
            )
        )
    except ModelNotFoundError:
        raise
    except Exception as error:  # huggingface_hub raises errors of its HTTP library
        raise _download_error(error, model, revision, cache) from error


def _download_error(
    error: Exception, model: str, revision: str | None, cache: Path
) -> ConfigError | ModelNotFoundError:
    if isinstance(error, OSError) and error.errno in _CANNOT_WRITE:
        return ConfigError(
            f"{model} cannot be kept in {cache}: {error.strerror}; make room there, or give "
            "another place with download_dir"
        )
    answered = getattr(error, "response", None) is not None
    return ModelNotFoundError(
        f"there is no directory {model!r}, and the hub did not give the model of that name: "
        f"{str(error).rstrip('.')}."
        + ("" if answered else f" {_how_to_fetch(model, revision, cache)}")
        + suggestion(model, cache)
    )


def _weight_pattern(model: str, files: Iterable[str]) -> str:
    top_level = [file for file in files if "/" not in file]
    for suffix in (".safetensors", ".bin"):
        if any(file.endswith(suffix) for file in top_level):
            return f"*{suffix}"
    files = sorted(
        file for file in top_level if file.endswith(".gguf") and not gguf.is_projector(file)
    )
    if len(files) == 1:
        return files[0]
    if files:
        raise ModelNotFoundError(
            f"{model}: the hub has {len(files)} GGUF files of it; name one of them: "
            f"{model}:{files[0]}"
        )
    raise ModelNotFoundError(
        f"{model}: the hub has neither .safetensors nor .bin nor .gguf weights of it"
    )


Report = Callable[[int, int], None]
"""Takes the bytes that were fetched so far, and all bytes as far as they are known."""


def bar_class(report: Report) -> type[Any]:
    """A class of progress bars that calls `report` from the threads of the download."""
    tqdm: Any = import_module("tqdm.auto").tqdm  # huggingface_hub needs it

    class ReportingBar(tqdm):  # type: ignore[misc]
        """Prints nothing. Bars that do not count bytes report nothing."""

        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*args, **{**options, "file": io.StringIO(), "disable": False})

        def update(self, n: float | None = 1) -> bool | None:
            """Counts `n` more, and reports the sum."""
            result: bool | None = super().update(n)
            if self.unit == "B":
                report(int(self.n), max(int(self.n), int(self.total or 0)))
            return result

        def display(self, *_: Any, **__: Any) -> bool:
            """Shows nothing."""
            return True

    return ReportingBar
