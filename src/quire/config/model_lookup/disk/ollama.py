"""Reads Ollama's folder: `manifests/HOST/NAMESPACE/MODEL/TAG` names files of `blobs`.

Nothing of a manifest is used as a path: a blob is found by the 64 digits of its checksum. A text is
read only from a file inside `blobs`; the weights may be a link to a GGUF file elsewhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.config.checkpoint.model_files import parse_json_object
from quire.config.model_lookup.disk.found import (
    LocalModel,
    Scan,
    file_status,
    is_gguf_file,
    size_and_time,
)
from quire.config.model_lookup.settings import AliasSettings, settings_of_parameters
from quire.errors import CheckpointError, ConfigError, quoted
from quire.units import KiB, MiB

_HOST, _NAMESPACE, _TAG = "registry.ollama.ai", "library", "latest"
_MEDIA = "application/vnd.ollama.image."
_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")
_MAX_JSON = 1 * MiB
_MAX_TEXT = 256 * KiB
_MAX_TYPES, _MAX_OF_TYPE = 16, 4
_MAX_PARAMETERS = 100
_USED = ("model", "projector", "template", "system", "params", "license", "prompt")


def is_ollama(directory: Path) -> bool:
    """Whether a folder has Ollama's layout."""
    try:
        return (directory / "manifests").is_dir() and (directory / "blobs").is_dir()
    except OSError:
        return False


def ollama_models(directory: Path, scan: Scan) -> Iterator[LocalModel]:
    """The models of a folder, also those that cannot be used."""
    blobs = directory / "blobs"
    for manifest in _manifests(directory / "manifests", scan):
        host, namespace, model, tag = manifest.parts[-4:]
        names = _names(host, namespace, model, tag)
        try:
            yield _model(names, directory, manifest, _Layers(blobs, scan, _layers(manifest, scan)))
        except CheckpointError as error:
            if scan.has_stopped:
                break
            scan.note(str(error))
        except OSError:
            continue  # it has gone meanwhile


def _manifests(root: Path, scan: Scan) -> Iterator[Path]:
    folders = [root]
    for _ in range(3):
        folders = [path for one in folders for path in scan.listed(one)]
    for folder in folders:
        yield from (path for path in scan.listed(folder) if file_status(path) is not None)


def _names(host: str, namespace: str, model: str, tag: str) -> tuple[str, ...]:
    """Ollama's names of a model, the shortest with a tag first."""
    long = f"{host}/{namespace}/{model}"
    short = long
    if host == _HOST:
        short = model if namespace == _NAMESPACE else f"{namespace}/{model}"
    untagged = (short, long) if tag == _TAG else ()
    return tuple(dict.fromkeys((f"{short}:{tag}", f"{long}:{tag}", *untagged)))


@dataclass(frozen=True, slots=True)
class _Layers:
    """The blobs of a manifest, by the last word of their type."""

    blobs: Path
    scan: Scan
    found: dict[str, list[str]]

    def one(self, kind: str) -> Path | None:
        return next(iter(self.all(kind)), None)

    def all(self, kind: str) -> list[Path]:
        return [self.blobs / f"sha256-{digest}" for digest in self.found.get(kind, ())]

    def text(self, kind: str, max_bytes: int, notes: list[str]) -> str:
        """A text inside the folder; "" where there is none, or a note says why it is not used."""
        path = self.one(kind)
        if path is None:
            return ""
        is_inside = os.path.realpath(path).startswith(os.path.realpath(self.blobs) + os.sep)
        raw = self.scan.read(path, max_bytes) if is_inside else None
        try:
            if raw is not None:
                return raw.decode()
        except UnicodeDecodeError:
            pass
        notes.append(f"its {kind} cannot be read, so it is not used")
        return ""


def _model(names: tuple[str, ...], directory: Path, manifest: Path, layers: _Layers) -> LocalModel:
    notes = list[str]()
    path, projector = layers.one("model"), layers.one("projector")
    problem = _problem(layers, path, manifest)
    if not problem:
        notes += [f"its {kind} is not used" for kind in layers.found if kind not in _USED]
    if projector is not None and not is_gguf_file(projector):
        notes.append("its projector is missing or no GGUF file, so it takes no images")
        projector = None
    size, _ = size_and_time([one for kind in layers.found for one in layers.all(kind)])
    _, modified = size_and_time([manifest])
    return LocalModel(
        name=names[0],
        others=names[1:],
        source="ollama",
        place=directory,
        path=path or manifest,
        num_bytes=size,
        modified=modified,
        projector=projector,
        settings=_settings(layers, notes),
        go_template=layers.text("template", _MAX_TEXT, notes),
        notes=tuple(notes),
        problem=problem,
    )


def _layers(manifest: Path, scan: Scan) -> dict[str, list[str]]:
    """The checksums of a few layers of each type. Raises CheckpointError."""
    raw = scan.read(manifest, _MAX_JSON)
    if raw is None:
        raise CheckpointError(f"{quoted(str(manifest))} cannot be read, or is larger than 1 MiB")
    layers = parse_json_object(raw, quoted(str(manifest))).get("layers")
    if not isinstance(layers, list):
        raise CheckpointError(f"{quoted(str(manifest))}: layers must be a list")
    found: dict[str, list[str]] = {}
    for layer in layers:
        media, digest = (
            (layer.get("mediaType"), layer.get("digest")) if isinstance(layer, dict) else (0, 0)
        )
        match = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
        if not isinstance(media, str) or match is None:
            raise CheckpointError(
                f"{quoted(str(manifest))}: a layer must have a mediaType and a digest of sha256, "
                f"got {quoted(layer)}"
            )
        kind = media.removeprefix(_MEDIA).partition(";")[0] if media.startswith(_MEDIA) else media
        digests = found.setdefault(kind[:40], [])
        if len(digests) < _MAX_OF_TYPE:
            digests.append(match[1].lower())
        if len(found) > _MAX_TYPES:
            raise CheckpointError(f"{quoted(str(manifest))} has more than {_MAX_TYPES} types")
    return found


def _problem(layers: _Layers, path: Path | None, manifest: Path) -> str:
    if path is None:
        what = "separate tensors" if layers.one("tensor") else "no weights on this machine"
        return f"Ollama's {manifest.parent.name}:{manifest.name} has {what}; Quire reads GGUF files"
    if len(layers.found["model"]) > 1:
        return "its weights are several files; give one model in one GGUF file"
    if file_status(path) is None:
        return f"its weights are missing: {path}; `ollama pull` fetches them"
    if not is_gguf_file(path):
        return f"its weights are no GGUF file: {path}"
    if (adapter := layers.one("adapter")) is not None:
        return (
            f"it has an adapter, which requests name themselves here: quire serve {path} "
            f"--enable-lora --lora-modules NAME={adapter}"
        )
    return ""


def _settings(layers: _Layers, notes: list[str]) -> AliasSettings:
    """The settings of a manifest; a parameter that cannot be used is a note."""
    found: dict[str, Any] = {}
    if text := layers.text("params", _MAX_JSON, notes):
        try:
            found = parse_json_object(text, "its parameters")
        except CheckpointError as error:
            notes.append(str(error))
    if len(found) > _MAX_PARAMETERS:
        notes.append(f"its parameters are more than {_MAX_PARAMETERS}, so they are not used")
        found = {}
    used: dict[str, Any] = {}
    for name, value in found.items():
        if value is None:
            continue
        try:
            settings_of_parameters({name: value})
            used[name] = value
        except ConfigError as error:
            notes.append(f"its parameter {quoted(name)} is not used: {error}")
    return settings_of_parameters(used, system_prompt=layers.text("system", _MAX_TEXT, notes))[0]
