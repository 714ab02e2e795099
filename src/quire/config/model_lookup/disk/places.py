"""The folders in which other programs keep models, and the models in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from quire import env
from quire.config.model_lookup.disk.folders import folder_models
from quire.config.model_lookup.disk.found import LocalModel, Scan, SourceName
from quire.errors import ConfigError, ModelNotFoundError, quoted, reason


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search."""

    models: tuple[LocalModel, ...]
    """Each has a name of its own."""
    notes: tuple[str, ...]
    """The files that cannot be read, each with its reason."""

    def find(self, name: str) -> LocalModel | None:
        """The model of a name. Raises ModelNotFoundError if several may be meant, or if it cannot
        be used."""
        found = [one for one in self.models if one.name == name]
        found = found or [one for one in self.models if name in one.others]
        if len(found) > 1:
            names = ", ".join(quoted(one.name) for one in found[:8])
            raise ModelNotFoundError(f"{quoted(name)} may be any of {names}; give the whole name")
        if not found:
            return None
        if found[0].problem:
            raise ModelNotFoundError(f"{quoted(found[0].name)}: {found[0].problem}")
        return found[0]


def found_models(folders: Sequence[str] = ()) -> Found:
    """The models of these folders; without folders, those of Ollama, LM Studio and llama.cpp.
    Raises ConfigError for a folder that is not there."""
    scan = Scan()
    places = _named(folders) if folders else _known()
    models = [one for source, place in places for one in folder_models(place, source, scan)]
    return Found(tuple(_with_own_names(models, scan)), tuple(scan.notes))


def _named(folders: Iterable[str]) -> Iterator[tuple[SourceName, Path]]:
    for folder in folders:
        path = env.expanded(folder)
        try:
            is_directory = path.is_dir()
        except (OSError, ValueError) as error:
            raise ConfigError(f"models_dir={quoted(folder)}: {reason(error)}") from None
        if not is_directory:
            raise ConfigError(f"models_dir must be a directory, got {quoted(folder)}")
        yield "folder", path


def _known() -> Iterator[tuple[SourceName, Path]]:
    """The folders of other programs; the hub's cache is listed elsewhere."""
    sources: tuple[tuple[SourceName, Callable[[], Iterable[Path]]], ...] = (
        ("ollama", env.ollama_dirs),
        ("lm studio", env.lm_studio_dirs),
        ("llama.cpp", env.llama_cache_dirs),
    )
    for source, places in sources:
        with suppress(ConfigError):  # a user without a home directory
            yield from ((source, path) for path in places() if path != env.hub_cache_dir())


def _with_own_names(models: Iterable[LocalModel], scan: Scan) -> Iterator[LocalModel]:
    """A model whose name is taken gets a longer one; one found before is left out."""
    names, seen = set[str](), set[tuple[str, Path]]()
    for one in models:
        if (one.name, one.path) in seen:
            continue
        seen.add((one.name, one.path))
        longer = f"{one.place.name}/{one.name}"
        choices = (one.name, *one.others[:1], longer, str(one.path))
        name = next((text for text in choices if text not in names), None)
        if name is None or not name.isprintable() or not any(map(str.isalnum, name)):
            scan.note(
                f"{quoted(str(one.path))} is left out: its name is not printable, has no letter or "
                "digit, or is taken"
            )
            continue
        names.add(name)
        yield replace(one, name=name, others=tuple(dict.fromkeys((one.name, *one.others))))
