"""Which GGUF file is meant: `place:file.gguf`, `place:Q4_K_M`, or the only one of a directory. A
file of whisper.cpp is named whole: `place:ggml-base.bin`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

from quire.errors import ModelNotFoundError
from quire.gguf.container import MAGIC
from quire.gguf.part_names import PartName, is_first, part_of, stem_of
from quire.log import get_logger

_logger = get_logger(__name__)

_OTHER_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.quire")
_GGML = ".bin"
"""End of the names of whisper.cpp's files."""
_PROJECTOR = "mmproj"
"""Prefix of the names of files that hold an image encoder, and no language model."""
_PRECISIONS = ("bf16", "f16", "f32")
"""Parts of such names, the most suitable first."""

_QUANT = re.compile(r"(?:^|[-_.])((?:I?Q\d\w*|BF16|F16|F32|MXFP4\w*))$", re.IGNORECASE)
_BY_NEARNESS = (
    "Q4_K_M", "Q4_K_XL", "Q4_K_L", "Q4_K_S", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS", "MXFP4", "Q5_K_M",
    "Q5_K_S", "Q5_1", "Q5_0", "Q6_K", "Q8_0", "Q3_K_L", "Q3_K_M", "Q3_K_S", "BF16", "F16", "Q2_K",
    "F32",
)  # fmt: skip
"""Quantisations, the one nearest to Q4_K_M first."""
_MAX_SHOWN = 20


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
    files = _models(_files(directory))
    if not files or (not prefers and _has_others(directory)):
        return None
    return directory / chosen_name(files, None, str(directory))


def chosen(directory: Path, wanted: str) -> Path | None:
    """The file that `wanted` names, whole or in a part such as Q4_K_M; None: there is none.

    Raises ModelNotFoundError where several have that part.
    """
    name = _named(_files(directory, wanted), wanted, str(directory))
    return None if name is None else directory / name


def downloaded(directory: Path, wanted: str, model: str) -> Path:
    """Call `chosen` for a directory that must contain the file. Raises ModelNotFoundError."""
    return directory / chosen_name(_files(directory, wanted), wanted, model)


def chosen_name(names: Iterable[str], wanted: str | None, model: str) -> str:
    """The first file of the model that `wanted` names; None: the only model, or of files that
    differ in their quantisation alone the one nearest to Q4_K_M. Raises ModelNotFoundError."""
    names = list(names)
    models = _models(names)
    found = _preferred(models, model) if wanted is None else _named(names, wanted, model)
    if found is not None:
        return found
    kind = "file" if wanted is not None and wanted.endswith(_GGML) else "GGUF file"
    shown = _shown(models) or _shown(ggml_files(names)) or f"no {kind}"
    if wanted is not None:
        raise ModelNotFoundError(f"{model} holds no {kind} {wanted!r}; it holds {shown}")
    if not models:
        raise ModelNotFoundError(f"{model} has neither .safetensors nor .bin nor .gguf weights")
    raise ModelNotFoundError(
        f"{model} holds {len(models)} GGUF models; name one of them: {model}:{models[0]}; it holds "
        f"{shown}"
    )


def parts_of(names: Iterable[str], first: str) -> list[str]:
    """All files of the model that begins with the file `first`."""
    whole = _part(first)
    if whole is None:
        return [first]
    return [
        name
        for name in names
        if (part := _part(name)) and (part.stem, part.total) == (whole.stem, whole.total)
    ]


def has_all_parts(file: Path) -> bool:
    """Whether the other files of a split model lie next to its first file."""
    names = [one.name for one in file.parent.glob("*.gguf") if one.is_file()]  # no dangling link
    return is_whole(parts_of(names, file.name)) and file.is_file()


def is_whole(files: Iterable[str]) -> bool:
    """Whether no part of a split model is missing."""
    parts = [part for name in files if (part := _part(name))]
    return not parts or len(parts) >= parts[0].total


def quant_of(file: Path) -> str:
    """The quantisation that the name of a GGUF file, or of its folder, ends with, such as Q4_K_M;
    else the file's name."""
    found = _QUANT.search(stem_of(file.stem)) or _QUANT.search(file.parent.name)
    return found[1].upper() if found else file.name


def projectors(file: Path) -> list[Path]:
    """The files with image encoders next to a model's file, the most suitable first."""
    places = [file.parent]
    if len(file.parents) > 2 and file.parents[2].name == "snapshots":  # a folder of a repository
        places.append(file.parents[1])
    for place in places:
        found = [one.name for one in place.glob(f"{_PROJECTOR}*.gguf")]
        if found:
            return [place / name for name in by_likeness(found, file.name)]
    return []


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


def projector_of(names: Iterable[str], model: str) -> list[str]:
    """The image encoder of a model's file, of all files of a repository; at most one. It lies in
    the folder of the model, or at the top."""
    folder, _, file = model.rpartition("/")
    names = list(names)
    for place in dict.fromkeys((f"{folder}/" if folder else "", "")):
        near = [
            one.removeprefix(place)
            for one in names
            if one.startswith(place) and "/" not in one.removeprefix(place)
        ]
        if found := by_likeness(near, file):
            return [place + found[0]]
    return []


def is_projector(name: str) -> bool:
    """Whether a file of this name holds an image encoder."""
    return name.startswith(_PROJECTOR) and name.endswith(".gguf")


def ggml_files(names: Iterable[str]) -> list[str]:
    """The files of whisper.cpp in a repository that has no other weights."""
    names = list(names)
    found = [name for name in names if name.endswith(_GGML) and "/" not in name]
    is_other = "config.json" in names or not all(name.startswith("ggml-") for name in found)
    return [] if is_other else found


def _files(directory: Path, wanted: str = "") -> list[str]:
    """The GGUF files of a directory, relative to it, and those in its folders: in the folders of a
    snapshot, and in others that are named after a quantisation. Other folders hold other models.
    Also the file `wanted` of whisper.cpp."""
    if wanted.endswith(_GGML):
        return sorted(file.name for file in directory.glob(f"*{_GGML}") if file.is_file())
    is_snapshot = directory.parent.name == "snapshots"
    folders = [
        file
        for file in directory.glob("*/*.gguf")
        if is_snapshot or _QUANT.search(file.parent.name)
    ]
    return sorted(
        file.relative_to(directory).as_posix() for file in (*directory.glob("*.gguf"), *folders)
    )


def _models(names: Iterable[str]) -> list[str]:
    """The GGUF models among files, each by its first file."""
    return sorted(
        name
        for name in names
        if name.endswith(".gguf") and name.count("/") <= 1 and not name.startswith(("/", "../"))
        and not is_projector(name.rpartition("/")[2])
        and is_first(name.removesuffix(".gguf"))
    )  # fmt: skip


def _part(name: str) -> PartName | None:
    """The parts of the name of a split model's file, which may begin with its folder."""
    return part_of(name.removesuffix(".gguf")) if name.endswith(".gguf") else None


def _named(names: Iterable[str], wanted: str, model: str) -> str | None:
    """The file that `wanted` names, in letters of any case. Raises ModelNotFoundError where several
    do."""
    names, low = list(names), wanted.lower()
    if wanted.endswith(_GGML):
        return wanted if wanted in names and "/" not in wanted else None
    files = [name for name in names if name.endswith(".gguf") and ".." not in name.split("/")]
    models = _models(names)
    found = (
        [name for name in files if wanted in (name, name.rpartition("/")[2])]
        or [name for name in files if low in (name.lower(), name.lower().rpartition("/")[2])]
        or [name for name in models if quant_of(Path(name)).lower() == low]
        or [name for name in models if low in name.removesuffix(".gguf").lower()]
    )
    if len(found) > 1:
        raise ModelNotFoundError(
            f"{model}: {wanted!r} may be any of {_shown(found)}; give the whole name"
        )
    return found[0] if found else None


def _preferred(models: list[str], model: str) -> str | None:
    """The only model, or the one nearest to Q4_K_M; None: the files are of several models."""
    if len(models) <= 1:
        return models[0] if models else None
    stems = {_without_quant(name) for name in models}
    ranked = [name for name in models if quant_of(Path(name)) in _BY_NEARNESS]
    if len(stems) > 1 or not ranked:
        return None
    found = min(ranked, key=lambda name: _BY_NEARNESS.index(quant_of(Path(name))))
    _logger.warning(
        "%s has %d GGUF models; taking %s (name another one like %s:%s)",
        model, len(models), found, model, quant_of(Path(next(x for x in models if x != found))),
    )  # fmt: skip
    return found


def _without_quant(name: str) -> str:
    stem = stem_of(Path(name).stem)
    return re.sub(r"(?i)[-_.]UD$", "", _QUANT.sub("", stem)).lower()


def _shown(names: list[str]) -> str:
    rest = len(names) - _MAX_SHOWN
    return ", ".join(names[:_MAX_SHOWN]) + (f" and {rest} others" if rest > 0 else "")


def _has_others(directory: Path) -> bool:
    if (directory / "config.json").exists():
        return True
    return any(True for pattern in _OTHER_WEIGHTS for _ in directory.glob(pattern))
