"""`prompt_embeds` over HTTP: three kinds of files, and what is refused."""

from __future__ import annotations

import base64
import io
import pickle
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from .conftest import Harness, MakeHarness

torch = pytest.importorskip("torch")

WIDTH = 4
ROWS = np.arange(12, dtype=np.float32).reshape(3, WIDTH) / 7


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def numpy_file(array: Any, **options: Any) -> str:
    file = io.BytesIO()
    np.save(file, array, **options)
    return text(file.getvalue())


def torch_file(value: Any, **options: Any) -> str:
    file = io.BytesIO()
    torch.save(value, file, **options)
    return text(file.getvalue())


def safetensors_file(**tensors: Any) -> str:
    return text(safetensors.numpy.save(tensors))


TENSOR = torch.from_numpy(ROWS)
GOOD = {
    "numpy": numpy_file(ROWS),
    "lines": base64.encodebytes(base64.b64decode(numpy_file(ROWS))).decode(),
    "half": numpy_file(ROWS.astype(np.float16)),
    "columns": numpy_file(np.asfortranarray(ROWS)),
    "torch": torch_file(TENSOR),
    "legacy": torch_file(TENSOR, _use_new_zipfile_serialization=False),
    "bfloat16": torch_file(TENSOR.bfloat16()),
    "a view": torch_file(torch.from_numpy(np.tile(ROWS, 2))[:, :WIDTH]),
    "batch of one": torch_file(TENSOR[None]),
    "safetensors": safetensors_file(any_name=ROWS),
}
BAD = {
    "no base64": ("%%%", "must be base64"),
    "empty": ("", "could not be deserialized"),
    "bytes": (text(b"hello there, this is text"), "could not be deserialized"),
    "pickle": (text(pickle.dumps([1, 2])), "could not be deserialized"),
    "a class": (torch_file({"a": torch.nn.Linear(2, 2)}), "could not be deserialized"),
    "objects": (numpy_file(np.array([[None]]), allow_pickle=True), "could not be deserialized"),
    "two": (safetensors_file(a=ROWS, b=ROWS), "must have one tensor, not 2"),
    "cut": (GOOD["torch"][:400], "could not be deserialized"),
    "sizes": (text(base64.b64decode(GOOD["numpy"])[:-8]), "could not be deserialized"),
    "header": (
        text(base64.b64decode(GOOD["numpy"])[:60] + b"\n" * 90),
        "could not be deserialized",
    ),
    "integers": (numpy_file(ROWS.astype(np.int64)), "dtype int64 is not a floating-point type"),
    "1-D": (numpy_file(ROWS[0]), "2D tensor of shape (num_tokens, hidden_size); got shape (4,)."),
    "width": (numpy_file(ROWS[:, :3]), "hidden_size 3 does not match the model's hidden_size 4."),
    "none": (numpy_file(ROWS[:0]), "from 1 to 512 rows"),
    "long": (numpy_file(np.zeros((513, WIDTH), np.float32)), "from 1 to 512 rows"),
    "NaN": (numpy_file(np.where(ROWS > 1, np.nan, ROWS)), "row 2 has a NaN or an infinity"),
    "large": (numpy_file(ROWS.astype(np.float64) * 1e300), "must be finite in float32"),
}


@pytest.fixture
def harness(make_harness: MakeHarness) -> Harness:
    return make_harness(scheduler={"prompt_embeds_width": WIDTH})


@pytest.mark.parametrize("name", GOOD)
def test_a_file_is_a_prompt(harness: Harness, name: str) -> None:
    """The fake core counts up from the last token id, which is that of a placeholder."""
    body = {"prompt_embeds": GOOD[name], "max_tokens": 2, "return_token_ids": True}
    reply = harness.post("/v1/completions", body)
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"][0]["token_ids"] == [1, 2]
    assert reply.json()["usage"]["prompt_tokens"] == 3


def test_embeds_come_before_prompts(harness: Harness) -> None:
    body = {"prompt_embeds": [GOOD["numpy"], GOOD["torch"]], "prompt": "A", "max_tokens": 1}
    reply = harness.post("/v1/completions", body).json()
    assert [one["text"] for one in reply["choices"]][2] == "B"
    assert reply["usage"]["prompt_tokens"] == 7


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused(harness: Harness, name: str) -> None:
    given, message = BAD[name]
    reply = harness.post("/v1/completions", {"prompt_embeds": given, "max_tokens": 1})
    assert reply.status_code == 400, reply.text
    assert message in reply.json()["error"]["message"]
    assert reply.json()["error"]["param"] == "prompt_embeds"
    assert "/tmp" not in reply.text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"echo": True}, "Echo is unsupported with prompt embeds."),
        ({"prompt_logprobs": 1}, "prompt_logprobs is not compatible with prompt embeds"),
        ({"truncate_prompt_tokens": 2}, "truncate_prompt_tokens is not supported"),
        ({"prompt_embeds": 5}, "prompt_embeds"),
        ({"prompt_embeds": []}, "Either prompt or prompt_embeds must be provided and non-empty."),
        ({"prompt_embeds": None}, "Either prompt or prompt_embeds must be provided"),
    ],
)
def test_fields_that_do_not_fit(harness: Harness, fields: dict[str, Any], message: str) -> None:
    body = {"prompt_embeds": GOOD["numpy"], "max_tokens": 1, **fields}
    reply = harness.post("/v1/completions", body)
    assert reply.status_code == 400
    assert message in reply.json()["error"]["message"]


def test_a_server_must_be_asked_to_take_them(make_harness: MakeHarness) -> None:
    reply = make_harness().post("/v1/completions", {"prompt_embeds": GOOD["numpy"]})
    assert reply.status_code == 400
    wanted = "You must set `--enable-prompt-embeds` to input `prompt_embeds`."
    assert reply.json()["error"]["message"] == wanted


def chat_of(*content: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}], "max_tokens": 1, **fields}


def embeds_part(data: str) -> dict[str, str]:
    return {"type": "prompt_embeds", "data": data}


def test_a_chat_has_rows_among_its_text(harness: Harness) -> None:
    """As the text that a mark would be, with the rows in place of the mark."""
    words = {"type": "text", "text": "AB"}
    plain = harness.post("/tokenize", chat_of(words, words)).json()["tokens"]
    rows = [embeds_part(GOOD["numpy"]), embeds_part(GOOD["torch"])]
    found = harness.post("/tokenize", chat_of(words, rows[0], words, rows[1])).json()["tokens"]
    assert sum(token == 0 for token in found) == 6
    reply = harness.post("/v1/chat/completions", chat_of(words, rows[0], words, rows[1]))
    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["prompt_tokens"] == len(found)
    assert [token for token in found if token in plain and token][:2] == plain[:2]


@pytest.mark.parametrize(
    ("part", "fields", "message"),
    [
        ({"type": "prompt_embeds"}, {}, "must have `data`"),
        (embeds_part("%%%"), {}, "must be base64"),
        (embeds_part(BAD["width"][0]), {}, "hidden_size 3 does not match"),
        (embeds_part(GOOD["numpy"]), {"truncate_prompt_tokens": 3}, "is not supported"),
    ],
)
def test_parts_of_a_chat_that_are_refused(
    harness: Harness, part: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    reply = harness.post("/v1/chat/completions", chat_of(part, **fields))
    assert reply.status_code == 400
    assert message in reply.json()["error"]["message"]
