"""Which models are on this machine: the suggestions for a model that is not found."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from quire import env
from quire.config.checkpoint.model_files import DEMO_MODEL
from quire.config.model_lookup.short_names import meant_by, short_names
from quire.suggest import nearest

_MAX_ENTRIES = 1000
"""Files of a directory that are looked at."""
_MAX_SHOWN = 8


def suggestion(model: str, cache: Path, others: Iterable[str] = ()) -> str:
    """A sentence that begins with a space: the model that was meant, or the models that are here.

    Looked for are the directory in which `model` would be, the hub's cache, and `others`.
    """
    names = [*_known(model, cache), *others]
    known = {name.rpartition("/")[2].lower(): name for name in names}
    found = nearest(model.rpartition("/")[2].lower(), known)
    if found:
        return f" Did you mean {known[found]}?"
    is_short = meant_by(model) != model
    if not is_short and (short := nearest(model.lower(), short_names())):
        return f" Did you mean {short}?"
    return f" Models that are on this machine: {', '.join(list(known.values())[:_MAX_SHOWN])}."


def is_near(name: str) -> bool:
    """Whether a name is that of the bundled model, a path, or a model in the hub's cache."""
    if name == DEMO_MODEL or any(map(os.path.exists, (name, _place(name)))):
        return True
    repo = _place(meant_by(name))
    return os.path.isdir(env.hub_cache_dir() / f"models--{repo.replace('/', '--')}")


def _place(name: str) -> str:
    """The part of a name without that of a GGUF file."""
    return name.rpartition(":")[0] or name


def _known(model: str, cache: Path) -> list[str]:
    cached = [path.name for path in _listed(cache) if path.name.startswith("models--")]
    hub_ids = [name.removeprefix("models--").replace("--", "/") for name in cached]
    local = [str(path) for path in _listed(Path(model).parent) if _is_model(path)]
    return [DEMO_MODEL, *sorted(local), *sorted(hub_ids)]


def _listed(directory: Path) -> list[Path]:
    """The entries of a directory; none for one that is not there, or that cannot be read."""
    try:
        return list(islice(directory.expanduser().iterdir(), _MAX_ENTRIES))
    except (OSError, RuntimeError, ValueError):
        return []


def _is_model(path: Path) -> bool:
    try:
        return path.suffix == ".gguf" or (path / "config.json").is_file()
    except OSError:
        return False
