"""Requests for vectors, classes and scores: their fields, the run of their inputs, and how vectors
are written."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from quire.adapters import AnyAdapterRequest, by_kind
from quire.config.pooling import PoolingTask
from quire.errors import RequestError
from quire.frontend.arguments import RequestOptions, located
from quire.frontend.inputs.refusals import cannot_pool, wrong_task
from quire.frontend.inputs.tokenization import Tokenization, Truncation
from quire.frontend.scoring import PairForm, pair_chat
from quire.inputs import PromptType
from quire.outputs import PoolingOutput, PoolingRequestOutput
from quire.protocol import CacheScope
from quire.protocol.pooling_params import PoolingParams
from quire.server.bodies.json_http import context_of, pieced_response
from quire.server.generation.run import Generation, chosen_engine, deadline_of
from quire.server.http.auth import TENANT_SALT
from quire.server.http.presence import until_gone
from quire.server.json_pieces import JsonList, encoded
from quire.server.requests.fields import CacheFields, Count, Int64, RequestIdText, TokenId
from quire.server.requests.prompts import engine_input, joint_salt
from quire.server.requests.request import salt_of
from quire.server.served_model import ServedModel
from quire.weights.quantised.float_tables import FLOAT8, float8_codes

if TYPE_CHECKING:
    from quire.frontend.arguments import EngineInput


EmbedDtype = Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"]
Endianness = Literal["native", "little", "big"]


def written(
    data: NDArray[np.float32],
    form: str,
    dtype: EmbedDtype = "float32",
    order: Endianness = "native",
) -> Any:
    """A vector, or one for each token, as `form` says: `float` for lists, `base64` for a string."""
    if form == "float":
        return listed(data)
    return base64.b64encode(numbers(data, dtype, order)).decode()


def listed(data: NDArray[np.float32]) -> Any:
    """The numbers as lists of a reply."""
    if data.ndim == 1:
        return JsonList(data.tolist()).as_field()
    return JsonList([listed(row) for row in data]).as_field()


def numbers(data: NDArray[np.float32], dtype: EmbedDtype, order: Endianness) -> bytes:
    """The bytes of the numbers."""
    mark = {"native": "=", "little": "<", "big": ">"}[order]
    if dtype == "float32":
        return data.astype(f"{mark}f4").tobytes()
    if dtype == "float16":
        return data.astype(f"{mark}f2").tobytes()
    if dtype in FLOAT8:
        return float8_codes(data, dtype).tobytes()
    bits = np.ascontiguousarray(data).view(np.uint32)
    # Round to the nearest, ties to even.
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    found: bytes = rounded.astype(f"{mark}u2").tobytes()
    return found


TruncateTokens = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
Inputs = str | list[str | TokenId | list[TokenId]]
"""A text, a list of texts, a list of token ids, or a list of such lists."""


class PoolingFields(CacheFields, kw_only=True, forbid_unknown_fields=True):
    """Fields that all requests have. Names are vLLM's, except `prompt_name`."""

    model: str | None = None
    user: str | None = None
    """Accepted and not used."""
    truncate_prompt_tokens: TruncateTokens | None = None
    """Keep so many tokens of a text; -1: as many as the model takes."""
    truncation_side: Literal["left", "right"] | None = None
    """The end that is cut off; by default the one that the tokenizer's files name, or the right
    one. Of a pair, the document is cut."""
    request_id: RequestIdText | None = None
    priority: Int64 | None = None
    add_special_tokens: bool | None = None
    """By default true for texts and false for a conversation."""
    use_activation: bool | None = None
    """Whether vectors have length 1, and scores are probabilities; by default as the model says."""

    def tokenization(self, model: ServedModel) -> Tokenization:
        """Tokenization of the texts. Raises RequestError."""
        truncation = Truncation.of(
            self.truncate_prompt_tokens,
            self.truncation_side,
            model.limits.max_model_len,
            pools=True,
        )
        return Tokenization(self.add_special_tokens is not False, truncation)

    def params(self, task: PoolingTask | None = None) -> PoolingParams:
        """Parameters for the engine."""
        return PoolingParams(use_activation=self.use_activation, task=task)


class RenderedFields(PoolingFields, kw_only=True):
    """Fields of requests whose texts a chat template may render."""

    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the chat template."""


class PoolingUsage(msgspec.Struct, kw_only=True):
    """Tokens of a request."""

    prompt_tokens: Count
    total_tokens: Count
    completion_tokens: Count = 0


Item = TypeVar("Item")


class ListReply(msgspec.Struct, Generic[Item], kw_only=True):
    """Results of several inputs, in their order."""

    id: str
    object: Literal["list"] = "list"
    created: Count
    model: str
    data: list[Item]
    usage: PoolingUsage


def as_inputs(name: str, given: Inputs) -> list[str | list[int]]:
    """One entry for each input. Raises RequestError for none, and for different kinds."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise RequestError(f"{name} must not be empty", parameter=name)
    if isinstance(given[0], int):
        given = [given]  # type: ignore[list-item]
    kind = type(given[0])
    if any(type(one) is not kind for one in given) or (
        kind is list and not all(isinstance(one, int) for each in given for one in each)  # type: ignore[union-attr]
    ):
        raise RequestError(
            f"{name} must be a string, a list of strings, a list of token ids or a list of such "
            "lists; it holds different kinds",
            parameter=name,
        )
    return given  # type: ignore[return-value]


Result = PoolingRequestOutput[PoolingOutput]
Reply = TypeVar("Reply", bound=ListReply[Any])


@dataclass(frozen=True, slots=True)
class PoolingJob:
    """One HTTP request: what it names, and what its reply repeats."""

    http: Request
    request: PoolingFields
    model: ServedModel
    id: str
    created: int
    name: str
    """The model's or the adapter's, in the reply."""
    adapter: AnyAdapterRequest | None = None
    own_names: Mapping[str, str] = field(default_factory=dict)
    """See `named_as_asked`."""

    @classmethod
    def of(
        cls,
        http: Request,
        request: PoolingFields,
        prefix: str,
        own_names: Mapping[str, str] | None = None,
    ) -> PoolingJob:
        """Raises HttpError 404 for an unknown model, and RequestError for one that generates."""
        target = context_of(http).target(request.model)
        model = target.model.config.model
        if model.pooling is None:
            raise RequestError(cannot_pool(model), parameter="model")
        base = http.state.request_id if "x-request-id" in http.headers else request.request_id
        name = f"{prefix}-{base or http.state.request_id}"
        return cls(
            http, request, target.model, name, int(time.time()), target.name, target.adapter,
            own_names or {},
        )  # fmt: skip

    def reply(self, kind: type[Reply], items: Iterable[Any], results: Sequence[Any]) -> Reply:
        """A reply with these items, and the tokens of `results`."""
        return kind(
            id=self.id,
            created=self.created,
            model=self.name,
            data=list(items),
            usage=usage_of(results),
        )

    def require(self, *tasks: PoolingTask) -> None:
        """Raises RequestError unless the model does one of these tasks."""
        model = self.model.config.model
        if model.pooling is not None and not {*tasks} & {*model.pooling.supported_tasks}:
            raise RequestError(wrong_task(model, tasks[0]), parameter="model")

    async def run(
        self,
        fields: str | Sequence[tuple[str, int]],
        inputs: Sequence[Any],
        params: PoolingParams,
        tokenization: Tokenization,
        make: Callable[[], Sequence[PromptType]] | None = None,
    ) -> list[Result] | None:
        """The results of texts or lists of token ids, in order; None if the client has gone.
        `fields`: the request's field that has them, or several fields in order with the number of
        inputs of each. `make`: makes the prompts of them, if they are not the prompts. Raises
        RequestError and what the engine raises."""
        http, model = self.http, self.model
        deadline = deadline_of(http, model.args.request_timeout)
        salt = joint_salt(getattr(http.state, TENANT_SALT, None), salt_of(self.request))
        with model.admitting() as live:
            live.requests.check_admission(1)
            with named_as_asked(self.own_names):
                made = await model.pool.run(
                    size_of(inputs), self._inputs, fields, make or (lambda: inputs), params,
                    tokenization, salt,
                )  # fmt: skip
            engine = chosen_engine(http, model.config.parallel.data_parallel_size)
            generation = await Generation.of_inputs(model, made, deadline, engine)
        try:
            found: Any = await until_gone(http, generation.close, generation.final_outputs())
        finally:
            generation.close()
        return found  # type: ignore[no-any-return]

    async def answer(
        self, results: list[Result] | None, make: Callable[[list[Result]], Any]
    ) -> Response:
        """A reply of the value, or the whole reply, that `make` makes of the results: on a thread
        if they hold many numbers. It is empty if the client has gone."""
        if results is None:
            return Response()
        size = sum(one.outputs.data.size for one in results)
        return await self.model.pool.run(size, _response, make, results)

    def _inputs(
        self,
        fields: str | Sequence[tuple[str, int]],
        make: Callable[[], Sequence[PromptType]],
        params: PoolingParams,
        tokenization: Tokenization,
        salt: str | None,
    ) -> list[EngineInput]:
        prompts = make()
        fields = [(fields, len(prompts))] if isinstance(fields, str) else fields
        self.model.limits.check_prompts(len(prompts), 1, fields[-1][0])
        inputs: list[EngineInput] = []
        options = RequestOptions(
            priority=self.request.priority or 0, tokenization=tokenization, **by_kind(self.adapter)
        )
        width, num_values = self._width_of_tokens(params), 0
        places = [(name, index, count) for name, count in fields for index in range(count)]
        for (name, index, count), prompt in zip(places, prompts, strict=True):
            with named_as_asked({_TOKEN_IDS: f"{name}="}), located(name, index, count):
                if isinstance(prompt, str):
                    self.model.limits.check_text(name, len(prompt.encode(errors="replace")))
                made = engine_input(self.model, f"{self.id}-{len(inputs)}", prompt, params, options)
                if salt is not None:
                    for core_request in made.core_requests:
                        core_request.scope = CacheScope(salt)
                inputs.append(made)
            num_values += len(made.prompt_token_ids) * width
            self.model.limits.check_vectors(num_values, name)
        return inputs

    def _width_of_tokens(self, params: PoolingParams) -> int:
        """Numbers of a token's vector in the reply; 0: the request does not ask for them."""
        pooling = self.model.config.model.pooling
        if pooling is None or params.task != "token_embed":
            return 0
        return params.dimensions or pooling.vector_width


def _response(make: Callable[[list[Result]], Any], results: list[Result]) -> Response:
    made = make(results)
    return made if isinstance(made, Response) else pieced_response(encoded(made))


_TOKEN_IDS = "prompt_token_ids="
"""The engine's name of an input that is token ids."""


@contextmanager
def named_as_asked(names: Mapping[str, str]) -> Iterator[None]:
    """Makes errors name the fields that the client sent. `names`: settings of these such as
    `max_tokens=`, by those of `PoolingFields`; an earlier entry may begin with a later one."""
    try:
        yield
    except RequestError as error:
        message = str(error)
        for name, own in names.items():
            message = message.replace(name, own)
        error.args = (message,)
        if error.parameter is not None:
            error.parameter = names.get(f"{error.parameter}=", error.parameter).removesuffix("=")
        raise


async def pair_form(
    model: ServedModel, instruction: str | None = None, fields: RenderedFields | None = None
) -> PairForm | None:
    """Form in which the model reads a query and a document; None: as a pair. Raises
    RequestError."""
    pooling = model.config.model.pooling
    if pooling is None or pooling.score_form not in ("template", "messages"):
        return PairForm.own(model.config.model, instruction)
    variables = None if fields is None else fields.chat_template_kwargs
    chat = pair_chat(pooling, instruction=instruction, variables=variables)
    text = await model.chat_renderer().render(chat)
    return PairForm.rendered(text, is_own=pooling.score_form == "messages")


def usage_of(results: Sequence[Any]) -> PoolingUsage:
    """The tokens of the inputs."""
    count = sum(len(one.prompt_token_ids) for one in results)
    return PoolingUsage(prompt_tokens=count, total_tokens=count)


def size_of(inputs: Sequence[Any]) -> int:
    """The work of turning inputs into tokens."""
    return sum(len(one) if isinstance(one, str) else len(one) // 16 for one in inputs) + len(inputs)
