"""Writes a folder in Ollama's layout."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def write_blob(store: Path, content: bytes) -> str:
    """A file of `blobs`; returns its digest."""
    digest = hashlib.sha256(content).hexdigest()
    (store / "blobs").mkdir(parents=True, exist_ok=True)
    (store / "blobs" / f"sha256-{digest}").write_bytes(content)
    return f"sha256:{digest}"


def write_manifest(store: Path, place: str, layers: Any) -> Path:
    """The manifest of a model at HOST/NAMESPACE/MODEL/TAG."""
    path = store / "manifests" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    (store / "blobs").mkdir(parents=True, exist_ok=True)
    media = "application/vnd.docker.distribution.manifest.v2+json"
    path.write_text(json.dumps({"schemaVersion": 2, "mediaType": media, "layers": layers}))
    return path


def write_model(store: Path, place: str, weights: bytes, **parts: Any) -> None:
    """A model; `parts`: contents of its other layers, by the last word of their type."""
    contents = {"model": weights, **parts}
    layers = []
    for kind, content in contents.items():
        raw = content if isinstance(content, bytes) else (
            content if isinstance(content, str) else json.dumps(content)
        ).encode()  # fmt: skip
        layers.append({
            "mediaType": f"application/vnd.ollama.image.{kind}", "size": len(raw),
            "digest": write_blob(store, raw),
        })  # fmt: skip
    write_manifest(store, place, layers)
