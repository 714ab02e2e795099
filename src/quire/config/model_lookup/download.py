"""Downloads what the cache lacks of a hub model, with huggingface_hub, which is imported only then.

Chooses the files from the repository's own list, and says why a model cannot be fetched.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path, PurePath
from typing import Any

from quire.config.model_lookup import gguf
from quire.config.model_lookup.known import suggestion
from quire.config.model_lookup.refusals import download_error, how_to_fetch, is_of_hub, unreadable
from quire.config.model_lookup.resume import Repository, remote_file
from quire.errors import ModelNotFoundError, QuireError
from quire.log import get_logger

TEXT_PATTERNS = ("*.json", "*.txt", "*.jinja", "*.model")
"""The files of a model directory other than weights."""
_IGNORED_PATTERNS = ["consolidated*", "training_args*", "optimizer*"]
_ANSWER_S = 30.0
"""Longest time without an answer of the hub."""
_TRIES = 4
_LONGEST_WAIT_S = 60.0
"""Longest time that a hub which limits requests is waited for, before each further try."""

Report = Callable[[int, int], None]
"""Takes the bytes that were fetched so far, and all bytes as far as they are known."""
Note = Callable[[str], None]

_logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of a download."""

    repo: str
    snapshot: Path
    file: Path | None
    """The first file of the GGUF model that was chosen; None: other weights, or none."""
    verified: Sequence[Path] = ()
    """Files of the cache whose checksums were compared."""

    @property
    def name(self) -> str:
        """Name that means these weights alone."""
        return self.repo if self.file is None else f"{self.repo}:{self.file.name}"


def download(
    model: str,
    revision: str | None,
    cache: Path,
    hf_token: str | bool | None,
    *,
    wanted: str | None = None,
    needs_weights: bool = True,
    report: Report | None = None,
    note: Note | None = None,
) -> Fetched:
    """Downloads the files that are needed and not in the cache yet. `wanted`: a GGUF file or its
    quantisation; `note` gets a text when the download waits. Raises ModelNotFoundError,
    CheckpointError, and ConfigError if files cannot be written."""
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]
    except ImportError:
        raise ModelNotFoundError(
            f"there is no directory {model!r}, and huggingface_hub, which would fetch the model of "
            f"that name, is not installed: {sys.executable} -m pip install huggingface_hub. "
            + how_to_fetch(model, revision, cache, wanted)
            + suggestion(model, cache)
        ) from None
    _logger.info("%s: fetching what the cache lacks from the hub", model)

    if report is not None:
        disable_progress_bars()

    def fetch() -> Fetched:
        try:
            info = HfApi(token=hf_token).model_info(
                model, revision=revision, files_metadata=True, timeout=_ANSWER_S
            )
            siblings = list(info.siblings or ())
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as error:
            raise unreadable(error) from None
        files = [remote_file(sibling) for sibling in siblings]
        names = [file.name for file in files]
        first, chosen = None, _matching(names, TEXT_PATTERNS)
        if needs_weights:
            if wanted is None and (models := gguf.ggml_files(names)):
                raise ModelNotFoundError(
                    f"{model} holds models of whisper.cpp; name one of them, like "
                    f"{model}:{models[0]}; it holds {', '.join(models[:40])}"
                )
            weights = _matching(names, _weight_patterns(names) if wanted is None else ())
            chosen |= weights
            if not weights:
                first = gguf.chosen_name(names, wanted, model)
                chosen = {*gguf.parts_of(names, first), *gguf.projector_of(names, first)}
        repository = Repository(model, info.sha, cache, hf_token)
        verified = repository.fetch([file for file in files if file.name in chosen], report)
        repository.remove_stale(files)
        snapshot = repository.snapshot(revision)
        return Fetched(model, snapshot, None if first is None else snapshot / first, verified)

    try:
        with _notes_of_library(note):
            return _tried(fetch, model, note)
    except Exception as error:
        if isinstance(error, QuireError) or not is_of_hub(error):
            raise
        hint = suggestion(model, cache)
        raise download_error(error, model, revision, cache, wanted, hint) from error


def _tried(fetch: Callable[[], Fetched], model: str, note: Note | None) -> Fetched:
    """The result of `fetch`, which is called again while the hub limits requests."""
    for _ in range(_TRIES - 1):
        try:
            return fetch()
        except Exception as error:
            response: Any = getattr(error, "response", None)
            if response is None or response.status_code != 429:
                raise
            wait_s = retry_after(response.headers.get("Retry-After", ""))
            said = f"the hub limits requests; trying again in {wait_s:.0f} s"
            _logger.warning("%s: %s", model, said)
            if note is not None:
                note(said)
            time.sleep(wait_s)
    return fetch()


@contextmanager
def _notes_of_library(note: Note | None) -> Iterator[None]:
    """Passes on what huggingface_hub logs, such as its own waits."""
    if note is None:
        yield
        return
    handler, logger = logging.Handler(logging.WARNING), logging.getLogger("huggingface_hub")
    handler.emit = lambda record: note(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def retry_after(header: str) -> float:
    """Seconds to wait, of a header with seconds or a date."""
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return 5.0
    return min(max(0.0, seconds), _LONGEST_WAIT_S)  # a NaN gives 0


def _matching(names: Iterable[str], patterns: Iterable[str]) -> set[str]:
    """The names at the top of a repository that match a pattern."""
    return {
        name
        for name in names
        if "/" not in name
        and any(PurePath(name).match(pattern) for pattern in patterns)
        and not any(PurePath(name).match(pattern) for pattern in _IGNORED_PATTERNS)
    }


def _weight_patterns(files: Iterable[str]) -> tuple[str, ...]:
    """The pattern of weights that are not in GGUF files; empty: there are none."""
    top_level = [file for file in files if "/" not in file]
    for suffix in (".safetensors", ".bin"):
        if any(file.endswith(suffix) for file in top_level):
            return (f"*{suffix}",)
    return ()
