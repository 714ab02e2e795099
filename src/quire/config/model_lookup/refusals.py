"""Reasons for which a model cannot be fetched, each as one clear line, and what helps."""

from __future__ import annotations

import errno
import re
import shlex
from pathlib import Path
from typing import Any

from quire.errors import ConfigError, ModelNotFoundError

_CANNOT_WRITE = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS,
    errno.ENOTDIR, errno.EEXIST, errno.ENOENT,
)  # fmt: skip


def how_to_fetch(model: str, revision: str | None, cache: Path, wanted: str | None) -> str:
    """The commands that fetch a model; `wanted`: a GGUF file or its quantisation."""
    command = f"hf download {model}" + (f" --revision {revision}" if revision else "")
    if wanted is not None:
        pattern = wanted if wanted.endswith((".gguf", ".bin")) else f"*{wanted}*.gguf"
        command += f" --include {shlex.quote(pattern)}"
    directory = model.rpartition("/")[2]
    return (
        f"With a network, run: {command} --cache-dir {cache}. Or fetch it on another machine with "
        f"{command} --local-dir {directory}, copy the directory here, and give its path as the "
        "model."
    )


def is_of_hub(error: Exception) -> bool:
    """Whether an error is one of the hub, the network or the file system, and no defect here."""
    modules = ("huggingface_hub", "httpx", "httpcore", "requests")
    return isinstance(error, (OSError, ValueError)) or type(error).__module__.startswith(modules)


def unreadable(error: BaseException) -> ModelNotFoundError:
    """The error for a hub whose answer has another form than it should have."""
    return ModelNotFoundError(
        f"the hub {_endpoint()} gives an answer that cannot be read ({type(error).__name__}: "
        f"{_text_of(error)}); HF_ENDPOINT must be the address of a hub, such as "
        "https://huggingface.co"
    )


def download_error(
    error: Exception, model: str, revision: str | None, cache: Path, wanted: str | None, hint: str
) -> ConfigError | ModelNotFoundError:
    """The error of a download for the user: `error` is of huggingface_hub, of its HTTP library, or
    of the file system. `hint`: the last sentence."""
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", 0)
    if not status and isinstance(error, OSError) and error.errno in _CANNOT_WRITE:
        return ConfigError(
            f"{model} cannot be kept in {cache}: {error.strerror}; make room there, or give "
            "another place with HF_HUB_CACHE or download_dir"
        )
    cause: BaseException = error
    while not status and (inner := cause.__cause__) is not None:
        cause = inner
    is_json = "JSON" in type(cause).__name__  # that of the package requests is an OSError, too
    if not status and isinstance(cause, ValueError) and (is_json or not isinstance(cause, OSError)):
        return unreadable(cause)
    where = f"there is no directory {model!r}, and the hub {_endpoint()}"
    if status:
        said = f"{where} {_refusal(status, model, revision, type(error).__name__)}."
    else:
        help_ = how_to_fetch(model, revision, cache, wanted)
        said = f"{where} cannot be reached: {_text_of(cause) or type(cause).__name__}. {help_}"
    return ModelNotFoundError(said + hint)


def _refusal(status: int, model: str, revision: str | None, kind: str) -> str:
    """The part of the sentence on a hub that answers with an error."""
    if status == 401:
        return (
            f"does not give {model} (401): it does not exist, or it is private or gated; then set "
            "HF_TOKEN to a token of an account that may read it"
        )
    if status == 403:
        return (
            f"does not give {model} (403): accept the model's terms on its page, "
            f"{_endpoint()}/{model}, and set HF_TOKEN to a token of that account"
        )
    if status == 404 and kind == "RevisionNotFoundError":
        return f"has no revision {revision or 'main'!r} of {model} (404)"
    if status == 404:
        return f"has no model {model}, or the model has no such file (404)"
    if status == 429:
        return "limits requests (429); try again later, or set HF_TOKEN for a higher limit"
    return f"answers with the error {status}; try again later"


def _text_of(error: BaseException) -> str:
    """The message of an error in one line."""
    text = re.sub(r"\[Errno -?\d+\]", "", getattr(error, "strerror", None) or str(error))
    return " ".join(text.split()).rstrip(".")[:300]


def _endpoint() -> Any:
    from huggingface_hub import constants

    return constants.ENDPOINT
