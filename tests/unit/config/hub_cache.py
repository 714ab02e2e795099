"""Writes files in the layout of the hub's cache."""

from __future__ import annotations

from pathlib import Path

from hub_server import COMMIT


def write_repo(cache: Path, repo: str, files: dict[str, bytes]) -> Path:
    base = cache / f"models--{repo.replace('/', '--')}"
    snapshot = base / "snapshots" / COMMIT
    for folder in (snapshot, base / "refs", base / "blobs"):
        folder.mkdir(parents=True, exist_ok=True)
    (base / "refs" / "main").write_text(COMMIT)
    for name, data in files.items():
        (base / "blobs" / name).write_bytes(data)
        (snapshot / name).symlink_to(base / "blobs" / name)
    return snapshot
