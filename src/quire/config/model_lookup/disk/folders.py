"""Reads folders of model files: the user's own, LM Studio's and llama.cpp's.

Looked for are GGUF files, whisper.cpp's files and directories with a config.json, down to
`PUBLISHER/REPOSITORY/FILE`, and repositories in the layout of the hub's cache.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from quire.config.checkpoint.model_files import parse_json_object
from quire.config.model_lookup.disk.found import (
    LocalModel,
    Scan,
    SourceName,
    file_status,
    is_gguf_file,
    size_and_time,
)
from quire.config.model_lookup.disk.ollama import is_ollama, ollama_models
from quire.config.model_lookup.library import models_of
from quire.config.whisper.ggml import is_ggml
from quire.errors import CheckpointError
from quire.gguf.part_names import is_first, stem_of
from quire.units import MiB

_DEPTH = 3
"""Levels of folders that are looked into."""
_HUB_PREFIX = "models--"
_WEIGHTS = (".safetensors", ".bin")
_MANIFEST = re.compile(r"manifest=([^=]+)=([^=]+)=([^=]+)\.json")
"""llama.cpp's record of what it fetched: `manifest=ORG=REPOSITORY=TAG.json`."""


def folder_models(root: Path, source: SourceName, scan: Scan) -> Iterator[LocalModel]:
    """The models of a folder, or of Ollama's if it has that layout."""
    for place in (root, root / "models"):
        if is_ollama(place):
            yield from ollama_models(place, scan)
            return
    yield from _walked(root, root, source, scan, _DEPTH)


def _walked(
    root: Path, directory: Path, source: SourceName, scan: Scan, depth: int
) -> Iterator[LocalModel]:
    paths = scan.listed(directory)
    if directory != root and any(path.name == "config.json" for path in paths):
        weights = [path for path in paths if path.suffix in _WEIGHTS]
        if weights and any(file_status(path) for path in weights):
            size, modified = size_and_time(paths)
            yield LocalModel(
                name=directory.name, others=(str(directory.relative_to(root)),), source=source,
                place=root, path=directory, kind="safetensors", num_bytes=size, modified=modified,
            )  # fmt: skip
    yield from _gguf_models(root, paths, source, scan)
    yield from _ggml_models(root, paths, source)
    if any(path.name.startswith(_HUB_PREFIX) for path in paths):
        yield from _hub_models(root, directory, source)
    for path in paths:
        if depth > 1 and not path.name.startswith((".", _HUB_PREFIX)):
            with suppress(OSError):
                if path.is_dir():
                    yield from _walked(root, path, source, scan, depth - 1)


def _gguf_models(
    root: Path, paths: list[Path], source: SourceName, scan: Scan
) -> Iterator[LocalModel]:
    """The GGUF files among the entries of one folder; a split model is one."""
    groups: dict[str, list[Path]] = {}
    for path in paths:
        if path.suffix.lower() == ".gguf" and "mmproj" not in path.name.lower():
            groups.setdefault(stem_of(path.stem), []).append(path)
    manifests = _manifests(paths, scan) if source == "llama.cpp" else {}
    for stem, files in groups.items():
        first = next((path for path in files if is_first(path.stem)), None)
        if first is None or not is_gguf_file(first):
            continue
        name, projector = manifests.get(first.name, ("", _projector_of(stem, paths)))
        size, modified = size_and_time(files)
        longer = str((first.parent / stem).relative_to(root))
        yield LocalModel(
            name=stem, others=tuple(filter(None, (longer, f"{stem}.gguf", first.name, name))),
            source=source, place=root, path=first, num_bytes=size, modified=modified,
            projector=projector,
        )  # fmt: skip


def _ggml_models(root: Path, paths: list[Path], source: SourceName) -> Iterator[LocalModel]:
    """The files of whisper.cpp among the entries of one folder."""
    for path in paths:
        if path.suffix == ".bin" and file_status(path) is not None and is_ggml(path):
            size, modified = size_and_time([path])
            others = (str(path.relative_to(root)), path.name)
            yield LocalModel(
                name=path.stem, others=others, source=source, place=root, path=path, kind="ggml",
                num_bytes=size, modified=modified,
            )  # fmt: skip


def _projector_of(stem: str, paths: list[Path]) -> Path | None:
    """The image encoder `NAME-mmproj...` of a model `NAME...`. One that is called `mmproj...` is
    found when the model is loaded."""
    for path in paths:
        begin, mark, _ = path.name.lower().partition("mmproj")
        begin = begin.strip("-_.")
        if mark and begin and stem.lower().startswith(begin) and is_gguf_file(path):
            return path
    return None


def _manifests(paths: list[Path], scan: Scan) -> dict[str, tuple[str, Path | None]]:
    """The hub's names of files that llama.cpp keeps in one folder, and their image encoders."""
    known = {path.name: path for path in paths}
    found: dict[str, tuple[str, Path | None]] = {}
    for path in paths:
        match = _MANIFEST.fullmatch(path.name)
        raw = None if match is None else scan.read(path, 4 * MiB)
        if match is None or raw is None:
            continue
        with suppress(CheckpointError):
            record = parse_json_object(raw, path.name)
            prefix = f"{match[1]}_{match[2]}_"
            names = []
            for key in ("ggufFile", "mmprojFile"):
                part = record.get(key)
                name = part.get("rfilename") if isinstance(part, dict) else None
                names.append(prefix + name.replace("/", "_") if isinstance(name, str) else "")
            if names[0] in known:
                projector = known.get(names[1])
                if projector is not None and not is_gguf_file(projector):
                    projector = None
                found[names[0]] = (f"{match[1]}/{match[2]}:{match[3]}", projector)
    return found


def _hub_models(root: Path, cache: Path, source: SourceName) -> Iterator[LocalModel]:
    for one in models_of(cache):
        if not one.files or one.files[0].name.startswith("mmproj"):
            continue
        is_gguf = one.kind == "gguf"
        yield LocalModel(
            name=one.name,
            source=source,
            place=root,
            path=one.files[0] if is_gguf else one.files[0].parent,
            kind=one.kind,
            num_bytes=one.num_bytes,
            modified=one.modified,
            problem="" if one.is_complete else "its download has not ended",
        )
