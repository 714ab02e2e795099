"""`Writer`: the base of what writes the reply to one request in the form of an API; `ReplyHead`:
what all parts of the reply have in common.

A reply leaves here or in `streams`, which choose between the event loop and a thread by the size of
the work. A whole reply is encoded in pieces.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from starlette.requests import Request

from quire.errors import RequestError
from quire.frontend.inputs.refusals import cannot_generate
from quire.outputs import CompletionOutput, FlatLogprobs, RequestOutput
from quire.server.http.problems import HttpError, Problem
from quire.server.json_pieces import encoded
from quire.server.requests.fields import ReplyFields
from quire.server.work_pool import WorkPool

if TYPE_CHECKING:
    from quire.server.context import ServerContext, Target
    from quire.server.requests.request import AnyRequest


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


class Writer(ABC):
    """Writes the reply to one request in the form of an API: whole, or the events of a stream.
    `written_whole` and `streamed` decide where it runs, and how much it writes at once."""

    repeats_prompt = False
    """Whether each choice of the reply has its prompt: its text, token ids or log-probabilities."""

    @abstractmethod
    def whole(self, finals: Sequence[RequestOutput]) -> Any:
        """The reply to a request that does not stream; its lists may be `JsonList`s. Raises
        HttpError if it was aborted."""

    @abstractmethod
    def events(self, updates: Sequence[Update]) -> bytes:
        """The events for these updates."""

    def last(self) -> bytes:
        """The last event, after those of all updates; empty if there is none."""
        return b""


def check_end(output: RequestOutput, one: CompletionOutput) -> None:
    """Raises HttpError if a reply has ended because it could not go on."""
    if one.finish_reason in ("abort", "error"):
        raise HttpError(Problem(500, output.error or "The server aborted this request."))


class WholeWriter(Protocol):
    """The part of `Writer` for whole replies."""

    repeats_prompt: bool

    def whole(self, finals: Sequence[RequestOutput]) -> Any: ...


async def written_whole(
    finals: Sequence[RequestOutput], writer: WholeWriter, pool: WorkPool
) -> list[bytes]:
    """The text of a whole reply, in pieces."""
    size = 0
    for final in finals:
        of_prompt = len(final.prompt_token_ids or ()) if writer.repeats_prompt else 0
        size += num_entries(final.prompt_logprobs)
        size += sum(of_prompt + size_of(one) for one in final.outputs)
    return await pool.run(size, _encoded_whole, writer, finals)


def _encoded_whole(writer: WholeWriter, finals: Sequence[RequestOutput]) -> list[bytes]:
    return encoded(writer.whole(finals))


def size_of(completion: CompletionOutput) -> int:
    """A completion's own size: a few units, its tokens, and its log-probabilities."""
    return 16 + len(completion.token_ids) + num_entries(completion.logprobs)


def num_entries(logprobs: object) -> int:
    """Log-probabilities of all positions together; 0 if none were asked for."""
    return logprobs.num_entries() if isinstance(logprobs, FlatLogprobs) else 0
