"""Arguments that the methods of every engine share, and the position of a wrong one in a batch.

Called by `LLM`, `LLMEngine`, `AsyncLLM` and the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from quire.errors import ConfigError, PromptError, RequestError, quoted


def request_id_list(request_ids: str | Iterable[str]) -> list[str]:
    """One id or several. Raises TypeError for anything else."""
    if isinstance(request_ids, str):
        return [request_ids]
    with suppress(TypeError):
        ids = list(request_ids)
        if all(isinstance(request_id, str) for request_id in ids):
            return ids
    raise TypeError(f"request_ids must be a string or strings, got {quoted(request_ids)}")


def refuse_arguments(**given: object) -> None:
    """Arguments of vLLM's methods that do nothing yet: anything but None is refused."""
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"{name} is not supported yet; leave it out")


def check_data_parallel_rank(rank: int | None) -> None:
    """Raises RequestError for the rank of an engine that there is not."""
    if rank is not None and (type(rank) is not int or rank != 0):
        raise RequestError(
            f"data_parallel_rank {quoted(rank)} is out of range [0, 1).",
            parameter="data_parallel_rank",
            value=rank,
        )


@contextmanager
def located(prompts: str, index: int, count: int, *, params: str | None = None) -> Iterator[None]:
    """Adds the position to a RequestError about one of `count` requests.

    `prompts` and `params` are the caller's names of the two lists; None: all requests have the same
    parameters. An error of such parameters is the same for all, and is found at the first request,
    so it gets no position.
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
