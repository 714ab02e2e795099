"""`ReplyHead`: what all parts of one reply have in common; `Writer`: the base of what writes them,
in portions of small work."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
from starlette.requests import Request

from quire.errors import RequestError
from quire.frontend.inputs.model_checks import cannot_generate
from quire.outputs import CompletionOutput, FlatLogprobs, RequestOutput
from quire.server.generation.request_fields import ReplyFields
from quire.server.http.problems import HttpError, Problem
from quire.server.work_pool import INLINE_SIZE, WorkPool

if TYPE_CHECKING:
    from quire.server.context import ServerContext, Target
    from quire.server.generation.request import AnyRequest
    from quire.server.generation.run import Generation


Reply = TypeVar("Reply", bound=ReplyFields)


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """Id, time, model, and what goes along with the text."""

    id: str
    created: int
    model: str
    target: Target
    """Meaning of `model`."""
    fingerprint: str | None
    include_usage: bool
    continuous_usage: bool
    has_metrics: bool
    tokens_as_ids: bool
    """Tokens of log-probabilities are written as their ids."""

    @classmethod
    def of(cls, context: ServerContext, http: Request, asked: AnyRequest, prefix: str) -> ReplyHead:
        """For a request; its id is the caller's `X-Request-Id` or `request_id`, or random.

        Raises HttpError 404 if the model is not served here, and RequestError if it gives vectors
        or classes instead of text.
        """
        has_own_id = "x-request-id" in http.headers
        target, reply, args = context.target(asked.model), asked.reply, context.args
        engine = target.model.engine
        if engine is not None and engine.config.model.pooling is not None:
            raise RequestError(cannot_generate(engine.config.model), parameter="model")
        base = http.state.request_id if has_own_id else asked.request_id
        is_forced, as_ids = args.enable_force_include_usage, reply.tokens_as_ids
        return cls(
            id=f"{prefix}-{base or http.state.request_id}",
            created=int(time.time()),
            model=target.name,
            target=target,
            fingerprint=target.model.fingerprint,
            include_usage=reply.include_usage or is_forced,
            continuous_usage=reply.continuous_usage or is_forced,
            has_metrics=reply.has_metrics or args.enable_per_request_metrics,
            tokens_as_ids=args.return_tokens_as_token_ids if as_ids is None else as_ids,
        )

    def begin(self, kind: type[Reply], **fields: Any) -> Reply:
        """A reply, or an event of one, that begins like all of this request's."""
        return kind(
            id=self.id,
            created=self.created,
            model=self.model,
            system_fingerprint=self.fingerprint,
            **fields,
        )


@dataclass(frozen=True, slots=True)
class Update:
    """New output of one choice."""

    prompt_index: int
    output: RequestOutput
    """Output of the choice's prompt."""
    completion: CompletionOutput


Events = TypeVar("Events", covariant=True)


class UpdateWriter(Protocol[Events]):
    """Writes a reply's events: as one text, or each by itself."""

    def size(self, update: Update) -> int:
        """The work of writing an update, in the pool's units."""

    def events(self, updates: Sequence[Update]) -> Events:
        """The events for these updates."""


@dataclass(slots=True)
class _Portion:
    updates: list[Update] = field(default_factory=list)
    size: int = 0


async def written(
    generation: Generation, writer: UpdateWriter[Events], pool: WorkPool
) -> AsyncIterator[Events]:
    """The events of a whole generation, those of one step together unless they are many. Between
    two portions others have their turn."""
    async for batch in generation.outputs():
        is_first = True
        for portion in _portions(batch, writer):
            if not is_first:
                await pool.turn()
            is_first = False
            yield await pool.run(portion.size, writer.events, portion.updates)


def _portions(
    batch: Iterable[tuple[int, RequestOutput]], writer: UpdateWriter[Any]
) -> Iterator[_Portion]:
    """Portions of small work; a single large update is a portion of its own."""
    portion = _Portion()
    for prompt_index, output in batch:
        for completion in output.outputs:
            update = Update(prompt_index, output, completion)
            size = writer.size(update)
            if portion.updates and portion.size + size > INLINE_SIZE:
                yield portion
                portion = _Portion()
            portion.updates.append(update)
            portion.size += size
    if portion.updates:
        yield portion


class Writer(ABC):
    """Writes the reply to one request, whole or as a stream. Sizes are in the pool's units."""

    num_copies = 0
    """Number of times that a whole reply has each prompt or its log-probabilities."""

    def whole_size(self, finals: Sequence[RequestOutput]) -> int:
        """The work of writing a whole reply."""
        return size_of_whole(finals, self.num_copies)

    @abstractmethod
    def whole(self, finals: Sequence[RequestOutput]) -> list[bytes]:
        """The reply to a request that does not stream, in pieces. Raises HttpError if it was
        aborted."""

    async def stream(self, generation: Generation, pool: WorkPool) -> AsyncIterator[bytes]:
        """The events of a streamed reply, those of one step together."""
        async for data in written(generation, self, pool):
            if data:
                yield data
        if last := self.last():
            yield last

    def size(self, update: Update) -> int:
        """The work of writing an update."""
        return size_of(update.completion)

    @abstractmethod
    def events(self, updates: Sequence[Update]) -> bytes:
        """The events for these updates."""

    def last(self) -> bytes:
        """The last event, after those of all updates; empty if there is none."""
        return b""


class StepWriter(Writer):
    """A writer whose whole reply is one JSON text, as each event of a stream is."""

    def whole(self, finals: Sequence[RequestOutput]) -> list[bytes]:
        [final] = finals
        return [msgspec.json.encode(self.part(final, final.outputs[0]))]

    def events(self, updates: Sequence[Update]) -> bytes:
        parts = (self.part(update.output, update.completion) for update in updates)
        return b"".join(self.line(msgspec.json.encode(each)) for each in parts if each is not None)

    @abstractmethod
    def part(self, output: RequestOutput, one: CompletionOutput) -> msgspec.Struct | None:
        """A step of the reply, or all of it; None: there is nothing to send yet."""

    @abstractmethod
    def line(self, data: bytes) -> bytes:
        """A step as it is sent in a stream."""


def check_end(output: RequestOutput, one: CompletionOutput) -> None:
    """Raises HttpError if a reply has ended because it could not go on."""
    if one.finish_reason in ("abort", "error"):
        raise HttpError(Problem(500, output.error or "The server aborted this request."))


def size_of(completion: CompletionOutput) -> int:
    """A completion's own size: a few units, its tokens, and its log-probabilities."""
    return 16 + len(completion.token_ids) + num_entries(completion.logprobs)


def num_entries(logprobs: object) -> int:
    """Log-probabilities of all positions together; 0 if none were asked for."""
    return logprobs.num_entries() if isinstance(logprobs, FlatLogprobs) else 0


def size_of_whole(finals: Iterable[RequestOutput], num_copies: int) -> int:
    """The size of a whole reply with `num_copies` copies of each prompt or its
    log-probabilities."""
    size = 0
    for final in finals:
        size += sum(size_of(completion) for completion in final.outputs)
        size += num_entries(final.prompt_logprobs)
        size += num_copies * len(final.prompt_token_ids or ())
    return size
