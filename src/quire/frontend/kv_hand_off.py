"""`kv_transfer_params`: one engine computes a prompt, another one continues (vLLM's fields).

The first request has `do_remote_decode` and usually `max_tokens=1`; the `kv_transfer_params` of its
output are sent with the second request to the other engine. The K/V itself goes through the KV
store that both engines share; these parameters only say that it is coming, and under which name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from quire.errors import RequestError, quoted
from quire.params import SamplingParams

FIELD = "kv_transfer_params"
_NAME = re.compile(r"[0-9a-f]{64}")


def hand_off(params: SamplingParams) -> dict[str, Any]:
    """The fields `hands_off` and `awaited_kv` of an `EngineCoreRequest`. Raises RequestError if the
    request's field is invalid. Fields for direct transfers between engines, such as hosts and
    ports, are ignored."""
    given = (params.extra_args or {}).get(FIELD)
    if not given:
        return {}
    if not isinstance(given, Mapping):
        raise RequestError(
            f"{FIELD} must be an object, got {quoted(given)}", parameter=FIELD, value=given
        )
    hands_off, goes_on = _truth(given, "do_remote_decode"), _truth(given, "do_remote_prefill")
    name = _name(given.get("remote_block_ids")) if goes_on else None
    return {"hands_off": hands_off, "awaited_kv": name}


def answer(request_id: str, kv_name: str) -> dict[str, Any]:
    """The `kv_transfer_params` for the second request."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[kv_name]],
        "remote_engine_id": "quire",
        "remote_request_id": request_id,
        "remote_host": None,
        "remote_port": None,
        "tp_size": 1,
    }


def _truth(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestError(
            f"{FIELD}.{name} must be true or false, got {quoted(value)}", parameter=FIELD
        )
    return bool(value)


def _name(block_ids: Any) -> str:
    """The name that `answer` put into block ids; "" for block ids of other engines."""
    match block_ids:
        case [[str(name)]] if _NAME.fullmatch(name):
            return name
    return ""
