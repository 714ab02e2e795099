"""Fields of a body that do not go with `use_beam_search`, or only with it."""

from __future__ import annotations

from typing import Any

import msgspec

from quire.errors import RequestError, quoted
from quire.server.requests.fields import SamplerFields
from quire.server.requests.limits import refuse_other_values

_REFUSED: dict[str, tuple[object, ...]] = {
    "stop_token_ids": (None, []),
    "min_tokens": (None, 0),
    "frequency_penalty": (None, 0.0),
    "presence_penalty": (None, 0.0),
    "repetition_penalty": (None, 1.0),
    "logit_bias": (None, {}),
    "bad_words": (None, []),
    "logprob_token_ids": (None, []),
    "prompt_logprobs": (None,),
    "repetition_detection": (None,),
    "thinking_token_budget": (None, -1),
    "vllm_xargs": (None, {}),
}
"""Fields with their neutral values."""
_WITHOUT_EFFECT: dict[str, tuple[object, ...]] = {
    "top_p": (None, 1.0),
    "top_k": (None, 0, -1),
    "min_p": (None, 0.0),
    "seed": (None,),
}


# A field of the sampler that is named in neither is refused where it is given.
_REFUSED |= {
    field.name: (None,)
    for field in msgspec.structs.fields(SamplerFields)
    if field.name not in {*_REFUSED, *_WITHOUT_EFFECT, "temperature", "allowed_token_ids"}
}


def read_beam_fields(request: Any) -> list[str]:
    """The fields of a body with `use_beam_search` that change nothing. Raises RequestError for
    fields that do not work with it, or only with it."""
    if not request.use_beam_search:
        if request.length_penalty not in (None, 1.0):
            raise RequestError(
                f"length_penalty is for beam search, got {quoted(request.length_penalty)}; leave "
                "it out, or set use_beam_search to true.",
                parameter="length_penalty",
                value=request.length_penalty,
            )
        return []
    refuse_other_values(request, _REFUSED, " with beam search")
    return [
        name for name, neutral in _WITHOUT_EFFECT.items() if getattr(request, name) not in neutral
    ]
