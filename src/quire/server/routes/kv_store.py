"""The routes of the KV store: what it holds, and what it shall keep or drop. They exist where the
engine has a store, and need a key where the server has one."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from quire.errors import ConfigError, RequestError
from quire.server.context import ServerContext
from quire.server.http.auth import TENANT_SALT
from quire.server.requests.prompts import PreparedPrompt, chat_prompt, encode
from quire.server.routes.bodies import context_of, json_response, read_body
from quire.server.routes.query import read_query
from quire.server.schema import kv_store as schema
from quire.server.schema.engine import NoQuery


async def usage(http: Request) -> Response:
    """What each tier holds, and what was loaded, stored, dropped and damaged."""
    read_query(http, NoQuery)
    return json_response(await _call(http, "kv_store_usage"))


async def clear(http: Request) -> Response:
    """Drops all K/V of this engine's tiers, of all models that share them. Where there are several
    API keys, that of the caller's key and this model alone."""
    read_query(http, NoQuery)
    num_chunks = await _call(http, "kv_store_clear", getattr(http.state, TENANT_SALT, None))
    return json_response(schema.KVCleared(num_chunks=num_chunks))


async def pin(http: Request) -> Response:
    """Keeps the K/V of a prompt, or lets it go again."""
    context = context_of(http)
    request = await read_body(http, schema.KVPinRequest)
    context.served_name(request.model)
    prompt = await _prompt(context, request)
    salt = prompt.of_tenant(getattr(http.state, TENANT_SALT, None)).cache_salt
    token_ids = prompt.token_ids
    num_pinned = await _call(http, "kv_store_pin", token_ids, salt, request.pin)
    return json_response(
        schema.KVPinned(pin=request.pin, num_tokens=len(token_ids), num_pinned_tokens=num_pinned)
    )


async def _call(http: Request, command: str, *args: Any) -> Any:
    """Runs one of the engine's commands. What it cannot do as it was asked to is the caller's
    mistake, and answered 400."""
    try:
        return await context_of(http).live_engine().call(command, *args)
    except ConfigError as error:
        raise RequestError(str(error)) from None


async def _prompt(context: ServerContext, request: schema.KVPinRequest) -> PreparedPrompt:
    """The same tokens as of a request with this prompt."""
    if (request.prompt is None) == (request.messages is None):
        raise RequestError("give either prompt or messages", parameter="prompt")
    context.tokenizer()  # refuses where there is none
    if request.prompt is None:
        token_ids = (await chat_prompt(context, request)).token_ids
    else:
        text, special = request.prompt, request.add_special_tokens is not False
        context.limits.check_text("prompt", len(text))
        token_ids = await context.pool.run(len(text), encode, context, text, special)
    return PreparedPrompt(token_ids, None, request.cache_salt)
