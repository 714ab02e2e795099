"""How byte-level vocabularies cut a text into words: a row for each `tokenizer.ggml.pre`.

The patterns are those of the models' own tokenizer.json; names: llama.cpp, src/llama-vocab.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _cl100k(digits: str) -> str:
    return (
        rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
    )


def _o200k(digits: str, endings: str) -> str:
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    return (
        rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{endings}"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{endings}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


_LLAMA3 = _cl100k(r"\p{N}{1,3}")
_QWEN2 = _cl100k(r"\p{N}")
_QWEN35 = (
    rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_DEEPSEEK_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_SEED_CODER = (
    rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
)
_DIGITS_FROM_THE_RIGHT = r"\d{1,3}(?=(?:\d{3})*\b)"
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"


@dataclass(frozen=True, slots=True)
class WordPattern:
    """What happens to a text before merges."""

    splits: tuple[str, ...]
    """Regular expressions; each cuts what the ones before have left."""
    ignore_merges: bool = False
    """A word that is a token becomes that token, whatever the merges say."""
    add_bos: bool = False
    """Whether a start token comes first, where the file does not say."""
    nfc: bool = False
    """Texts are normalised to composed characters."""


def _rows(pattern: WordPattern, *names: str) -> dict[str, WordPattern]:
    return dict.fromkeys(names, pattern)


WORD_PATTERNS: dict[str, WordPattern] = {
    **_rows(
        WordPattern((_LLAMA3,), ignore_merges=True, add_bos=True),
        "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
        "jina-v5-nano",
    ),
    **_rows(WordPattern((_LLAMA3,)), "dbrx", "smaug-bpe", "glm4", "chatglm-bpe"),
    **_rows(
        WordPattern((_QWEN2,), nfc=True),
        "qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez",
    ),
    **_rows(WordPattern((_QWEN2,)), "stablelm2", "hunyuan", "solar-open", "grok-2"),
    **_rows(WordPattern((_QWEN35,), nfc=True), "qwen35"),
    **_rows(
        WordPattern((_o200k(r"\p{N}", ""),), ignore_merges=True, add_bos=True), "tekken"
    ),
    **_rows(
        WordPattern((_o200k(r"\p{N}{1,3}", f"{_ENDINGS}?"),)),
        "gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2",
    ),
    **_rows(
        WordPattern((_DIGITS_FROM_THE_RIGHT, _o200k(r"\p{N}{1,3}", f"{_ENDINGS}?"))), "tiny_aya"
    ),
    **_rows(WordPattern((_SEED_CODER,)), "seed-coder"),
    **_rows(
        WordPattern((r"\p{N}", _GPT2)),
        "smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b",
        "mellum2",
    ),
    **_rows(
        WordPattern((_GPT2,)),
        "gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "olmo", "mpt", "jais", "trillion",
        "granite-docling", "exaone4", "modern-bert",
    ),
    **_rows(
        WordPattern((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK_WORDS)),
        "deepseek-v3", "hunyuan-dense", "joyai-llm",
    ),
    **_rows(
        WordPattern((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
        "deepseek-coder",
    ),
    **_rows(
        WordPattern((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")), "falcon"
    ),
    **_rows(WordPattern((_BLOOM,)), "bloom", "gpt3-finnish", "poro-chat"),
    **_rows(WordPattern((_BLOOM, r"\p{N}")), "viking"),
}  # fmt: skip
