"""`get_tokenizer()` against a tokenizer of transformers on the same files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from chat_templates import LLAMA3_STYLE
from trained_tokenizers import TEXTS, byte_fallback, byte_level, save, word_level

from quire.config.checkpoint.model_files import DEMO_MODEL_PATH
from quire.errors import RequestError
from quire.frontend.hf_tokenizer import HFTokenizer

transformers = pytest.importorskip("transformers")

ROLES = ("bos", "eos", "unk", "pad", "sep", "cls", "mask")
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi there"},
    {"role": "assistant", "content": "Hello, I"},
]

Pair = tuple[HFTokenizer, Any]


def demo(directory: Path) -> Path:
    del directory
    return DEMO_MODEL_PATH


def like_gpt2(directory: Path) -> Path:
    return save(
        directory, byte_level(), eos_token="<|im_end|>", pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"], padding_side="left", model_max_length=64,
    )  # fmt: skip


def like_llama2(directory: Path) -> Path:
    return save(
        directory, byte_fallback(), bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        pad_token="<unk>", chat_template=LLAMA3_STYLE, truncation_side="left",
    )  # fmt: skip


def of_words(directory: Path) -> Path:
    return save(directory, word_level(), unk_token="[UNK]", eos_token="[END]")


@pytest.fixture(params=[demo, like_gpt2, like_llama2, of_words])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    directory = request.param(tmp_path)
    ours = HFTokenizer.from_directory(directory)
    yield ours, transformers.AutoTokenizer.from_pretrained(directory)
    ours.close()


def same(ours: Any, theirs: Any) -> None:
    assert set(ours) == set(theirs)
    for name in ours:
        assert type(ours[name]) is type(theirs[name])
        is_equal = ours[name] == theirs[name]
        assert is_equal if isinstance(is_equal, bool) else is_equal.all(), name


def test_a_call(pair: Pair) -> None:
    ours, theirs = pair
    for text in TEXTS:
        same(ours(text), theirs(text))
        same(ours(text, add_special_tokens=False), theirs(text, add_special_tokens=False))
        assert ours.encode(text) == theirs.encode(text)
        assert ours.tokenize(text) == theirs.tokenize(text)
    same(ours(TEXTS), theirs(TEXTS))
    for length in (1, 3, 7):
        same(
            ours(TEXTS, truncation=True, max_length=length),
            theirs(TEXTS, truncation=True, max_length=length),
        )
    same(ours(TEXTS[0], return_tensors="np"), theirs(TEXTS[0], return_tensors="np"))
    assert ours(TEXTS[0]).input_ids == ours(TEXTS[0])["input_ids"]
    assert ours.num_special_tokens_to_add() == theirs.num_special_tokens_to_add()


def test_padding(pair: Pair) -> None:
    ours, theirs = pair
    if theirs.pad_token is None:
        with pytest.raises(RequestError, match="has none"):
            ours(TEXTS, padding=True)
        return
    for options in (
        {"padding": True},
        {"padding": "max_length", "max_length": 12, "truncation": True},
        {"padding": "longest", "return_tensors": "np"},
    ):
        same(ours(TEXTS, **options), theirs(TEXTS, **options))


def test_ids_to_text(pair: Pair) -> None:
    ours, theirs = pair
    ids = [theirs.encode(text) for text in TEXTS]
    for skip in (False, True):
        for one in ids:
            assert ours.decode(one, skip) == theirs.decode(one, skip)
        assert ours.batch_decode(ids, skip_special_tokens=skip) == theirs.batch_decode(
            ids, skip_special_tokens=skip
        )
        assert ours.convert_ids_to_tokens(ids[0], skip) == theirs.convert_ids_to_tokens(
            ids[0], skip
        )
    assert ours.decode(np.array(ids[0])) == theirs.decode(np.array(ids[0]))
    assert ours.decode(5) == theirs.decode(5)
    assert ours.convert_ids_to_tokens(5) == theirs.convert_ids_to_tokens(5)
    tokens = theirs.convert_ids_to_tokens(ids[0])
    assert ours.convert_tokens_to_ids(tokens) == theirs.convert_tokens_to_ids(tokens)
    assert ours.convert_tokens_to_ids(tokens[0]) == ids[0][0]
    assert ours.convert_tokens_to_ids("no such token") == theirs.convert_tokens_to_ids(
        "no such token"
    )
    assert ours.convert_tokens_to_string(tokens) == theirs.convert_tokens_to_string(tokens)


def test_the_vocabulary(pair: Pair) -> None:
    ours, theirs = pair
    for name in (
        "vocab_size", "is_fast", "padding_side", "truncation_side", "model_max_length",
        "all_special_tokens", "all_special_ids", "chat_template", "added_tokens_encoder",
    ):  # fmt: skip
        assert getattr(ours, name) == getattr(theirs, name), name
    assert len(ours) == len(theirs)
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.get_added_vocab() == theirs.get_added_vocab()
    assert ours.name_or_path == str(theirs.name_or_path)
    for role in ROLES:
        assert getattr(ours, f"{role}_token") == getattr(theirs, f"{role}_token")
        assert getattr(ours, f"{role}_token_id") == getattr(theirs, f"{role}_token_id")
    assert list(ours.model_input_names) == theirs.model_input_names


@pytest.mark.parametrize("make", [demo, like_llama2])
def test_chats(make: Callable[[Path], Path], tmp_path: Path) -> None:
    directory = make(tmp_path)
    ours = HFTokenizer.from_directory(directory)
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    chat = CHAT[:2]
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    cases: list[tuple[Any, dict[str, Any]]] = [
        (chat, {"tokenize": False}),
        (chat, {"tokenize": False, "add_generation_prompt": True}),
        (chat, {"add_generation_prompt": True, "return_dict": False}),
        (CHAT, {"tokenize": False, "continue_final_message": True}),
        (chat, {"tokenize": False, "chat_template": "{{ messages[0].content }}{{ word }}",
                "word": "!"}),
        ([chat, CHAT], {"tokenize": False}),
        (chat, {"truncation": True, "max_length": 5, "return_dict": False}),
    ]  # fmt: skip
    if make is like_llama2:
        cases.append((chat, {"tokenize": False, "tools": [tool]}))
    for conversation, options in cases:
        found = ours.apply_chat_template(conversation, **options)
        assert found == theirs.apply_chat_template(conversation, **options)
    same(ours.apply_chat_template(chat), theirs.apply_chat_template(chat))
    same(
        ours.apply_chat_template(chat, return_tensors="np"),
        theirs.apply_chat_template(chat, return_tensors="np"),
    )
    ours.close()


def test_what_is_refused(tmp_path: Path) -> None:
    ours = HFTokenizer.from_directory(like_gpt2(tmp_path))
    for call, message in (
        (
            lambda: ours("a", return_tensors="pt"),
            "return_tensors must be 'np' or None .torch is not",
        ),
        (lambda: ours("a", "b"), "text_pair is not supported"),
        (lambda: ours("a", truncation="only_second"), "truncation must be True or False"),
        (lambda: ours("a", padding="shortest"), "padding must be True"),
        (lambda: ours("a", max_length=0), "max_length must be a positive integer"),
        (lambda: ours([1]), "text must be a string"),
        (lambda: ours(["a", "a b"], return_tensors="np"), "sequences of equal length"),
        (lambda: ours.apply_chat_template([]), "at least one message"),
        (lambda: ours.apply_chat_template(CHAT), "this model has no chat template"),
        (lambda: ours.apply_chat_template(CHAT, tools=[print]), "tools must be a list"),
    ):
        with pytest.raises(RequestError, match=message):
            call()
    assert HFTokenizer.from_pretrained(tmp_path).get_vocab() == ours.get_vocab()
    assert ours.max_chars_per_token == max(map(len, ours.get_vocab()))
    assert isinstance(ours.backend_tokenizer, tokenizers.Tokenizer)
    assert "HFTokenizer(name_or_path=" in repr(ours)
