"""`best_of`: more samples than the reply shows, chosen by their log-probability per token."""

from __future__ import annotations

import pytest

from quire.outputs import CompletionOutput, FlatLogprobs, RequestOutput
from quire.server.apis.completions.writing import best_of

from .conftest import Harness, MakeHarness


def output_of(*samples: tuple[float | None, int]) -> RequestOutput:
    """Of samples with these sums and lengths."""
    outputs = [
        CompletionOutput(index, f"{index}", [7] * length, total, FlatLogprobs())
        for index, (total, length) in enumerate(samples)
    ]
    return RequestOutput("r", None, [1], None, outputs, True)


def test_the_best_by_mean_are_shown_in_order() -> None:
    final = output_of((-4.0, 2), (-3.0, 3), (-9.0, 3), (-5.0, 10), (0.0, 0))
    shown = best_of(final, 2, shows_logprobs=False)
    assert [(one.index, one.text) for one in shown.outputs] == [(0, "3"), (1, "1")]
    assert all(one.logprobs is None for one in shown.outputs)
    assert [one.index for one in final.outputs] == [0, 1, 2, 3, 4]
    kept = best_of(final, 2, shows_logprobs=True)
    assert all(isinstance(one.logprobs, FlatLogprobs) for one in kept.outputs)
    assert best_of(final, 5, shows_logprobs=False) is final


def test_all_samples_are_generated_and_counted(harness: Harness) -> None:
    body = {"prompt": ["A", "BC"], "max_tokens": 5, "n": 2, "best_of": 4}
    reply = harness.post("/v1/completions", body).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert all(choice["logprobs"] is None for choice in reply["choices"])
    assert reply["usage"]["completion_tokens"] == 2 * 4 * 5
    with_logprobs = harness.post("/v1/completions", {**body, "logprobs": 1}).json()
    assert all(len(one["logprobs"]["tokens"]) == 5 for one in with_logprobs["choices"])


def test_its_bound_is_that_of_n(make_harness: MakeHarness) -> None:
    harness = make_harness(max_prompts=6)
    reply = harness.post("/v1/completions", {"prompt": ["A", "B"], "best_of": 4})
    assert reply.status_code == 400
    assert "2 prompts x n 4 = 8 are more than" in reply.text


@pytest.mark.parametrize("value", [1, None])
def test_one_of_one_is_nothing_special(harness: Harness, value: int | None) -> None:
    body = {"prompt": "A", "max_tokens": 2, "best_of": value, "temperature": 0, "stream": True}
    assert harness.post("/v1/completions", body).status_code == 200
