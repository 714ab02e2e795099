"""Reads the form of a request for the words of a sound."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from quire.errors import RequestError
from quire.models.media.languages import asked_code
from quire.param_checks import checked_json
from quire.server.apis.audio.schema import TranscriptionRequest
from quire.server.requests.beam_fields import read_beam_fields
from quire.server.requests.fields import SamplerFields
from quire.server.requests.reading import given, read_logprobs
from quire.server.requests.request import ReplyOptions, TextRequest
from quire.transcription.records import Task, TranscriptionOptions

Source = TypeVar("Source")
_SAME_NAME = (*SamplerFields.__struct_fields__, "include_stop_str_in_output", "watermarking")
_OF_WHISPER = ("prompt", "vad_filter", "condition_on_previous_text")
_WITHOUT_EFFECT = ("hotwords", "to_language")
_NOT_OF_WHISPER = (
    *(name for name in _SAME_NAME if name not in ("temperature", "seed")),
    *("n", "length_penalty", "vllm_xargs", *_WITHOUT_EFFECT),
)  # fmt: skip
_USAGE = {
    "stream_include_usage": "include_usage",
    "stream_continuous_usage_stats": "continuous_usage",
}


def text_request(form: TranscriptionRequest, source: Source) -> TextRequest[Source]:
    """The request to a model that hears sounds in chats. Raises RequestError."""
    options = _checked(form)
    if form.stream and form.use_beam_search:
        raise RequestError(
            "Streaming is not currently supported with beam search", parameter="stream"
        )
    if form.include and form.use_beam_search:
        raise RequestError(
            "include=logprobs does not work with use_beam_search", parameter="include"
        )
    ignored = read_beam_fields(form)
    has_beams = form.use_beam_search is True
    sampling = given(form, _SAME_NAME)
    if has_beams and form.n is not None:
        sampling["n"] = form.n
    if (extra := checked_json(_extra_args(form.vllm_xargs), "vllm_xargs")) is not None:
        sampling["extra_args"] = extra
    ignored += [name for name in (*_OF_WHISPER, *_WITHOUT_EFFECT) if getattr(form, name)]
    if form.condition_on_previous_text is False:
        ignored.append("condition_on_previous_text")
    ignored += _ignored_usage(form)
    if form.n != 1 and not has_beams:
        ignored.append("n")
    asked = TextRequest.of(
        form,
        source,
        sampling=sampling,
        max_tokens=form.max_completion_tokens,
        has_beams=has_beams,
        reply=ReplyOptions(stream=form.stream is True, n=sampling.get("n") or 1, **options),
        names={"max_tokens": "max_completion_tokens"},
        ignored=ignored,
    )
    if form.include:
        read_logprobs(asked, 0)
    return asked


def timed_request(form: TranscriptionRequest, source: Source) -> TextRequest[Source]:
    """The request for a model of Whisper's kind: the fields of its reply, and those that it
    ignores. Raises RequestError."""
    options = _checked(form)
    if form.use_beam_search:
        raise RequestError(
            "use_beam_search must be false: a model of Whisper's kind has no beams here",
            parameter="use_beam_search",
        )
    if form.stream and form.response_format in ("srt", "vtt"):
        raise RequestError(
            "response_format must be json, text or verbose_json with stream, got "
            f"{form.response_format}; the segments of verbose_json have the times",
            parameter="response_format",
        )
    default = {field.name: field.default for field in msgspec.structs.fields(TranscriptionRequest)}
    ignored = [
        name for name in _NOT_OF_WHISPER if getattr(form, name) not in (None, "", default[name])
    ]
    ignored += _ignored_usage(form)
    return TextRequest.of(
        form, source, reply=ReplyOptions(stream=form.stream is True, **options), ignored=ignored
    )


def transcription_options(
    form: TranscriptionRequest, task: Task, languages: Collection[str]
) -> TranscriptionOptions:
    """The options of a model that knows these languages. Raises RequestError."""
    own: dict[str, Any] = {"task": task, "seed": form.seed, "initial_prompt": form.prompt or ""}
    if form.language and form.language != "auto":
        own["language"] = asked_code(form.language, languages)
    if task == "translate" and len(languages) == 1:
        raise RequestError(
            "translations need a model of several languages; this one knows English alone",
            parameter="model",
        )
    if form.temperature:
        if not 0 < form.temperature <= 1:
            raise RequestError(
                f"temperature must be from 0 to 1, got {form.temperature}", parameter="temperature"
            )
        own["temperatures"] = (form.temperature,)
    if form.max_completion_tokens is not None:
        if form.max_completion_tokens < 1:
            raise RequestError(
                f"max_completion_tokens must be at least 1, got {form.max_completion_tokens}",
                parameter="max_completion_tokens",
            )
        own["max_tokens"] = form.max_completion_tokens
    for name in ("vad_filter", "condition_on_previous_text"):
        if (value := getattr(form, name)) is not None:
            own[name] = value
    return TranscriptionOptions(
        word_timestamps="word" in form.timestamp_granularities,
        silence=form.response_format == "verbose_json",
        **own,
    )


@contextmanager
def errors_of_file() -> Iterator[None]:
    """Errors of the block that name no field are errors of `file`, which it decodes."""
    try:
        yield
    except RequestError as error:
        if error.parameter is None:
            raise RequestError(str(error), parameter="file") from None
        raise


def _checked(form: TranscriptionRequest) -> dict[str, Any]:
    """The options of the usage in a stream. Raises RequestError for fields that do not fit
    together."""
    if form.timestamp_granularities and form.response_format != "verbose_json":
        raise RequestError(
            "timestamp_granularities needs response_format=verbose_json, got "
            f"response_format={form.response_format}",
            parameter="timestamp_granularities",
        )
    if form.include and form.response_format != "json":
        raise RequestError(
            f"include=logprobs does not work with response_format={form.response_format}; it "
            "needs json",
            parameter="include",
        )
    options = {new: True for old, new in _USAGE.items() if getattr(form, old)}
    if options and not form.stream:
        raise RequestError(
            "Stream options can only be defined when `stream=True`.",
            parameter=next(old for old in _USAGE if getattr(form, old)),
        )
    return options if "include_usage" in options else {}


def _ignored_usage(form: TranscriptionRequest) -> list[str]:
    """Usage in every event needs the usage at the end."""
    has_effect = form.stream_include_usage or not form.stream_continuous_usage_stats
    return [] if has_effect else ["stream_continuous_usage_stats"]


def _extra_args(text: str | None) -> dict[str, Any] | None:
    try:
        return None if text is None else msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise RequestError("vllm_xargs must be a JSON object", parameter="vllm_xargs") from None
