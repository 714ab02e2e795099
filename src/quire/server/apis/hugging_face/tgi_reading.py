"""Reads bodies of text-generation-inference into requests for text."""

from __future__ import annotations

from quire.errors import RequestError
from quire.server.apis.hugging_face.tgi_schema import TgiParameters, TgiRequest
from quire.server.requests.reading import given, read_logprobs
from quire.server.requests.request import ReplyOptions, TextRequest
from quire.server.requests.texts import TextPrompts

_DEFAULT_TOKENS = 100
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "best_of": (1,), "decoder_input_details": (False,), "top_n_tokens": (0,), "typical_p": (1.0,),
    "watermark": (False,),
}  # fmt: skip
"""Parameters of what is not here, with the values that switch it off."""
_SAME = ("top_p", "repetition_penalty", "frequency_penalty", "seed", "stop")


def read_tgi(asked: TgiRequest, *, stream: bool) -> TextRequest[TextPrompts]:
    """Raises RequestError for a parameter that asks for something else than is done here."""
    parameters = asked.parameters or TgiParameters()
    for name, neutral in _NEUTRAL.items():
        value = getattr(parameters, name)
        if value is not None and value not in neutral:
            raise RequestError(
                f"parameters.{name} must be {neutral[0]!r}: this is not supported",
                parameter=f"parameters.{name}",
                value=value,
            )
    grammar, most = parameters.grammar, parameters.max_new_tokens
    has_logprobs = parameters.details is True or stream
    request = TextRequest(
        prompt=TextPrompts(
            asked.inputs,
            most_tokens=parameters.truncate,
            cut_side=None if parameters.truncate is None else "left",
        ),
        model=parameters.adapter_id or asked.model,
        sampling=given(parameters, _SAME) | {"include_stop_str_in_output": True},
        max_tokens=_DEFAULT_TOKENS if most is None else most,
        reply=ReplyOptions(stream=stream, repeats_prompt=True),
        names=dict(_NAMES),
    )
    read_logprobs(request, 0 if has_logprobs else None)
    top_k, temperature = parameters.top_k or None, parameters.temperature
    shapes = (temperature not in (None, 1.0), top_k, parameters.top_p not in (None, 1.0))
    if top_k is not None:
        request.sampling["top_k"] = top_k
    if not parameters.do_sample and not any(shapes):
        temperature = 0.0
    if temperature is not None:
        request.sampling["temperature"] = temperature
    if grammar is not None:
        request.constraint = {"regex" if grammar.type == "regex" else "json": grammar.value}
        request.name_constraint("parameters.grammar")
    return request


_NAMES = {
    **{name: f"parameters.{name}" for name in (*_SAME, "temperature", "top_k")},
    "max_tokens": "parameters.max_new_tokens",
    "truncate_prompt_tokens": "parameters.truncate",
    "prompt": "inputs",
    "input_tokens": "inputs",
}
"""Parameters and fields by the options that they give."""
