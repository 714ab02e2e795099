"""The routes of the KV store: its usage, pinning and clearing. They exist if the
engine has a store, and need a key where the server has one."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request

from quire.errors import ConfigError, RequestError
from quire.server.bodies.json_http import context_of, queried_model
from quire.server.conversation.conversation import Conversation
from quire.server.conversation.prompt_fields import PromptFields
from quire.server.conversation.prompts import chat_prompt
from quire.server.http.auth import TENANT_SALT
from quire.server.requests.fields import CacheSalt, Count
from quire.server.requests.prompts import joint_salt, tokenized
from quire.server.routing import Routes
from quire.server.served_model import ServedModel


class KVCleared(msgspec.Struct, kw_only=True):
    """The store is empty."""

    num_chunks: Count
    """Chunks that were dropped."""


class KVPinRequest(PromptFields, kw_only=True):
    """A text or a conversation, such as a system prompt, whose K/V is never evicted."""

    cache_salt: CacheSalt | None = None
    """Salt of the requests that share this prefix."""
    pin: bool = True
    """False: the K/V may be evicted again."""


class KVPinned(msgspec.Struct, kw_only=True):
    """The result of pinning or unpinning a prompt."""

    pin: bool
    num_tokens: Count
    """Tokens of the prompt."""
    num_pinned_tokens: Count
    """Tokens in stored chunks; only whole chunks are stored."""


ROUTES = Routes("kv store", "kv_store")


@ROUTES.on("GET", "/kv")
async def usage(http: Request) -> dict[str, Any]:
    """Contents of each tier, and counts of loaded, stored, dropped and damaged chunks."""
    found: dict[str, Any] = await _call(queried_model(http), "kv_store_usage")
    return found


@ROUTES.on("POST", "/kv/clear", for_operator=False)
async def clear(http: Request) -> KVCleared:
    """Drops all K/V of this engine's tiers, of all models that share them. Where there are several
    API keys, that of the caller's key and this model alone."""
    salt = getattr(http.state, TENANT_SALT, None)
    num_chunks = await _call(queried_model(http), "kv_store_clear", salt)
    return KVCleared(num_chunks=num_chunks)


@ROUTES.on("POST", "/kv/pin")
async def pin(http: Request, request: KVPinRequest) -> KVPinned:
    """Keeps the K/V of a prompt, or lets it go again."""
    model = context_of(http).target(request.model).model if request.model else queried_model(http)
    token_ids = await _token_ids(model, request)
    salt = joint_salt(getattr(http.state, TENANT_SALT, None), request.cache_salt)
    num_pinned = await _call(model, "kv_store_pin", token_ids, salt, request.pin)
    return KVPinned(pin=request.pin, num_tokens=len(token_ids), num_pinned_tokens=num_pinned)


async def _call(model: ServedModel, command: str, *args: Any) -> Any:
    """Runs one of the engine's commands. A request that the engine cannot carry out is the caller's
    mistake, and answered 400."""
    try:
        return await model.live_engine().call(command, *args)
    except ConfigError as error:
        raise RequestError(str(error)) from None


async def _token_ids(model: ServedModel, request: KVPinRequest) -> list[int]:
    if (request.prompt is None) == (request.messages is None):
        raise RequestError("give either prompt or messages", parameter="prompt")
    model.tokenizer()  # refuses where there is none
    if request.messages is not None:
        chat = Conversation.of(request.messages, request, tools=request.tools)
        return (await chat_prompt(model, chat)).token_ids
    text, special = request.prompt or "", request.add_special_tokens is not False
    model.limits.check_text("prompt", len(text))
    return await tokenized(model, text, special)
