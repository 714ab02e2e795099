"""Refuses request fields of OpenAI or vLLM that are not supported yet or any more, and finds those
without effect.

A field whose value would change the reply is refused by name. One that changes nothing here is
accepted; where its value asks for something, the reply's headers name it. Fields that are also in
`SamplingParams` are refused there.
"""

from __future__ import annotations

from typing import Any

from quire.config import EngineConfig
from quire.errors import RequestError, quoted
from quire.server.generation.request_fields import GenerationFields, StreamOptions
from quire.structured.config import OWN_BACKENDS

NEUTRAL: dict[str, tuple[object, ...]] = {
    "early_stopping": (None, False),
    "ec_transfer_params": (None, {}),
    "return_token_offsets": (None, False),
    "logits_processors": (None, []),
    # completions
    "suffix": (None, ""),
    # chat
    "chat_template": (None,),
    "media_io_kwargs": (None, {}),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "web_search_options": (None,),
}
"""Fields with their neutral values; the error message suggests the first."""

WITHOUT_EFFECT: dict[str, tuple[object, ...]] = {
    "session_id": (None,),
    "service_tier": (None, "auto", "default"),
    "verbosity": (None, "medium"),
    "store": (None, False),
    "guided_decoding_backend": OWN_BACKENDS,
}
"""Accepted fields that change nothing here, with the values that ask for nothing."""


def fields_without_effect(request: GenerationFields, config: EngineConfig) -> list[str]:
    """The accepted fields whose values ask for something that this server does not do."""
    names = [
        name
        for name, neutral in WITHOUT_EFFECT.items()
        if getattr(request, name, None) not in neutral
    ]
    if request.priority and config.scheduler.policy != "priority":
        names.append("priority")
    if getattr(request, "prediction", None) and config.scheduler.speculation is None:
        names.append("prediction")
    return names


def refuse_unsupported(request: GenerationFields) -> None:
    """Raises RequestError for the first unsupported field whose value would have an effect."""
    for name, neutral in NEUTRAL.items():
        value = getattr(request, name, None)
        if value is not None and value not in neutral:
            raise _refusal(name, value, neutral[0])
    _check_best_of(request)
    if request.stream_options not in (None, StreamOptions()) and not request.stream:
        raise RequestError(
            "Stream options can only be defined when `stream=True`.", parameter="stream_options"
        )


def _check_best_of(request: GenerationFields) -> None:
    """As many samples are generated as `best_of` says, and the `n` best of them shown."""
    wanted, n = request.best_of, 1 if request.n is None else request.n
    if wanted in (None, n) or n < 1:
        return
    if wanted < n:
        rule = f"must be at least n={n}"
    elif request.is_chat:
        rule = "is not supported in chats unless it equals n"
    elif request.use_beam_search:
        rule = "is not supported with beam search unless it equals n"
    elif request.stream:
        rule = "must equal n with stream=true, because samples are compared when they are complete"
    else:
        return
    raise RequestError(
        f"best_of {rule}, got {wanted}; leave it out.", parameter="best_of", value=wanted
    )


def _refusal(name: str, value: Any, neutral: object) -> RequestError:
    return RequestError(
        f"{name} is not supported yet, got {quoted(value):.100}; leave it at {neutral!r}.",
        parameter=name,
        value=value,
    )
