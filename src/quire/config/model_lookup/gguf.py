"""Which GGUF file is meant: `place:file.gguf`, `place:Q4_K_M`, or the only one of a directory."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatch
from itertools import takewhile
from pathlib import Path

from quire.errors import ModelNotFoundError
from quire.gguf.container import MAGIC

_OTHER_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.quire")
_PROJECTOR = "mmproj"
"""Prefix of the names of files that hold an image encoder, and no language model."""
_PRECISIONS = ("bf16", "f16", "f32")
"""Parts of such names, the most suitable first."""


def is_gguf(path: Path) -> bool:
    """Whether a file begins as GGUF files do, or is named as one."""
    try:
        with path.open("rb") as file:
            return file.read(4) == MAGIC or path.suffix == ".gguf"
    except OSError:
        return path.suffix == ".gguf"


def name_of_file(model: str) -> tuple[str, str | None]:
    """`place:file` in its parts; None: no file is named."""
    place, colon, name = model.rpartition(":")
    return (place, name) if colon and place and name else (model, None)


def only_gguf(directory: Path, *, prefers: bool) -> Path | None:
    """The GGUF file of a directory that has no other weights and no config.json; `prefers`:
    whatever else it has. Raises ModelNotFoundError where there are several."""
    files = _models(directory)
    if not files or (not prefers and _has_others(directory)):
        return None
    if len(files) > 1:
        raise ModelNotFoundError(
            f"{directory} holds {len(files)} GGUF models; name one of them: "
            f"{directory}:{files[0].name}"
        )
    return files[0]


def chosen(directory: Path, wanted: str) -> Path | None:
    """The file that `wanted` names, whole or in a part such as Q4_K_M; None: there is none.

    Raises ModelNotFoundError where several have that part.
    """
    files = _models(directory)
    exact = [file for file in files if file.name == wanted]
    if not exact and (directory / wanted).suffix == ".gguf":
        exact = [file for file in directory.glob("*.gguf") if file.name == wanted]
    found = exact or [file for file in files if wanted.lower() in file.stem.lower()]
    if len(found) > 1:
        raise ModelNotFoundError(
            f"{directory}: {wanted!r} may be any of {', '.join(file.name for file in found[:8])}; "
            "give the whole name"
        )
    return found[0] if found else None


def downloaded(directory: Path, wanted: str, model: str) -> Path:
    """Call `chosen` for a directory that must contain the file. Raises ModelNotFoundError."""
    found = chosen(directory, wanted)
    if found is None:
        names = ", ".join(file.name for file in _models(directory)[:8]) or "no GGUF file"
        raise ModelNotFoundError(f"{model} holds no GGUF file {wanted!r}; it holds {names}")
    return found


def pattern(wanted: str) -> str:
    """Pattern that matches the names of the files to download."""
    return wanted if wanted.endswith(".gguf") else f"*{wanted}*.gguf"


def projectors(file: Path) -> list[Path]:
    """The files with image encoders next to a model's file, the most suitable first."""
    found = file.parent.glob(f"{_PROJECTOR}*.gguf")
    return [file.with_name(name) for name in by_likeness([one.name for one in found], file.name)]


def by_likeness(names: Iterable[str], model: str) -> list[str]:
    """The `names` of image encoders: first the ones most like the model's name, then by
    precision."""

    def key(name: str) -> tuple[int, int, str]:
        stem = name.removeprefix(_PROJECTOR).strip("-_.").removesuffix(".gguf").lower()
        pairs = zip(stem, model.lower(), strict=False)
        likeness = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        precision = next((i for i, one in enumerate(_PRECISIONS) if one in stem), len(_PRECISIONS))
        return -likeness, precision, name

    return sorted((one for one in names if is_projector(one)), key=key)


def projector_of(names: Iterable[str], pattern: str) -> list[str]:
    """The image encoder of the models that match, of all files of a repository; at most one."""
    names = list(names)
    models = [one for one in names if fnmatch(one, pattern) and not is_projector(one)]
    return by_likeness(names, models[0])[:1] if models else []


def is_projector(name: str) -> bool:
    """Whether a file of this name holds an image encoder."""
    return name.startswith(_PROJECTOR) and name.endswith(".gguf")


def _models(directory: Path) -> list[Path]:
    """The GGUF models of a directory, each by its first file."""
    files = sorted(
        file for file in directory.glob("*.gguf") if not file.name.startswith(_PROJECTOR)
    )
    return [file for file in files if not _is_later_part(file)]


def _is_later_part(file: Path) -> bool:
    number, _, count = file.stem.rpartition("-of-")
    is_part = len(count) == 5 and count.isdigit() and number[-5:].isdigit() and number[-6:-5] == "-"
    return is_part and int(number[-5:]) > 1


def _has_others(directory: Path) -> bool:
    if (directory / "config.json").exists():
        return True
    return any(True for pattern in _OTHER_WEIGHTS for _ in directory.glob(pattern))
