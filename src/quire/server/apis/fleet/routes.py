"""`/v1/models/load` and `/v1/models/unload`, which llama-server has at `/models/...`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.errors import ConfigError, RequestError
from quire.server.apis.service.schema import ModelStatus
from quire.server.bodies.json_http import context_of, json_response, read_body
from quire.server.fleet.catalog import keep_alive_seconds
from quire.server.served_model import ServedModel

if TYPE_CHECKING:
    from quire.server.fleet.fleet import Fleet
    from quire.server.fleet.member import Member


class ModelCommand(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Names a model."""

    model: str
    keep_alive: str | int | float | None = None
    """How long it stays loaded without requests: seconds, a time such as `10m`, or a negative
    number for ever; by default as the server's options say."""


class ModelNow(msgspec.Struct, kw_only=True):
    """The model's state afterwards."""

    success: bool = True
    model: str
    status: ModelStatus


async def load(http: Request) -> Response:
    """Loads a model, and answers when it is loaded."""
    asked = await read_body(http, ModelCommand)
    fleet, model = _fleet_of(http), context_of(http).target(asked.model).model
    if asked.keep_alive is not None:
        fleet.keep_alive(model, parsed_keep_alive(asked.keep_alive))
    await fleet.load(model)
    return _reply(fleet, model)


async def unload(http: Request) -> Response:
    """Unloads a model that has no requests."""
    asked = await read_body(http, ModelCommand)
    fleet, model = _fleet_of(http), context_of(http).target(asked.model).model
    await fleet.unload(model)
    return _reply(fleet, model)


def parsed_keep_alive(value: str | int | float) -> float | None:
    """Seconds, or None for ever. Raises RequestError."""
    try:
        return keep_alive_seconds(value)
    except ConfigError as error:
        raise RequestError(str(error), parameter="keep_alive", value=value) from None


def status_of(member: Member) -> ModelStatus:
    """What `/v1/models` reports of a model of several."""
    end = member.expires_at()
    is_waiting = member.state == "loaded" and end is not None and not member.is_busy
    return ModelStatus(
        value=member.state,
        num_bytes=member.num_bytes,
        num_requests=member.model.num_users,
        keep_alive=member.keep_alive_s,
        expires_in=round(max(0.0, end - time.monotonic()), 3) if is_waiting and end else None,
        error=member.failure or None,
    )


def _fleet_of(http: Request) -> Fleet:
    fleet = context_of(http).fleet
    assert fleet is not None  # otherwise the routes do not exist
    return fleet


def _reply(fleet: Fleet, model: ServedModel) -> Response:
    member = fleet.member_of(model)
    return json_response(ModelNow(model=member.name, status=status_of(member)))
