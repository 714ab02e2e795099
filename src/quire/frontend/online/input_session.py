"""`InputSession`: a request whose prompt arrives in pieces, with output after each piece.

Created by `AsyncLLM` for a prompt that is an async generator of `StreamingInput`. The engine keeps
no state for it: each piece is a request whose prompt is the whole session so far. All of its K/V
except the last block is in the prefix cache. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace

from quire.errors import QuireError, RequestError, quoted
from quire.frontend.inputs.prompt_parser import ParsedPrompt
from quire.frontend.online.request_stream import RequestStream
from quire.inputs import PromptType, StreamingInput
from quire.outputs import CompletionOutput, FlatLogprobs, RequestOutput, SampleLogprobs
from quire.params import RequestOutputKind, SamplingParams

Begin = Callable[[ParsedPrompt, SamplingParams, bool], Awaitable[RequestStream]]


class InputSession:
    """An async iterator over the outputs of all pieces.

    Pieces are taken when they arrive and answered in order; an exception of the generator is raised
    after the answers to earlier pieces. An output is `finished` if it is already known that no
    piece follows. As in vLLM, the last token of each answer is not part of the following prompt,
    because the model has not processed it.
    """

    def __init__(
        self,
        request_id: str,
        pieces: AsyncGenerator[StreamingInput, None],
        params: SamplingParams,
        parse: Callable[[PromptType], ParsedPrompt],
        begin: Begin,
    ) -> None:
        """`params`: for pieces without parameters. `begin` starts a request; its last argument says
        whether it continues the session. Raises RequestError."""
        _check(params)
        self.request_id = request_id
        self._pieces, self._params, self._parse, self._begin = pieces, params, parse, begin
        self._prompt = ParsedPrompt("", [])
        """The prompt of the current request."""
        self._answer: list[int] = []
        """The tokens of the answer to the current piece."""
        self._before: CompletionOutput | None = None
        """The accumulated outputs of earlier pieces, for cumulative outputs."""
        self._last: RequestOutput | None = None
        self._stream: RequestStream | None = None
        self._is_aborted = False
        self._error: QuireError | None = None
        self._waiting: deque[StreamingInput] = deque()
        self._news = asyncio.Event()
        """Set if a piece has arrived or no more will come."""
        self._taking = asyncio.ensure_future(self._take_pieces())
        self._taking.add_done_callback(self._on_taken)

    def abort(self, error: QuireError | None = None) -> None:
        """Accept no further piece. A caller that waits for one gets `error`, or the end."""
        self._is_aborted, self._error = True, error
        self._waiting.clear()
        self._taking.cancel()

    def close(self) -> None:
        """End the session, and the request of the current piece."""
        self._taking.cancel()
        if self._stream is not None:
            self._stream.close()

    def __aiter__(self) -> InputSession:
        return self

    async def __anext__(self) -> RequestOutput:
        while True:
            if self._stream is None:
                await self._begin_piece()
            assert self._stream is not None
            try:
                return self._taken(await self._stream.__anext__())
            except StopAsyncIteration:
                self._stream = None

    async def _take_pieces(self) -> None:
        async for piece in self._pieces:
            self._waiting.append(piece)
            self._news.set()

    def _on_taken(self, taking: asyncio.Future[None]) -> None:
        if not taking.cancelled():
            taking.exception()  # mark it as retrieved, also if the session was closed early
        self._news.set()

    async def _begin_piece(self) -> None:
        """Wait for the next piece. Raises StopAsyncIteration if there is none, and any exception of
        the generator."""
        while not self._waiting and not self._taking.done():
            self._news.clear()
            await self._news.wait()
        if not self._waiting:
            if not self._is_aborted:
                self._taking.result()
            raise self._error or StopAsyncIteration
        piece = self._waiting.popleft()
        if not isinstance(piece, StreamingInput):
            raise TypeError(f"the generator must yield StreamingInput, got {quoted(piece)}")
        params = piece.sampling_params or self._params
        _check(params)
        is_first = self._last is None
        parsed = self._parse(piece.prompt)
        if parsed.input_rows:
            raise RequestError("prompt_embeds not supported for streaming inputs")
        self._continue_with(parsed)
        self._stream = await self._begin(self._prompt, params, not is_first)

    def _continue_with(self, piece: ParsedPrompt) -> None:
        """Extend the prompt by the last answer and `piece` for the next request."""
        before = self._prompt
        has_text = before.text is not None and piece.text is not None
        self._prompt = ParsedPrompt(
            f"{before.text}{piece.text}" if has_text else None,
            [*before.token_ids, *self._answer[:-1], *piece.token_ids],
            before.scope if piece.scope.salt is None else piece.scope,
        )
        self._answer = []
        self._before = None if self._last is None else self._last.outputs[0]

    def _taken(self, output: RequestOutput) -> RequestOutput:
        """Convert the output of a piece to the output for the caller."""
        if output.finished:
            output.finished = self._is_over()
        [own] = output.outputs
        if self._kind() is RequestOutputKind.DELTA:
            self._answer += own.token_ids
        else:
            self._answer = own.token_ids
            if self._before is not None:
                output.outputs = [_joined(self._before, own)]
        self._last = output
        return output

    def _kind(self) -> RequestOutputKind:
        assert self._stream is not None
        return self._stream.record.input.params.output_kind

    def _is_over(self) -> bool:
        """Whether it is known that no piece follows."""
        if self._is_aborted or self._waiting or not self._taking.done():
            return self._is_aborted
        return self._taking.exception() is None


def _joined(before: CompletionOutput, own: CompletionOutput) -> CompletionOutput:
    """Append the cumulative output of one piece to that of the earlier pieces."""
    logprob = own.cumulative_logprob
    if logprob is not None:
        logprob += before.cumulative_logprob or 0.0
    return replace(
        own,
        text=before.text + own.text,
        token_ids=before.token_ids + own.token_ids,
        cumulative_logprob=logprob,
        logprobs=_joined_logprobs(before.logprobs, own.logprobs),
    )


def _joined_logprobs(
    before: SampleLogprobs | None, own: SampleLogprobs | None
) -> SampleLogprobs | None:
    if isinstance(before, FlatLogprobs) and isinstance(own, FlatLogprobs):
        both = before.copy()
        both.extend(own)
        return both
    if isinstance(before, list) and isinstance(own, list):
        return before + own
    return own


def _check(params: object) -> None:
    """Raises RequestError for parameters that a prompt in pieces does not support."""
    if not isinstance(params, SamplingParams):
        raise TypeError(f"params must be SamplingParams, but got {type(params).__name__}")
    if params.n > 1 or params.stop or params.output_kind is RequestOutputKind.FINAL_ONLY:
        raise RequestError(
            "Input streaming not currently supported with n > 1, output_kind = FINAL_ONLY or stop "
            "strings; pass the whole prompt, or leave these out",
            parameter="sampling_params",
        )
