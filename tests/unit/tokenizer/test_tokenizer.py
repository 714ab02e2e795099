"""`Tokenizer` against transformers on the same files, and what it says of bad files."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from trained_tokenizers import TEXTS, byte_fallback, byte_level, metaspace, save, word_level

from quire.errors import CheckpointError, RequestError
from quire.tokenizer import Tokenizer
from quire.tokenizer.tokenizer import SpecialFrame

transformers = pytest.importorskip("transformers")

KINDS = [byte_level, byte_fallback, word_level, metaspace]


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("add_special_tokens", [True, False])
def test_encodes_and_decodes_as_transformers(
    tmp_path: Path, make: Callable[[], tokenizers.Tokenizer], add_special_tokens: bool
) -> None:
    ours = Tokenizer.from_directory(save(tmp_path, make()))
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    encoded = ours.encode_batch(TEXTS, add_special_tokens=add_special_tokens)
    for text, ids in zip(TEXTS, encoded, strict=True):
        assert ids == theirs.encode(text, add_special_tokens=add_special_tokens)
        assert ids == ours.encode(text, add_special_tokens=add_special_tokens)
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(
                ids, skip_special_tokens=skip
            )


def test_adds_special_tokens_of_the_config_as_transformers(tmp_path: Path) -> None:
    backend = byte_level()
    size = backend.get_vocab_size()
    config = {
        "eos_token": "<|im_end|>",
        "pad_token": {"__type": "AddedToken", "content": "<|pad|>", "lstrip": True},
        "additional_special_tokens": ["<|fim|>", "quick"],
        "add_bos_token": True,
        "bos_token": "<|endoftext|>",
    }
    ours = Tokenizer.from_directory(save(tmp_path, backend, **config))
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    text = "a <|pad|>b<|fim|> quick<|im_end|> brown"
    assert ours.encode(text) == theirs.encode(text)
    assert ours.eos_token_id == theirs.eos_token_id
    assert ours.pad_token_id == theirs.pad_token_id
    assert ours.bos_token_id == theirs.bos_token_id
    assert ours.vocab_size == len(theirs)
    assert ours.max_token_id >= size
    assert ours.special_token_ids >= {ours.pad_token_id, ours.eos_token_id}


@pytest.mark.parametrize("names", [None, ["input_ids"], ["input_ids", "token_type_ids"]])
@pytest.mark.parametrize("kind", [None, "BertTokenizerFast", "DistilBertTokenizer",
                                  "PreTrainedTokenizerFast", "ElectraTokenizer"])  # fmt: skip
def test_types_of_tokens_as_in_transformers(
    kind: str | None, names: list[str] | None, tmp_path: Path
) -> None:
    """A tokenizer that does not give them leaves all at 0."""
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nred\nsky\n")
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    said = {"tokenizer_class": kind, "model_input_names": names}
    config = {key: value for key, value in said.items() if value is not None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    wanted = transformers.AutoTokenizer.from_pretrained(tmp_path)("red", "sky")
    found = Tokenizer.from_directory(tmp_path).encode_pair("red", "sky")
    assert found.ids == wanted["input_ids"]
    assert found.type_ids == wanted.get("token_type_ids", [0] * 5)


def test_names_of_inputs_are_a_list(tmp_path: Path) -> None:
    save(tmp_path, byte_level(), model_input_names="input_ids")
    with pytest.raises(CheckpointError, match="model_input_names must be a list of names"):
        Tokenizer.from_directory(tmp_path)


def test_ignores_truncation_and_padding_in_the_file(tmp_path: Path) -> None:
    backend = byte_level()
    backend.enable_truncation(3)
    backend.enable_padding(length=8, pad_id=0, pad_token="<|endoftext|>")
    ours = Tokenizer.from_directory(save(tmp_path, backend))
    ids = ours.encode("The quick brown fox jumps over the lazy dog")
    assert ours.decode(ids, skip_special_tokens=False) == (
        "The quick brown fox jumps over the lazy dog"
    )


def test_a_tokenizer_larger_than_the_embedding_is_refused(tmp_path: Path) -> None:
    ours = Tokenizer.from_directory(save(tmp_path, byte_level()))
    ours.check_fits(ours.max_token_id + 1, "model")
    with pytest.raises(CheckpointError, match=rf"has only {ours.max_token_id} rows"):
        ours.check_fits(ours.max_token_id, "model")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no tokenizer: no tokenizer.json, vocab.json"),
        ({"tokenizer.json": "{"}, "tokenizers library refuses"),
        ({"tokenizer.json": "[]"}, "tokenizers library refuses"),
        ({"tokenizer.json": '{"model": {"type": "BPE"}}'}, "tokenizers library refuses"),
        (
            {"tokenizer.model": "x"},
            r"tokenizer\.model: a number at 1 does not end",
        ),
        ({"vocab.json": "{}"}, "no tokenizer"),
        ({"vocab.json": "[]", "merges.txt": "a b"}, "expected a JSON object"),
        ({"vocab.json": '{"a": "b"}', "merges.txt": ""}, "no id that is a whole number"),
        ({"vocab.json": '{"a": 1, "b": 1}', "merges.txt": ""}, "have the same id"),
        ({"vocab.json": '{"a": 0}', "merges.txt": "x y"}, "tokenizers library refuses"),
        ({"tokenizer_config.json": "{]"}, "not valid JSON"),
        ({"tokenizer_config.json": '{"eos_token": 3}'}, "eos_token is neither"),
        (
            {"tokenizer_config.json": '{"added_tokens_decoder": {"x": "y"}}'},
            "which must be a number from",
        ),
        ({"tokenizer_config.json": '{"added_tokens_decoder": 5}'}, "no JSON object"),
        ({"added_tokens.json": '{"a": -1}'}, "which must be a number from"),
        (
            {
                "vocab.json": "{}",
                "merges.txt": "",
                "tokenizer_config.json": '{"tokenizer_class": "LlamaTokenizer"}',
            },
            "a LlamaTokenizer cannot be built",
        ),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path: Path, files: dict[str, str], message: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.from_directory(tmp_path)


def test_damaged_tokenizer_files_give_our_error_alone(tmp_path: Path) -> None:
    save(tmp_path, byte_level(300))
    path = tmp_path / "tokenizer.json"
    whole = path.read_text()
    fields = json.loads(whole)
    for damaged in (
        whole[: len(whole) // 2],
        json.dumps({**fields, "decoder": {"type": "Nope"}}),
        json.dumps({**fields, "model": {**fields["model"], "vocab": {"a": -5}}}),
        json.dumps({**fields, "added_tokens": [{"id": 3}]}),
        json.dumps({**fields, "post_processor": 5}),
    ):
        path.write_text(damaged)
        with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
            Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize("make", KINDS)
def test_ids_that_are_no_tokens_decode_to_nothing(
    make: Callable[[], tokenizers.Tokenizer],
) -> None:
    ours = Tokenizer(make(), {})
    ids = ours.encode("The quick")
    strange = [-1, ours.max_token_id + 1, 2**31, 2**32, 2**70]
    assert ours.decode([*strange, *ids, *strange]) == ours.decode(ids)
    assert [ours.id_to_token(token_id) for token_id in strange] == [None] * 5


@pytest.mark.parametrize("letter", ["a", "A", "\u0101"])
def test_special_tokens_of_a_small_vocabulary(letter: str) -> None:
    rust = tokenizers.Tokenizer(tokenizers.models.BPE({"<s>": 0, "</s>": 1, letter: 2}, []))
    rust.add_special_tokens(["<s>", "</s>"])
    frame = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    rust.post_processor = frame
    assert Tokenizer(rust, {}).special_frame == SpecialFrame([0], [1])
    rust.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s>", special_tokens=[("<s>", 0)]
    )
    with pytest.raises(RequestError, match="leaves out the text"):
        _ = Tokenizer(rust, {}).special_frame


def test_other_threads_run_while_texts_are_encoded() -> None:
    """Also while types and offsets are found: a pattern of a checkpoint can take seconds."""
    rust = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, []))
    rust.pre_tokenizer = tokenizers.pre_tokenizers.Split(
        tokenizers.Regex("(a+)+$"), behavior="isolated"
    )
    tokenizer, text = Tokenizer(rust, {}), ("a" * 18 + "b") * 40
    for work in (
        lambda: tokenizer.encode(text),
        lambda: tokenizer.encode_pair(text, "a"),
        lambda: tokenizer.beginning(text, 5),
        lambda: tokenizer.ending(text, 5),
    ):
        thread = threading.Thread(target=work)
        turns = 0
        thread.start()
        while thread.is_alive():
            turns += 1
            time.sleep(0.005)
        assert turns > 8
