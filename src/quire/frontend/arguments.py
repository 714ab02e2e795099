"""Arguments that the methods of all engines share: checks, the position of errors in a batch, and
methods of vLLM that are refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from quire.errors import ConfigError, PromptError, RequestError, quoted


def request_id_list(request_ids: str | Iterable[str]) -> list[str]:
    """Return one id or several as a list. Raises TypeError for anything else."""
    if isinstance(request_ids, str):
        return [request_ids]
    with suppress(TypeError):
        ids = list(request_ids)
        if all(isinstance(request_id, str) for request_id in ids):
            return ids
    raise TypeError(f"request_ids must be a string or a list of strings, got {quoted(request_ids)}")


def refuse_arguments(**given: object) -> None:
    """Raises ConfigError if an argument of vLLM's methods that Quire does not support is not
    None."""
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"{name} is not supported yet; leave it out")


def check_data_parallel_rank(rank: int | None, num_engines: int) -> None:
    """Raises RequestError unless the rank is None or the number of an engine."""
    if rank is not None and (type(rank) is not int or not 0 <= rank < num_engines):
        raise RequestError(
            f"data_parallel_rank {quoted(rank)} is out of range [0, {num_engines}).",
            parameter="data_parallel_rank",
            value=rank,
        )


@contextmanager
def located(prompts: str, index: int, count: int, *, params: str | None = None) -> Iterator[None]:
    """Add the position to a RequestError about one of `count` requests.

    `prompts` and `params` are the caller's names of the two lists; `params` is None if all requests
    share their parameters. An error of shared parameters is raised for the first request and
    applies to all, so it gets no position.
    """
    try:
        yield
    except RequestError as error:
        is_of_prompt = isinstance(error, PromptError) or error.parameter == prompts
        is_of_all = not is_of_prompt and params is None and index == 0
        if count > 1 and not is_of_all:
            name = prompts if is_of_prompt or params is None else params
            error.args = (f"{name}[{index}]: {error}",)
        raise


_TRANSFER = "connection to a trainer"
_NEW_WEIGHTS = (
    "load new weights from a folder, collective_rpc('reload_weights', kwargs={'weights_path': "
    "folder}), or from memory, apply_model(lambda model: model.load_weights(names_and_tensors))"
)
_SCALING = "more than one engine"


class _Refused:
    """Placeholder for a method, which the class replaces by a function: `help` and editors show a
    method of that name and the missing feature."""

    def __init__(self, feature: str, instead: str = "") -> None:
        self._feature = feature
        self._instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        message = f"{name} is not supported: Quire has no {self._feature} yet"
        if self._instead:
            message += f"; {self._instead}"

        def refuse(self: object, *args: Any, **kwargs: Any) -> NoReturn:
            del self, args, kwargs
            raise ConfigError(message)

        refuse.__name__, refuse.__qualname__ = name, f"{owner.__qualname__}.{name}"
        refuse.__doc__ = f"Raises ConfigError: {message}."
        setattr(owner, name, refuse)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """For type checkers only: the function set by `__set_name__` is called instead."""
        raise NotImplementedError


class UnsupportedEngineMethods:
    """Methods that `LLMEngine` and `AsyncLLM` lack."""

    get_weight_version = _Refused(_TRANSFER, _NEW_WEIGHTS)
    set_weight_version = _Refused(_TRANSFER, _NEW_WEIGHTS)
    compute_weight_checksums = _Refused(_TRANSFER, _NEW_WEIGHTS)


class UnsupportedTransfers:
    """Methods for training that `LLM` and `AsyncLLM` lack."""

    init_weight_transfer_engine = _Refused(_TRANSFER, _NEW_WEIGHTS)
    shutdown_weight_transfer_engine = _Refused(_TRANSFER, _NEW_WEIGHTS)
    start_weight_update = _Refused(_TRANSFER, _NEW_WEIGHTS)
    start_draft_weight_update = _Refused(_TRANSFER, _NEW_WEIGHTS)
    update_weights = _Refused(_TRANSFER, _NEW_WEIGHTS)
    finish_weight_update = _Refused(_TRANSFER, _NEW_WEIGHTS)
    update_weight_version = _Refused(_TRANSFER, _NEW_WEIGHTS)
    get_weight_version = _Refused(_TRANSFER, _NEW_WEIGHTS)


class UnsupportedAsyncMethods(UnsupportedEngineMethods, UnsupportedTransfers):
    """Methods that `AsyncLLM` lacks."""

    scale_elastic_ep = _Refused(_SCALING)
    handle_fault = _Refused(_SCALING)
    get_status = _Refused(_SCALING)
    checkpoint_prepare = _Refused("checkpoints of a running engine")
    checkpoint_restore = _Refused("checkpoints of a running engine")
    notify_kv_transfer_request_rejected = _Refused("transfer of K and V between engines")
