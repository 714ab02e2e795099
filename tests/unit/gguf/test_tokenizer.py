"""A tokenizer made of a GGUF file's metadata gives the ids of the tokenizer that it came from."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import regex
from gguf_files import Typed, byte_level_metadata, float_tensors, gguf_bytes
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from trained_tokenizers import TEXTS, byte_fallback, byte_level

from quire.errors import CheckpointError, ModelError, UnsupportedModelError
from quire.gguf.keys import Keys
from quire.gguf.split import read_headers
from quire.gguf.tokenizers.files import tokenizer_files
from quire.gguf.tokenizers.sentence_pieces import derived_merges
from quire.gguf.tokenizers.word_patterns import WORD_PATTERNS

MORE_TEXTS = [
    *TEXTS, "DON'T we'Ve I'M", "x=1;y=22;z=333;w=4444", "a\r\n\r\n  b\t\n", "   ",
    "日本語とEnglish混ぜ",
    "ﬁ ligature e\u0301 composed é", "٣٤٥ ½ Ⅻ", "<|im_start|><|im_end|> <tool call>", "a" * 200,
    "foo/bar//baz\n/qux", "UPPERlowerMixed CamelCase",
    "1 12 123 1234 12345 123456 1234567 a1234b", "x" + " " * 700 + "y",
    "नमस्ते दुनिया", "\u2581under", "tab\tend\n",
]  # fmt: skip
NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6


def _build(
    tmp_path: Path, metadata: dict[str, Any], architecture: str = "llama"
) -> tuple[Tokenizer, dict[str, Any]]:
    import numpy as np

    tokens = metadata.get("tokenizer.ggml.tokens", ["x"])
    path = tmp_path / "m.gguf"
    table = {"token_embd.weight": np.zeros((len(tokens), 1), np.float32)}
    path.write_bytes(
        gguf_bytes({"general.architecture": architecture, **metadata}, float_tensors(table))
    )
    files = tokenizer_files(Keys(read_headers([path])))
    return Tokenizer.from_str(files["tokenizer.json"]), json.loads(files["tokenizer_config.json"])


def _metadata(tokenizer: Tokenizer, model: str, **more: Any) -> dict[str, Any]:
    """What llama.cpp's conversion writes of a BPE tokenizer."""
    state = json.loads(tokenizer.to_str())
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    kinds = [NORMAL] * size
    for token in state["added_tokens"]:
        kinds[token["id"]] = CONTROL if token["special"] else USER
    tokens = [tokenizer.id_to_token(token_id) for token_id in range(size)]
    for token_id, text in enumerate(tokens):
        if model == "llama" and text.startswith("<0x"):
            kinds[token_id] = BYTE
        if text == "<unk>":
            kinds[token_id] = UNKNOWN
    pairs = [m if isinstance(m, list) else m.split(" ") for m in state["model"]["merges"]]
    found = {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [Typed("i32", kind) for kind in kinds],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in pairs],
    }
    return {**found, **{f"tokenizer.ggml.{key}": value for key, value in more.items()}}


def _same(found: Tokenizer, wanted: Tokenizer) -> None:
    for text in MORE_TEXTS:
        ids = wanted.encode(text).ids
        assert found.encode(text).ids == ids, text
        for skips in (True, False):
            assert found.decode(ids, skip_special_tokens=skips) == wanted.decode(
                ids, skip_special_tokens=skips
            ), text


def test_byte_level(tmp_path: Path) -> None:
    wanted = byte_level()
    found, _ = _build(tmp_path, _metadata(wanted, "gpt2", pre="gpt-2"))
    _same(found, wanted)


_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace("{1,3}", "")
_SEED_CODER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(regex: str) -> Any:
    """As Llama 3's, Qwen's and Mistral's tokenizer.json have it."""
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), "isolated"), letters])


def _splits(*steps: Any) -> Any:
    """Of patterns and other steps."""
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    found = [
        pre_tokenizers.Split(Regex(step), "isolated") if isinstance(step, str) else step
        for step in steps
    ]
    return pre_tokenizers.Sequence([*found, letters])


_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_EXAONE_MOE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    r"\s?[A-Za-z\u00e4\u00f6\u00fc\u00df\u00e9\u0410-\u044f\u0451]+",  # of those in the texts
    r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    pre_tokenizers.Digits(individual_digits=True),
)
_CHAMELEON = (
    "<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )",
    pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation("isolated"),
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
)  # fmt: skip
_JAIS2 = _LLAMA3.replace(
    r"|\s+(?!\S)|\s+",
    r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)"
    r"|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
)


def _digits() -> Any:
    """As SmolLM's tokenizer.json has it."""
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("pre", "own"),
    [("llama-bpe", _split(_LLAMA3)), ("qwen2", _split(_QWEN2)), ("tekken", _split(_TEKKEN)),
     ("smollm", _digits()), ("glm4", _split(_LLAMA3)),
     ("seed-coder", _split(_SEED_CODER)), ("bailingmoe", _split(_BAILING)),
     ("exaone-moe", _split(_EXAONE_MOE)), ("deepseek-llm", _splits(*_DEEPSEEK_LLM)),
     ("chameleon", _splits(*_CHAMELEON)),
     ("minicpm5", _splits(r"\p{N}{1,3}", _LLAMA3.replace("{1,3}", "+"))),
     ("superbpe", _splits(r"\p{N}+", r"(?=(\d{3})+(?!\d))")), ("jais-2", _split(_JAIS2))],
)  # fmt: skip
def test_words_are_cut_as_in_the_models_own_files(pre: str, own: Any, tmp_path: Path) -> None:
    """The cuts themselves, and not only ids, which a small vocabulary may hide."""
    found, _ = _build(tmp_path, _metadata(byte_level(), "gpt2", pre=pre, add_bos_token=False))
    for text in MORE_TEXTS:
        wanted = own.pre_tokenize_str(text)
        assert found.pre_tokenizer.pre_tokenize_str(text) == wanted, text


_KIMI_LETTERS = (
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
)
_KIMI = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?" + "*".join(_KIMI_LETTERS) + r"+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?" + "+".join(_KIMI_LETTERS) + r"*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
    ]
)  # fmt: skip
"""As Moonshot's own tokenizer has it."""


def test_kimis_words_are_cut_as_by_its_own_tokenizer(tmp_path: Path) -> None:
    """Its files have no tokenizer.json; another library computes the pattern."""
    metadata = _metadata(byte_level(), "gpt2", pre="kimi-k2", add_bos_token=False)
    found, _ = _build(tmp_path, metadata)
    pattern = regex.compile(_KIMI, regex.V1)
    for text in [*MORE_TEXTS, "getUserName漢字ひらがな iPhone's 中文 text。\n\n 12345 ÀÉ漢a"]:
        wanted = [match.span() for match in pattern.finditer(text)]
        assert [span for _, span in found.pre_tokenizer.pre_tokenize_str(text)] == wanted, text


@pytest.mark.sweep(24)
@pytest.mark.parametrize("pre", WORD_PATTERNS)
def test_every_known_name_makes_a_tokenizer_that_loses_nothing(pre: str, tmp_path: Path) -> None:
    metadata = _metadata(byte_level(), "gpt2", pre=pre, add_bos_token=False)
    found, _ = _build(tmp_path, metadata)
    for text in MORE_TEXTS:
        wanted = found.normalizer.normalize_str(text) if found.normalizer else text
        assert found.decode(found.encode(text).ids, skip_special_tokens=False) == wanted


def test_digits_are_cut_from_the_right(tmp_path: Path) -> None:
    found, _ = _build(tmp_path, _metadata(byte_level(), "gpt2", pre="afmoe", add_bos_token=False))
    for digits in ("1", "12", "123", "1234", "12345", "123456", "1234567", "٣٤٥٣"):
        [*parts, _] = found.pre_tokenizer.pre_tokenize_str(f"{digits}a")
        ends = list(range(len(digits), 0, -3))[::-1]
        assert [span for _, span in parts] == list(zip([0, *ends], ends, strict=False))


@pytest.mark.parametrize(
    ("pre", "is_whole"), [("glm4", True), ("glm5", True), ("chatglm-bpe", False)]
)
def test_a_word_that_is_a_token(pre: str, is_whole: bool, tmp_path: Path) -> None:
    """Whether it is that token although no merges lead to it."""
    metadata = _metadata(byte_level(), "gpt2", pre=pre)
    metadata["tokenizer.ggml.tokens"].append("xqzj")
    metadata["tokenizer.ggml.token_type"].append(Typed("i32", NORMAL))
    found, _ = _build(tmp_path, metadata)
    last = len(metadata["tokenizer.ggml.tokens"]) - 1
    assert (found.encode("xqzj").ids == [last]) == is_whole


def test_byte_level_files_say_that_letters_are_lowered(tmp_path: Path) -> None:
    metadata = _metadata(byte_level(), "gpt2", pre="qwen2")
    metadata["tokenizer.ggml.normalizer.lowercase"] = True
    found, _ = _build(tmp_path, metadata)
    assert found.encode("ABC É").ids == found.encode("abc é").ids != found.encode("abc e").ids
    metadata["tokenizer.ggml.normalizer.strip_accents"] = True
    found, _ = _build(tmp_path, metadata)
    assert found.encode("ABC É").ids == found.encode("abc e").ids


def test_words_between_blanks(tmp_path: Path) -> None:
    """Jina Embeddings 2 for Chinese: characters and merges of them, without blanks."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *"abd中.", "ab", "中中"]
    metadata = {
        "tokenizer.ggml.model": "whitespace",
        "tokenizer.ggml.pre": "whitespace",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [Typed("i32", CONTROL)] * 4 + [Typed("i32", NORMAL)] * 7,
        "tokenizer.ggml.merges": ["a b", "中 中"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
        "tokenizer.ggml.normalizer.lowercase": True,
    }
    found, _ = _build(tmp_path, metadata, "jina-bert-v2")
    assert found.encode(" AB  abd.\n中中z").ids == [0, 9, 9, 6, 8, 10, 3, 2]


@pytest.mark.parametrize("charsmap", [2**31 - 1, "ab", [300], [0.5], ["a"], True])
def test_a_charsmap_is_a_list_of_bytes(charsmap: Any, tmp_path: Path) -> None:
    """A number would be so many zeros."""
    metadata = {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": ["<s>", "</s>", "<unk>", "a"],
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0, -1.0],
        "tokenizer.ggml.precompiled_charsmap": charsmap,
    }
    with pytest.raises(CheckpointError, match=r"precompiled_charsmap .* must be a list of bytes"):
        _build(tmp_path, metadata, "bert")


def test_a_start_token_where_the_kind_or_the_file_says_so(tmp_path: Path) -> None:
    base = {"bos_token_id": 1, "eos_token_id": 2}
    tokenizer = byte_level()
    for pre, flags, wanted in [
        ("llama-bpe", {}, [1]), ("llama-bpe", {"add_bos_token": False}, []), ("qwen2", {}, []),
        ("qwen2", {"add_bos_token": True}, [1]),
    ]:  # fmt: skip
        metadata = _metadata(tokenizer, "gpt2", pre=pre, **base, **flags)
        found, config = _build(tmp_path, metadata)
        assert found.encode("").ids == wanted
        assert config["bos_token"] == "<|im_start|>"
    found, _ = _build(tmp_path, _metadata(tokenizer, "gpt2", pre="qwen2", **base,
                                          add_eos_token=True))  # fmt: skip
    assert found.encode("").ids == [2]


def test_sentence_pieces_with_merges(tmp_path: Path) -> None:
    wanted = byte_fallback()
    special = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    found, _ = _build(tmp_path, _metadata(wanted, "llama", **special))
    _same(found, wanted)


def test_merges_derived_from_scores(tmp_path: Path) -> None:
    """Beside transformers, on the same pieces."""
    convert = pytest.importorskip("transformers.tokenization_utils_base")
    pieces = list(dict.fromkeys("abcdefgh▁") | dict.fromkeys(
        ["ab", "bc", "abc", "▁a", "▁ab", "▁abc", "cd", "abcd", "de", "bcd", "gh", "▁g"]
    ))  # fmt: skip
    scores = [-float((7 * index) % 5) for index in range(len(pieces))]
    ids = {piece: index for index, piece in enumerate(pieces)}
    wanted = convert.generate_merges(ids, dict(zip(pieces, scores, strict=True)))
    assert derived_merges(tmp_path, pieces, scores) == [list(pair) for pair in wanted]


def test_sentence_pieces_by_their_scores(tmp_path: Path) -> None:
    """SentencePiece's rule: of all neighbours, those of the highest score join first."""
    wanted = byte_fallback()
    special = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    metadata = _metadata(wanted, "llama", **special)
    tokens = metadata["tokenizer.ggml.tokens"]
    del metadata["tokenizer.ggml.merges"]
    metadata["tokenizer.ggml.scores"] = [-float(index) for index in range(len(tokens))]
    found, _ = _build(tmp_path, metadata)
    scores = {text: -index for index, text in enumerate(tokens)}
    for text in MORE_TEXTS:
        if any(token in text for token in ("<|", "<tool", "<s>")):
            continue
        assert found.encode(text, add_special_tokens=False).ids == _by_scores(text, tokens, scores)


def _by_scores(text: str, tokens: list[str], scores: dict[str, int]) -> list[int]:
    parts = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        pairs = [
            (scores[a + b], -i) for i, (a, b) in enumerate(itertools.pairwise(parts))
            if a + b in scores
        ]  # fmt: skip
        if not pairs:
            break
        index = -max(pairs)[1]
        parts[index : index + 2] = [parts[index] + parts[index + 1]]
    found: list[int] = []
    for part in parts:
        if part in scores:
            found.append(tokens.index(part))
        else:
            found += [tokens.index(f"<0x{byte:02X}>") for byte in part.encode()]
    return found


def test_gemma_has_no_first_space_and_runs_of_spaces(tmp_path: Path) -> None:
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)),
              "  ", "    ", "▁", "a", "▁a", "aa"]  # fmt: skip
    kinds = [CONTROL] * 3 + [UNKNOWN] + [BYTE] * 256 + [USER] * 2 + [NORMAL] * 4
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.token_type": [Typed("i32", kind) for kind in kinds],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 3,
    }
    found, _ = _build(tmp_path, metadata, "gemma2")
    assert found.encode("a").ids == [2, 263]
    assert found.encode("a    a").ids == [2, 263, 261, 263]
    assert found.decode(found.encode(" a  aa é").ids) == " a  aa é"


def test_gemma4_has_merges_and_no_first_space(tmp_path: Path) -> None:
    wanted = byte_fallback(strip=False)
    wanted.normalizer = normalizers.Replace(" ", "▁")
    special = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    metadata = _metadata(wanted, "llama", add_space_prefix=False, add_bos_token=True, **special)
    found, _ = _build(tmp_path, {**metadata, "tokenizer.ggml.model": "gemma4"}, "gemma4")
    _same(found, wanted)
    del metadata["tokenizer.ggml.add_space_prefix"]
    for pre, says, bos in [("granite-embed-multi-311m", False, [1]), ("sarvam-moe", None, [])]:
        flag = {} if says is None else {"tokenizer.ggml.add_bos_token": says}
        del metadata["tokenizer.ggml.add_bos_token"]
        own = {**metadata, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, **flag}
        metadata["tokenizer.ggml.add_bos_token"] = True
        found, _ = _build(tmp_path, own)
        for text in MORE_TEXTS:
            ids = wanted.encode(text, add_special_tokens=False).ids
            assert found.encode(text).ids == bos + ids


def test_chat_templates(tmp_path: Path) -> None:
    base = _metadata(byte_level(), "gpt2", pre="gpt-2")
    _, config = _build(tmp_path, {**base, "tokenizer.chat_template": "{{ a }}"})
    assert config["chat_template"] == "{{ a }}"
    named = {"tokenizer.chat_template": "{{ a }}", "tokenizer.chat_template.tool_use": "{{ b }}"}
    _, config = _build(tmp_path, {**base, **named})
    assert config["chat_template"] == [
        {"name": "default", "template": "{{ a }}"}, {"name": "tool_use", "template": "{{ b }}"},
    ]  # fmt: skip


def test_a_whole_tokenizer_in_the_file_is_taken(tmp_path: Path) -> None:
    wanted = byte_level()
    metadata = _metadata(wanted, "rwkv")
    found, _ = _build(tmp_path, {**metadata, "tokenizer.huggingface.json": wanted.to_str()})
    _same(found, wanted)


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"pre": "never-heard-of"}, UnsupportedModelError, r"'never-heard-of', so .*llama-bpe"),
        ({"pre": None}, UnsupportedModelError, r"tokenizer.ggml.pre is None"),
        (
            {"model": "rwkv"},
            UnsupportedModelError,
            r"is 'rwkv'; gpt2, llama, gemma4, bert, t5 and whitespace are read",
        ),
        ({"tokens": None}, CheckpointError, "has 0 tokens"),
        ({"tokens": [1, 2]}, CheckpointError, "it must be a list of texts"),
        ({"merges": None}, CheckpointError, r"merges is missing"),
        ({"merges": ["ab"]}, CheckpointError, "'ab', which must be a pair"),
        ({"token_type": [Typed("i32", 1)]}, CheckpointError, "a list of 300 numbers; it has 1"),
        ({"model": "llama", "scores": [0.5]}, CheckpointError, "a list of 300 numbers; it has 1"),
        (
            {"model": "llama", "merges": None, "scores": [float("nan")] * 300},
            CheckpointError,
            "all scores of tokens must be finite numbers",
        ),
        ({"bos_token_id": 300}, CheckpointError, "is 300; it must be an id below 300"),
        ({"bos_token_id": "x"}, CheckpointError, "must be a whole number"),
        ({"add_bos_token": 1}, CheckpointError, "must be true or false"),
    ],
)
def test_what_is_wrong_is_said(
    changes: dict[str, Any], error: type[ModelError], match: str, tmp_path: Path
) -> None:
    metadata = byte_level_metadata(300)
    for key, value in changes.items():
        if value is None:
            metadata.pop(f"tokenizer.ggml.{key}")
        else:
            metadata[f"tokenizer.ggml.{key}"] = value
    with pytest.raises(error, match=match):
        _build(tmp_path, metadata)


def test_more_tokens_than_rows_are_refused(tmp_path: Path) -> None:
    import numpy as np

    path = tmp_path / "m.gguf"
    metadata = {"general.architecture": "llama", **byte_level_metadata(300)}
    table = {"token_embd.weight": np.zeros((299, 1), np.float32)}
    path.write_bytes(gguf_bytes(metadata, float_tensors(table)))
    with pytest.raises(CheckpointError, match=r"300 tokens, and token_embd.weight has 299 rows"):
        tokenizer_files(Keys(read_headers([path])))
