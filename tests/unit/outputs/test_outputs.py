"""Fields, order of arguments and texts of outputs: vLLM's."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from quire.outputs import CompletionOutput, Logprob, RequestOutput, RequestStateStats

COMPLETION = (
    "index", "text", "token_ids", "cumulative_logprob", "logprobs", "routed_experts",
    "finish_reason", "stop_reason", "lora_request", "sampling_mask", "spec_decode_metrics",
    "weight_versions",
)  # fmt: skip
REQUEST = (
    "request_id", "prompt", "prompt_token_ids", "prompt_logprobs", "outputs", "finished",
    "metrics", "lora_request", "encoder_prompt", "encoder_prompt_token_ids", "num_cached_tokens",
    "num_cache_creation_tokens",
)  # fmt: skip
BY_NAME = {"prompt_token_id_logprobs", "kv_transfer_params", "ec_transfer_params", "error"}


def completion() -> CompletionOutput:
    return CompletionOutput(0, "hi", [5], -0.5, None, None, "stop", "i")


def test_the_order_of_arguments() -> None:
    assert tuple(inspect.signature(CompletionOutput).parameters) == (*COMPLETION, "prediction")
    parameters = inspect.signature(RequestOutput).parameters
    by_place = [name for name, one in parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert tuple(by_place) == REQUEST
    by_name = {name for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY}
    assert by_name == BY_NAME
    assert tuple(inspect.signature(Logprob).parameters) == ("logprob", "rank", "decoded_token")
    assert [field.name for field in dataclasses.fields(RequestStateStats)][:8] == [
        "num_generation_tokens", "num_preemptions", "arrival_time", "queued_ts", "scheduled_ts",
        "first_token_ts", "last_token_ts", "first_token_latency",
    ]  # fmt: skip


def test_texts() -> None:
    assert repr(completion()) == (
        "CompletionOutput(index=0, text='hi', token_ids=[5], routed_experts=None, "
        "sampling_mask=None, cumulative_logprob=-0.5, logprobs=None, finish_reason='stop', "
        "stop_reason='i')"
    )
    output = RequestOutput("r", "a", [1], None, [completion()], True, num_cached_tokens=0)
    assert repr(output) == (
        "RequestOutput(request_id='r', prompt='a', prompt_token_ids=[1], encoder_prompt=None, "
        "encoder_prompt_token_ids=None, prompt_logprobs=None, prompt_token_id_logprobs=None, "
        f"outputs=[{completion()!r}], finished=True, metrics=None, lora_request=None, "
        "num_cached_tokens=0, num_cache_creation_tokens=None)"
    )


def test_users_may_attach_what_they_know() -> None:
    output = RequestOutput("r", "a", [1], None, [completion()], True)
    output.score = 1.0  # type: ignore[attr-defined]
    output.outputs[0].score = 2.0  # type: ignore[attr-defined]
    assert output.outputs[0].finished()


def test_fields_of_later_versions_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING"):
        output = RequestOutput("r", None, [1], None, [completion()], True, new_field=3)
    assert output.finished
    assert not hasattr(output, "new_field")
    assert "ignoring extra arguments: new_field" in caplog.text
