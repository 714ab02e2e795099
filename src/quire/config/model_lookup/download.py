"""Downloads what the cache lacks of a hub model, with huggingface_hub, which is imported only then.

Chooses the files from the repository's own list, and says why a model cannot be fetched.
"""

from __future__ import annotations

import errno
import glob
import io
import shlex
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from quire.config.model_lookup import gguf
from quire.config.model_lookup.known import suggestion
from quire.config.model_lookup.resume import Repository, large_file
from quire.errors import ConfigError, ModelNotFoundError, QuireError
from quire.log import get_logger

_CANNOT_WRITE = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS,
    errno.ENOTDIR, errno.EEXIST,
)  # fmt: skip
TEXT_PATTERNS = ("*.json", "*.txt", "*.jinja", "*.model")
"""The files of a model directory other than weights."""
_IGNORED_PATTERNS = ["*/*", "consolidated*", "training_args*", "optimizer*"]
_WEIGHTS = (".safetensors", ".bin", ".gguf")
_TRIES = 4
_LONGEST_WAIT_S = 60.0
"""Longest time that a hub which limits requests is waited for, before each further try."""

_logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of a download."""

    repo: str
    snapshot: Path
    file: Path | None
    """The first file of the GGUF model that was chosen; None: other weights, or none."""
    verified: tuple[Path, ...] = ()
    """Files of the cache whose checksums were compared."""

    @property
    def name(self) -> str:
        """Name that means these weights alone."""
        return self.repo if self.file is None else f"{self.repo}:{self.file.name}"


def how_to_fetch(model: str, revision: str | None, cache: Path, wanted: str | None) -> str:
    """The commands that fetch a model; `wanted`: a GGUF file or its quantisation."""
    command = f"hf download {model}" + (f" --revision {revision}" if revision else "")
    if wanted is not None:
        command += f" --include {shlex.quote(gguf.pattern(wanted))}"
    directory = model.rpartition("/")[2]
    return (
        f"With a network, run: {command} --cache-dir {cache}. Or fetch it on another machine with "
        f"{command} --local-dir {directory}, copy the directory here, and give its path as the "
        "model."
    )


def download(
    model: str,
    revision: str | None,
    cache: Path,
    hf_token: str | bool | None,
    *,
    wanted: str | None = None,
    needs_weights: bool = True,
    report: Report | None = None,
) -> Fetched:
    """Downloads the files that are needed and not in the cache yet. `wanted`: a GGUF file or its
    quantisation. Raises ModelNotFoundError, and ConfigError if files cannot be written."""
    try:
        from huggingface_hub import HfApi, snapshot_download
        from huggingface_hub.utils import (  # type: ignore[attr-defined]
            disable_progress_bars,
            filter_repo_objects,
        )
    except ImportError:
        raise ModelNotFoundError(
            f"there is no directory {model!r}, and huggingface_hub, which would fetch the model of "
            f"that name, is not installed: {sys.executable} -m pip install huggingface_hub. "
            + how_to_fetch(model, revision, cache, wanted)
            + suggestion(model, cache)
        ) from None
    _logger.info("%s: fetching what the cache lacks from the hub", model)

    verified = list[Path]()
    if report is not None:
        disable_progress_bars()

    def fetch() -> Fetched:
        patterns, ignored, first = list(TEXT_PATTERNS), _IGNORED_PATTERNS, None
        bar = None if report is None else bar_class(report)
        if needs_weights:
            info = HfApi(token=hf_token).model_info(model, revision=revision, files_metadata=True)
            names = [file.rfilename for file in info.siblings or ()]
            if wanted is None and (models := gguf.ggml_files(names)):
                raise ModelNotFoundError(
                    f"{model} holds models of whisper.cpp; name one of them, like "
                    f"{model}:{models[0]}; it holds {', '.join(models[:40])}"
                )
            weights = None if wanted is not None else _weight_pattern(names)
            if weights is not None:
                patterns.append(weights)
            else:
                first = gguf.chosen_name(names, wanted, model)
                files = [*gguf.parts_of(names, first), *gguf.projector_of(names, first)]
                patterns = [glob.escape(name) for name in files]
                ignored = []
            large = [file for one in info.siblings or () if (file := large_file(one))]
            repository = Repository(model, info.sha or revision, cache, hf_token)
            chosen = filter_repo_objects(
                (file for file in large if file.name.endswith(_WEIGHTS)),
                allow_patterns=patterns, ignore_patterns=ignored, key=lambda file: file.name,
            )  # fmt: skip
            verified.extend(repository.fetch(chosen, report))
            repository.remove_stale(large)
            if verified and report is not None:
                done = sum(path.stat().st_size for path in verified)
                bar = bar_class(lambda count, total: report(done + count, done + total))
        snapshot = snapshot_download(
            model,
            revision=revision,
            cache_dir=cache,
            token=hf_token,
            allow_patterns=patterns,
            ignore_patterns=ignored,
            tqdm_class=bar,
        )
        model_file = None if first is None else Path(snapshot) / first
        return Fetched(model, Path(snapshot), model_file, tuple(verified))

    try:
        return _tried(fetch, model)
    except QuireError:
        raise
    except Exception as error:  # huggingface_hub raises errors of its HTTP library
        raise _download_error(error, model, revision, cache, wanted) from error


def _tried(fetch: Callable[[], Fetched], model: str) -> Fetched:
    """The result of `fetch`, which is called again while the hub limits requests."""
    for _ in range(_TRIES - 1):
        try:
            return fetch()
        except Exception as error:
            response: Any = getattr(error, "response", None)
            if response is None or response.status_code != 429:
                raise
            wait_s = retry_after(response.headers.get("Retry-After", ""))
            _logger.warning("%s: the hub limits requests; trying again in %g s", model, wait_s)
            time.sleep(wait_s)
    return fetch()


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


def _download_error(
    error: Exception, model: str, revision: str | None, cache: Path, wanted: str | None
) -> ConfigError | ModelNotFoundError:
    if isinstance(error, OSError) and error.errno in _CANNOT_WRITE:
        return ConfigError(
            f"{model} cannot be kept in {cache}: {error.strerror}; make room there, or give "
            "another place with download_dir"
        )
    response = getattr(error, "response", None)
    advice = {
        401: " If the model is private or gated, set HF_TOKEN to a token of an account that may "
        "read it.",
        403: f" Accept the model's terms on its page of the hub, {_page(model)}, and set HF_TOKEN "
        "to a token of that account.",
        429: " The hub limits requests; try again later, or set HF_TOKEN for a higher limit.",
    }.get(getattr(response, "status_code", 0), "")
    return ModelNotFoundError(
        f"there is no directory {model!r}, and the hub did not give the model of that name: "
        f"{str(error).rstrip('.')}."
        + (advice if response is not None else f" {how_to_fetch(model, revision, cache, wanted)}")
        + suggestion(model, cache)
    )


def _page(model: str) -> str:
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{model}"


def _weight_pattern(files: Iterable[str]) -> str | None:
    """The pattern of weights that are not in GGUF files; None: there are none."""
    top_level = [file for file in files if "/" not in file]
    for suffix in (".safetensors", ".bin"):
        if any(file.endswith(suffix) for file in top_level):
            return f"*{suffix}"
    return None


Report = Callable[[int, int], None]
"""Takes the bytes that were fetched so far, and all bytes as far as they are known."""


def bar_class(report: Report) -> type[Any]:
    """A class of progress bars that calls `report` from the threads of the download."""
    tqdm: Any = import_module("tqdm.auto").tqdm  # huggingface_hub needs it

    class ReportingBar(tqdm):  # type: ignore[misc]
        """Prints nothing. Bars that do not count bytes report nothing."""

        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*args, **{**options, "file": io.StringIO(), "disable": False})

        def update(self, n: float | None = 1) -> bool | None:
            """Counts `n` more, and reports the sum."""
            result: bool | None = super().update(n)
            if self.unit == "B":
                report(int(self.n), max(int(self.n), int(self.total or 0)))
            return result

        def display(self, *_: Any, **__: Any) -> bool:
            """Shows nothing."""
            return True

    return ReportingBar
