"""The files that a GGUF model is split into: `name-00001-of-00003.gguf` and so on."""

from __future__ import annotations

from pathlib import Path

from quire.errors import CheckpointError, quoted
from quire.gguf.container import GgufHeader, read_header
from quire.gguf.part_names import part_of

_MAX_FILES = 1000


def files_of(path: Path) -> list[Path]:
    """All files of the model that `path` is a part of, in order. Raises CheckpointError."""
    part = part_of(path.stem)
    if part is None or path.suffix != ".gguf":
        return [path]
    stem, _, count = part
    if not 1 <= count <= _MAX_FILES:
        raise CheckpointError(f"{path}: split into {count} files; 1 to {_MAX_FILES} are read")
    names = [f"{stem}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    files = [path.with_name(name) for name in names]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise CheckpointError(
            f"{path.parent}: the model is split into {count} files, and {', '.join(missing[:4])} "
            + ("is missing" if len(missing) == 1 else f"({len(missing)} of them) are missing")
        )
    return files


def read_headers(files: list[Path]) -> list[GgufHeader]:
    """The headers of all files of one model, the one with its metadata first.

    Raises CheckpointError where they do not belong together.
    """
    headers = [read_header(file) for file in files]
    first = headers[0]
    if first.metadata.get("split.count", len(files)) != len(files) and len(files) == 1:
        raise CheckpointError(
            f"{first.path}: is one of {quoted(first.metadata['split.count'])} files of a model; "
            "they are found by names of the form name-00001-of-00002.gguf"
        )
    if len(files) > 1:
        _check_numbers(headers)
    seen: dict[str, Path] = {}
    for header in headers:
        for name in header.tensors:
            if name in seen:
                raise CheckpointError(
                    f"tensor {quoted(name)} lies in both {seen[name]} and {header.path}"
                )
            seen[name] = header.path
    wanted = first.metadata.get("split.tensors.count", len(seen))
    if wanted != len(seen):
        raise CheckpointError(
            f"{first.path}: says that the model has {quoted(wanted)} tensors; the files hold "
            f"{len(seen)}"
        )
    return headers


def _check_numbers(headers: list[GgufHeader]) -> None:
    for index, header in enumerate(headers):
        number, count = header.metadata.get("split.no"), header.metadata.get("split.count")
        if (number, count) != (index, len(headers)):
            raise CheckpointError(
                f"{header.path}: says that it is file {quoted(number)} of {quoted(count)}, counted "
                f"from 0; by its name it is {index} of {len(headers)}"
            )
