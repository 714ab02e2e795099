"""`prompt_embeds` offline: arrays, tensors, and mixtures with tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from quire.config.records import EngineConfig
from quire.errors import RequestError
from quire.frontend.inputs.input_processor import InputProcessor
from quire.params import SamplingParams
from quire.protocol import EngineCoreRequest
from quire.tokenizer import Tokenizer

torch = pytest.importorskip("torch")

WIDTH = 4
ROWS = np.random.default_rng(0).standard_normal((40, WIDTH), np.float32)


@pytest.fixture
def processor(make_config: Callable[..., EngineConfig], tokenizer: Tokenizer) -> InputProcessor:
    return InputProcessor(make_config(prompt_embeds_width=WIDTH), tokenizer)


def request_of(processor: InputProcessor, **prompt: Any) -> EngineCoreRequest:
    [request] = processor.process("r", prompt, SamplingParams()).core_requests  # type: ignore[arg-type]
    return request


def spans(request: EngineCoreRequest) -> list[tuple[int, int]]:
    return [(one.first, one.count) for one in request.input_rows]


@pytest.mark.parametrize(
    "value",
    [
        ROWS, np.asfortranarray(ROWS), ROWS[None], ROWS.astype(np.float64),
        torch.from_numpy(ROWS), torch.from_numpy(ROWS).requires_grad_(),
        torch.from_numpy(np.tile(ROWS, 2))[:, :WIDTH],
    ],
    ids=str,
)  # fmt: skip
def test_rows_are_divided_at_the_ends_of_blocks(processor: InputProcessor, value: Any) -> None:
    request = request_of(processor, prompt_embeds=value)
    assert spans(request) == [(0, 16), (16, 16), (32, 8)]
    assert b"".join(one.data for one in request.input_rows) == ROWS.tobytes()
    assert request.prompt_token_ids == [0] * 40


def test_bfloat16_is_widened(processor: InputProcessor) -> None:
    given = torch.from_numpy(ROWS).bfloat16()
    request = request_of(processor, prompt_embeds=given)
    data = b"".join(one.data for one in request.input_rows)
    assert data == given.float().numpy().tobytes()


def test_arrays_that_begin_alike_have_equal_digests_there(processor: InputProcessor) -> None:
    first = request_of(processor, prompt_embeds=ROWS).input_rows
    second = request_of(processor, prompt_embeds=np.concatenate([ROWS[:20], ROWS])).input_rows
    assert first[0] == second[0]
    assert first[1].digest != second[1].digest


def test_a_mask_says_where_tokens_are(processor: InputProcessor) -> None:
    mask = [not 3 <= place < 20 and place != 25 for place in range(40)]
    request = request_of(
        processor, prompt_embeds=ROWS, prompt_token_ids=[*range(40)], prompt_is_token_ids=mask
    )
    assert spans(request) == [(3, 13), (16, 4), (25, 1)]
    assert request.prompt_token_ids == [i if mask[i] else 0 for i in range(40)]
    every = request_of(
        processor, prompt_embeds=ROWS, prompt_token_ids=[1] * 40, prompt_is_token_ids=[True] * 40
    )
    assert not every.input_rows


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({"prompt_embeds": [[1.0] * WIDTH]}, "must be an array or a tensor of shape"),
        ({"prompt_embeds": ROWS[0]}, "must be a 2D tensor"),
        ({"prompt_embeds": ROWS[None, None]}, "must be a 2D tensor"),
        ({"prompt_embeds": ROWS[:, :2]}, "hidden_size 2 does not match"),
        ({"prompt_embeds": ROWS[:0]}, "from 1 to 64 rows"),
        ({"prompt_embeds": np.zeros((65, WIDTH))}, "from 1 to 64 rows"),
        ({"prompt_embeds": np.zeros((64, WIDTH))}, "longer than the maximum model length of 64"),
        ({"prompt_embeds": ROWS.astype(np.int8)}, "dtype int8 is not a floating-point type"),
        ({"prompt_embeds": ROWS.astype(np.complex64)}, "dtype complex64 is not"),
        ({"prompt_embeds": torch.zeros((3, WIDTH), dtype=torch.int32)}, "dtype torch.int32 is not"),
        ({"prompt_embeds": torch.zeros((3, WIDTH)).to_sparse()}, "must be a dense tensor"),
        ({"prompt_embeds": ROWS * np.inf}, "row 0 has a NaN or an infinity"),
        ({"prompt_embeds": np.full((2, WIDTH), 1e39)}, "must be finite in float32"),
        ({"prompt_is_token_ids": [True], "prompt": "a"}, "must come with prompt_embeds"),
        ({"prompt_embeds": ROWS, "prompt_token_ids": [1]}, "same length as prompt_embeds"),
        (
            {"prompt_embeds": ROWS, "prompt_is_token_ids": [True]},
            "same length as prompt_embeds (expected 40, got 1)",
        ),
        ({"prompt_embeds": ROWS, "prompt_is_token_ids": [1] * 40}, "list of booleans"),
        (
            {"prompt_embeds": ROWS, "prompt_is_token_ids": [True] * 40},
            "prompt_is_token_ids must come with prompt_token_ids",
        ),
        (
            {
                "prompt_embeds": ROWS,
                "prompt_token_ids": [999] * 40,
                "prompt_is_token_ids": [True, *[False] * 39],
            },
            "Token id 999 is out of vocabulary",
        ),
    ],
)
def test_what_is_refused(processor: InputProcessor, prompt: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        request_of(processor, **prompt)
    assert message in str(caught.value)


def test_it_must_be_enabled(make_config: Callable[..., EngineConfig], tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="You must set `--enable-prompt-embeds`"):
        request_of(InputProcessor(make_config(), tokenizer), prompt_embeds=ROWS)
