"""`PromptLogprobRows`: the rows of logits from which log-probabilities of prompt tokens come.

Called by `InputBatch`. The sampler handles a prompt token like a sampled token that is already
chosen: it gets the row of logits and the token, and reports the log-probability and rank of the
token.

Legend: T tokens in the step, R requests of the step, F prompt tokens predicted in the step, L rows
that need logits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import SamplingColumns
from quire.protocol import ScheduledRequest

Ints = NDArray[np.int32]
Rows = NDArray[np.intp]


@dataclass(slots=True)
class PromptSpan:
    """Prompt tokens of one request that the step predicts, at positions first, first + 1, ..."""

    request_id: str
    first: int
    row: int
    token_rows: Ints
    """Indices of the step's T tokens that predict them."""
    targets: Ints
    """The prompt tokens themselves."""
    num_logprobs: int


@dataclass(slots=True)
class _Wanted:
    request_id: str
    prompt: Ints
    num_logprobs: int


class PromptLogprobRows:
    """Requests that want log-probabilities of prompt tokens, by row of the batch. Owned by the
    worker's thread."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.wanted: dict[int, _Wanted] = {}
        """Rows of the batch that want log-probabilities."""

    def set(self, row: int, request: ScheduledRequest) -> None:
        """Fills a row that is being started, whose request wants some."""
        count = request.sampling_params.prompt_logprobs
        assert count is not None
        prompt = np.array(request.token_ids[: request.num_prompt_tokens], np.int32)
        num_logprobs = count if 0 <= count <= self._vocab_size else self._vocab_size
        self.wanted[row] = _Wanted(request.request_id, prompt, num_logprobs)

    def spans(self, rows: Rows, starts: Ints, computed: Ints, ends: Ints) -> list[PromptSpan]:
        """The prompt tokens that the step predicts for requests that want them. `starts`: [R + 1];
        the others: [R]."""
        found = []
        for index, row in enumerate(rows.tolist()):
            wanted = self.wanted.get(row)
            if wanted is None:
                continue
            first = int(computed[index]) + 1
            last = min(int(ends[index]) + 1, len(wanted.prompt))
            if first < last:
                token_rows = starts[index] + np.arange(last - first, dtype=np.int32)
                targets = wanted.prompt[first:last]
                found.append(
                    PromptSpan(
                        wanted.request_id, first, row, token_rows, targets, wanted.num_logprobs
                    )
                )
        return found


@dataclass(slots=True)
class PromptRows:
    """The rows of logits of a step that predicts prompt tokens as well as new tokens."""

    spans: list[PromptSpan]
    logits_rows: Ints
    """[L]; ascending."""
    rows: Rows
    """[L]; the row of the batch to which each belongs."""
    is_new: NDArray[np.bool_]
    """[L]; whether a new token is sampled."""
    targets: Ints
    """[L]; the prompt token to predict; -1 where `is_new`."""
    num_logprobs: Ints
    """[L]; unused where `is_new`."""

    @classmethod
    def merge(cls, spans: list[PromptSpan], new_logits_rows: Ints, new_rows: Rows) -> PromptRows:
        """`new_logits_rows`: rows of logits for new tokens; `new_rows`: their rows of the batch."""
        num_new = len(new_logits_rows)
        logits_rows = np.concatenate([new_logits_rows, *(span.token_rows for span in spans)])
        order = np.argsort(logits_rows, kind="stable").astype(np.int32)

        def column(new: Ints, of_span: list[Ints]) -> Ints:
            merged: Ints = np.concatenate([new, *of_span])[order].astype(np.int32)
            return merged

        counts = [len(span.targets) for span in spans]
        of_spans = [np.full(n, span.row) for n, span in zip(counts, spans, strict=True)]
        nothing = np.full(num_new, -1, np.int32)
        return cls(
            spans=spans,
            logits_rows=logits_rows[order],
            rows=np.concatenate([new_rows, *of_spans])[order],
            is_new=order < num_new,
            targets=column(nothing, [span.targets for span in spans]),
            num_logprobs=column(
                nothing, [np.full(n, s.num_logprobs) for n, s in zip(counts, spans, strict=True)]
            ),
        )

    def report(self, columns: SamplingColumns) -> None:
        """Makes the sampler report the log-probabilities of the prompt tokens."""
        if columns.num_logprobs is None:
            columns.num_logprobs = np.full(len(self.rows), -1, np.int32)
        is_old = ~self.is_new
        columns.num_logprobs[is_old] = self.num_logprobs[is_old]
