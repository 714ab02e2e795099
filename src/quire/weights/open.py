"""`open_checkpoint`: finds the weight files in a directory and opens them.

Called when an engine is built. Prefers safetensors to PyTorch files, and an index to a file name
pattern. Does not interpret tensor names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from quire.config.checkpoint.model_files import has_file
from quire.errors import CheckpointError
from quire.gguf.projectors.names import PROJECTOR_NAME
from quire.log import get_logger
from quire.weights.safetensors import SafetensorsFile
from quire.weights.sharded import folder_store, indexed_store, joined_store, read_index
from quire.weights.store import WeightStore
from quire.weights.torch_bin import TorchFile

logger = get_logger(__name__)

_SHARD = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})\.\w+")


@dataclass(frozen=True, slots=True)
class _Format:
    """The file names of one format in a model directory, and its reader."""

    main: str
    pattern: str
    ignored: tuple[str, ...]
    """Beginnings of file names that match the pattern but hold no weights of the model."""
    read: Callable[[Path], WeightStore]
    read_all: Callable[[list[Path]], WeightStore] | None = None
    """Reads all files of a model as one store; None: each file is a store of its own."""

    @property
    def index(self) -> str:
        return f"{self.main}.index.json"


def _read_gguf(files: list[Path]) -> WeightStore:
    from quire.weights.gguf_store import GgufStore

    return GgufStore(files)


def _read_whisper(file: Path) -> WeightStore:
    from quire.weights.whisper_store import WhisperStore

    return WhisperStore(file)


_FORMATS = (
    _Format("model.safetensors", "*.safetensors", ("consolidated", "adapter_"), SafetensorsFile),
    _Format(
        "pytorch_model.bin", "*.bin", ("training_args", "optimizer", "adapter_"), TorchFile
    ),
    _Format(
        "model.pt", "*.pt", ("training_args", "optimizer", "scheduler", "scaler", "consolidated"),
        TorchFile,
    ),
    _Format("model.gguf", "*.gguf", ("mmproj",), lambda file: _read_gguf([file]), _read_gguf),
    _Format("model.whisper", "*.whisper", (), _read_whisper),
)  # fmt: skip


def open_checkpoint(path: Path) -> WeightStore:
    """Open the weights in a model directory; only their headers are read.

    Raises CheckpointError if the directory has no weights, if a file is damaged, and if an index
    names a missing file or tensor.
    """
    for format in _FORMATS:
        index = _index(path, format)
        if index is not None:
            owners = read_index(index)
            files = _open_all(path, set(owners.values()), format, f"{index} names")
            return indexed_store(index, owners, files)
        names = _weight_files(path, format)
        if len(names) == 1:
            return format.read(_checked(path, names[0], f"{path} holds"))
        if names and format.read_all is not None:
            return format.read_all([_checked(path, name, f"{path} holds") for name in names])
        if names:
            return joined_store(_open_all(path, names, format, f"{path} holds"))
    raise _no_weights(path)


def projector_file(path: Path) -> Path | None:
    """The file with the image encoder of a GGUF model; None: there is none."""
    file = path / PROJECTOR_NAME
    return file if _is_unpacked(path) and has_file(file) else None


def open_encoder(path: Path) -> WeightStore:
    """Open the weights of a model's image encoder. Raises CheckpointError."""
    file = projector_file(path)
    return open_checkpoint(path) if file is None else _read_gguf([file])


def open_with_folders(path: Path, folders: Iterable[str]) -> WeightStore:
    """Open the weights in a model directory and those in folders of it, or in files `FOLDER.pt`.
    The names of the latter begin with `FOLDER.linear.`; a GGUF file has them itself. Raises
    CheckpointError as `open_checkpoint` does."""
    files = {"": open_checkpoint(path)}
    own = set(files[""].names())
    for folder in folders:
        if f"{folder}.linear.weight" in own:
            continue
        file = path / f"{folder}.pt"
        files[folder] = TorchFile(file) if has_file(file) else open_checkpoint(path / folder)
    return files[""] if len(files) == 1 else folder_store(files)


def open_tensor_file(path: Path) -> WeightStore:
    """Open a safetensors file, or one that torch has saved, whatever its name. A tensor that was
    saved alone has the name "". Raises CheckpointError."""
    with path.open("rb") as file:
        begin = file.read(2)
    if begin == b"PK" or begin.startswith(b"\x80"):
        return TorchFile(path, takes_tensor=True)
    return SafetensorsFile(path)


def weight_files(path: Path) -> list[Path]:
    """The files that `open_checkpoint` reads, the index first. Raises CheckpointError if the
    directory has no weights."""
    for format in _FORMATS:
        index = _index(path, format)
        if index is not None:
            names = sorted(set(read_index(index).values()))
            return [index, *(_checked(path, name, f"{index} names") for name in names)]
        if names := _weight_files(path, format):
            return [_checked(path, name, f"{path} holds") for name in names]
    raise _no_weights(path)


def _index(path: Path, format: _Format) -> Path | None:
    """The directory's index, if it has one that is valid. If files of the index are missing but one
    file holds the whole model, the index is stale: tools that merge shards do not delete it."""
    index = path / format.index
    if not has_file(index):
        return None
    if has_file(path / format.main):
        missing = [name for name in set(read_index(index).values()) if not has_file(path / name)]
        if missing:
            logger.warning(
                "%s is ignored because it names %s, which is missing; reading %s instead",
                index,
                min(missing),
                format.main,
            )
            return None
    return index


def _no_weights(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path} holds no weights: neither {_FORMATS[0].main} (or {_FORMATS[0].index}), nor "
        f"{_FORMATS[1].main}, nor a GGUF file"
    )


def _weight_files(path: Path, format: _Format) -> list[str]:
    if has_file(path / format.main):
        return [format.main]
    names = sorted(
        file.name
        for file in path.glob(format.pattern)
        if not file.name.startswith(format.ignored) and has_file(file)
    )
    _check_complete(path, names)
    return names


def _check_complete(path: Path, names: Iterable[str]) -> None:
    """Raises CheckpointError if numbered shards (`-00001-of-00003`) are missing."""
    parts: dict[tuple[str, int], set[int]] = {}
    for name in names:
        if match := _SHARD.fullmatch(name):
            parts.setdefault((match["stem"], int(match["count"])), set()).add(int(match["part"]))
    for (stem, count), found in parts.items():
        if len(found) != count:
            raise CheckpointError(
                f"{path}: {stem} must have {count} files, but only {len(found)} are there"
            )


def _open_all(
    path: Path, names: Iterable[str], format: _Format, reason: str
) -> dict[str, WeightStore]:
    return {name: format.read(_checked(path, name, reason)) for name in sorted(names)}


def _checked(path: Path, name: str, reason: str) -> Path:
    """Return the file. Raises CheckpointError if it is missing, or if it is a link to a place
    outside the directory that is not a blob of the hub's cache.

    `reason`: the source of the name, for messages.
    """
    file = path / name
    if not has_file(file):
        raise CheckpointError(
            f"{reason} {name!r}, but the file is missing; the download may be incomplete"
        )
    root = path.resolve()
    if file.resolve().is_relative_to(root) or _is_hub_blob(root, file) or _is_unpacked(root):
        return file
    raise CheckpointError(
        f"{file}: links to {file.resolve()}, outside of the checkpoint; put the file itself there"
    )


def _is_unpacked(root: Path) -> bool:
    """Whether the directory was made from a file of another format. Its links point to the user's
    own file."""
    from quire.gguf.unpacked import is_unpacked

    return is_unpacked(root)


def _is_hub_blob(root: Path, file: Path) -> bool:
    """Whether the file is a link of the hub's cache, in which snapshots/<revision>/<file> links to
    blobs/<hash> two folders up."""
    if root.parent.name != "snapshots" or not file.is_symlink():
        return False
    target = Path(os.path.normpath(root / os.readlink(file)))
    return target.parent == root.parent.parent / "blobs"
