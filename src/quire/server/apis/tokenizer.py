"""The tokenizer: ids of texts and conversations, and texts of ids."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.errors import RequestError
from quire.server.bodies.json_http import context_of, pieced_response, queried_model
from quire.server.conversation.conversation import Conversation
from quire.server.conversation.prompt_fields import PromptFields
from quire.server.conversation.prompts import chat_prompt
from quire.server.json_pieces import ITEMS_AT_ONCE, JsonList, encoded
from quire.server.requests.fields import Count, TokenId
from quire.server.requests.prompts import encode
from quire.server.routing import Routes
from quire.server.served_model import ServedModel


class TokenizeRequest(PromptFields, kw_only=True):
    """A text, or a conversation, to be tokenized: exactly one of `prompt` and `messages`."""


class TokenizeResponse(msgspec.Struct, kw_only=True):
    """The tokens of a prompt."""

    count: Count
    max_model_len: Count
    tokens: list[TokenId]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Token ids to be turned into text."""

    token_ids_field: ClassVar[str] = "tokens"

    model: str | None = None
    tokens: list[TokenId]


class DetokenizeResponse(msgspec.Struct, kw_only=True):
    """The text of some tokens, special ones included."""

    prompt: str
    content: str
    """The same, by llama-server's name."""


_PATHS = ("vocab_file", "merges_file")
"""Fields of a tokenizer's configuration that name files."""


ROUTES = Routes("prompts")


@ROUTES.on("POST", "/tokenize", response=TokenizeResponse)
async def tokenize(http: Request, request: TokenizeRequest) -> Response:
    """The token ids of a text or a conversation."""
    model = context_of(http).target(request.model).model
    model.tokenizer()  # refuses where there is none
    if request.content is not None and request.prompt is None:
        request.prompt, request.add_special_tokens = request.content, request.add_special is True
    if (request.prompt is None) == (request.messages is None):
        raise RequestError("give either prompt or messages", parameter="prompt")
    if request.prompt is not None:
        text, special = request.prompt, request.add_special_tokens is not False
        model.limits.check_text("prompt", len(text))
        token_ids = await model.pool.run(len(text), encode, model, text, special, must_fit=False)
    else:
        chat = Conversation.of(request.messages or [], request, tools=request.tools)
        token_ids = (await chat_prompt(model, chat)).token_ids
    if request.with_pieces:
        context_of(http).ignored_fields.tell(http, ["with_pieces"])
    return pieced_response(
        await model.pool.run(len(token_ids), _tokenized, model, request, token_ids)
    )


def _tokenized(model: ServedModel, request: TokenizeRequest, token_ids: list[int]) -> list[bytes]:
    token_strs = None
    if request.return_token_strs:
        id_to_token, strs = model.tokenizer().id_to_token, JsonList()
        for begin in range(0, len(token_ids), ITEMS_AT_ONCE):
            ids = token_ids[begin : begin + ITEMS_AT_ONCE]
            strs.add([id_to_token(token_id) or "" for token_id in ids])
        token_strs = strs.as_field()
    response = TokenizeResponse(
        count=len(token_ids),
        max_model_len=model.config.model.max_model_len,
        tokens=JsonList(token_ids).as_field(),
        token_strs=token_strs,
    )
    return encoded(response)


@ROUTES.on("POST", "/detokenize")
async def detokenize(http: Request, request: DetokenizeRequest) -> DetokenizeResponse:
    """The text of some token ids."""
    model = context_of(http).target(request.model).model
    size = len(request.tokens)
    return await model.pool.run(size, _detokenized, model, request.tokens)


def _detokenized(model: ServedModel, token_ids: list[int]) -> DetokenizeResponse:
    vocab_size, limit = model.config.model.vocab_size, model.config.model.max_model_len
    tokenizer = model.tokenizer()
    if len(token_ids) > limit:
        raise RequestError(
            f"{len(token_ids)} tokens are more than max_model_len {limit}; "
            "send them in several requests",
            parameter="tokens",
        )
    if token_ids and max(token_ids) >= vocab_size:
        raise RequestError(
            f"Token id {max(token_ids)} is out of vocabulary: ids are from 0 to {vocab_size - 1}",
            parameter="tokens",
        )
    text = tokenizer.decode(token_ids, skip_special_tokens=False)
    return DetokenizeResponse(prompt=text, content=text)


@ROUTES.on("GET", "/tokenizer_info", switch="tokenizer_info")
async def tokenizer_info(http: Request) -> dict[str, Any]:
    """The tokenizer's configuration, as tokenizer_config.json has it."""
    model = queried_model(http)
    config = model.tokenizer().config
    info = {name: _plain(config[name]) for name in config if name not in _PATHS}
    info.setdefault("tokenizer_class", "PreTrainedTokenizerFast")
    is_given = model.config.model.chat_template is not None
    if model.chat_template is not None and (is_given or "chat_template" not in info):
        info["chat_template"] = model.chat_template  # the checkpoint may have it in its own file
    return info


def _plain(value: Any) -> Any:
    """A value of the configuration, with special tokens as their texts."""
    if isinstance(value, dict):
        if isinstance(value.get("content"), str):
            return value["content"]
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value
