"""`ProgressBar`: shows the progress of a batch of prompts while `LLM` waits for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, TypeVar, cast

from quire.errors import quoted
from quire.frontend.request_record import AnyOutput
from quire.outputs import RequestOutput

Item = TypeVar("Item")
Progress = bool | Callable[..., Any]
"""Whether to show a progress bar, or a function that creates one (tqdm's signature)."""


class ProgressBar:
    """vLLM's progress bar: finished prompts, and estimated tokens per second in and out. Used by
    one thread."""

    def __init__(self, use_tqdm: Progress, total: int) -> None:
        _check(use_tqdm)
        self._bar: Any = None
        self._num_in = self._num_out = 0
        if use_tqdm:
            make = use_tqdm if callable(use_tqdm) else _tqdm()
            self._bar = make(
                total=total, desc="Processed prompts", dynamic_ncols=True, postfix=_speeds(0.0, 0.0)
            )

    def add(self, output: AnyOutput) -> None:
        """Count a finished request."""
        if self._bar is None:
            return
        completions = output.outputs if isinstance(output, RequestOutput) else []
        num_outputs = len(completions) or 1
        self._num_in += len(output.prompt_token_ids or ()) * num_outputs
        self._num_out += sum(len(one.token_ids) for one in completions)
        elapsed = self._bar.format_dict["elapsed"] or 1e-9
        self._bar.postfix = _speeds(self._num_in / elapsed, self._num_out / elapsed)
        self._bar.update(num_outputs)
        if self._bar.n == self._bar.total:
            self._bar.refresh()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *raised: object) -> None:
        """Leave the last state on the screen."""
        if self._bar is not None:
            self._bar.close()


@contextmanager
def counted(items: Sequence[Item], use_tqdm: Progress, what: str) -> Iterator[Iterable[Item]]:
    """The items, counted by a progress bar as they are consumed."""
    _check(use_tqdm)
    if not use_tqdm:
        yield items
        return
    bar = (use_tqdm if callable(use_tqdm) else _tqdm())(items, desc=what)
    try:
        yield bar
    finally:
        bar.close()


def _check(use_tqdm: Progress) -> None:
    if use_tqdm is not None and not isinstance(use_tqdm, int) and not callable(use_tqdm):
        raise TypeError(f"use_tqdm must be True, False or callable, got {quoted(use_tqdm)}")


def _tqdm() -> Callable[..., Any]:
    """Import tqdm lazily, because the import takes as long as that of the whole engine.

    A notebook gets tqdm's widget if it can show widgets.
    """
    if "ipykernel" in sys.modules and find_spec("ipywidgets") is not None:
        from tqdm.auto import tqdm  # type: ignore[import-untyped]
    else:
        from tqdm import tqdm  # type: ignore[import-untyped]

    return cast("Callable[..., Any]", tqdm)


def _speeds(num_in: float, num_out: float) -> str:
    return f"est. speed input: {num_in:.2f} toks/s, output: {num_out:.2f} toks/s"
