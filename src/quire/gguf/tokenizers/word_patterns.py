"""Patterns by which byte-level vocabularies cut a text into words: a row for each
`tokenizer.ggml.pre`.

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


def _o200k(digits: str, endings: str, unlike: str = "", line_ends: str = r"[\r\n/]*") -> str:
    """`unlike`: restricts the letters of a word. `line_ends`: what follows signs."""
    upper = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{unlike}]"
    lower = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{unlike}]"
    return (
        rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{endings}"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{endings}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+{line_ends}|{_SPACES}"
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
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-"
    "\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90"
    "-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-"
    "\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-"
    "\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-"
    "\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-"
    "\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-"
    "\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-"
    "\U000118df\U0001e900-\U0001e943"
)
"""Letters with a case, of Unicode 10, for a set of a regular expression."""
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_CASED}]+",
    r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    "[一-龥ࠀ-一가-퟿]+",
    r"\p{N}",
)
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
_EXAONE_MOE = (
    rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_HALVED_SPACES = "|".join(rf"\s{{{2**n}}}(?!\S)" for n in range(9, 1, -1))
_JAIS2 = _cl100k(r"\p{N}{1,3}").replace(
    r"|\s+(?!\S)|\s+", rf"|{_HALVED_SPACES}|\s{{1,2}}(?!\S)|\s{{1}}"
)
_THREE_DIGITS_FROM_THE_RIGHT = r"(?<!\d)\d{1,2}(?=(?:\d{3})+(?!\d))|\d{3}"
"""The model's own pattern, `(?=(\\d{3})+(?!\\d))`, takes time that grows with the square of the
digits. This one cuts digits alike."""
_DIGITS_FROM_THE_RIGHT = r"\d{1,3}(?=(?:\d{3})*\b)"
_HAN = r"\p{Han}"
_KIMI = rf"[{_HAN}]+|" + _o200k(r"\p{N}{1,3}", f"{_ENDINGS}?", rf"&&[^{_HAN}]", r"[\r\n]*")
"""Chinese characters are words of their own; other letters as in o200k."""
_YOUTU = (
    "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
    _o200k(r"\p{N}", f"{_ENDINGS}?"),
)
_SPARK = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+",
    r"\p{N}",
)
_AFMOE = (
    r"(?<!\p{N})\p{N}{1,2}(?=(?:\p{N}{3})*(?!\p{N}))|\p{N}{3}",
    "[一-鿿㐀-䶿豈-\ufaff぀-ゟ゠-ヿ･-ﾟ⼀-\u2fdfเ-\u0e7f\u0e80-\u0effក-\u17ffက-႟ꩠ-ꩿꧠ-\ua9ff가-\ud7afᄀ-ᇿ]+",
    _DEEPSEEK_WORDS,
)
_CHAMELEON = (
    "<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]", _GPT2,
)  # fmt: skip
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"


@dataclass(frozen=True, slots=True)
class WordPattern:
    """Steps on a text before merges."""

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
    **_rows(WordPattern((_LLAMA3,)), "dbrx", "smaug-bpe", "chatglm-bpe"),
    **_rows(WordPattern((_LLAMA3,), ignore_merges=True), "glm4", "glm5"),
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
        WordPattern((_o200k(r"\p{N}{1,3}", f"{_ENDINGS}?"),), ignore_merges=True),
        "granite-embed-multi-97m",
    ),
    **_rows(
        WordPattern((_DIGITS_FROM_THE_RIGHT, _o200k(r"\p{N}{1,3}", f"{_ENDINGS}?"))),
        "tiny_aya", "cohere2moe",
    ),
    **_rows(WordPattern((_KIMI,)), "kimi-k2"),
    **_rows(WordPattern(_YOUTU, ignore_merges=True), "youtu"),
    **_rows(WordPattern(_SPARK), "spark2_5"),
    **_rows(WordPattern(_AFMOE), "afmoe"),
    **_rows(WordPattern(_CHAMELEON, add_bos=True), "chameleon"),
    **_rows(WordPattern((_QWEN2.removeprefix(f"{_ENDINGS}|"),)), "ufakzeka"),
    **_rows(WordPattern((r"[^\n]+|[\n]+", _QWEN2)), "laguna"),
    **_rows(WordPattern((_SEED_CODER,)), "seed-coder"),
    **_rows(
        WordPattern((r"\p{N}", _GPT2)),
        "smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b",
        "mellum2",
    ),
    **_rows(
        WordPattern((_GPT2,)),
        "gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "olmo", "mpt", "jais", "trillion",
        "granite-docling", "exaone4", "modern-bert", "roberta-bpe", "jina-v1-en", "jina-es",
        "jina-de", "jina-v2-es", "jina-v2-de", "jina-v2-code",
    ),
    **_rows(
        WordPattern((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK_WORDS)),
        "deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4",
    ),
    **_rows(
        WordPattern((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
        "deepseek-coder",
    ),
    **_rows(
        WordPattern((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")), "falcon"
    ),
    **_rows(WordPattern(_DEEPSEEK_LLM), "deepseek-llm"),
    **_rows(WordPattern((_BAILING,)), "bailingmoe", "bailingmoe2", "llada-moe"),
    **_rows(WordPattern((_EXAONE_MOE,)), "exaone-moe"),
    **_rows(WordPattern((_JAIS2,)), "jais-2"),
    **_rows(
        WordPattern((r"\p{N}{1,3}", _cl100k(r"\p{N}+")), ignore_merges=True), "minicpm5"
    ),
    **_rows(WordPattern((r"\p{N}+", _THREE_DIGITS_FROM_THE_RIGHT)), "superbpe"),
    **_rows(
        WordPattern((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")), "default"
    ),
    **_rows(WordPattern((_BLOOM,)), "bloom", "gpt3-finnish", "poro-chat"),
    **_rows(WordPattern((_BLOOM, r"\p{N}")), "viking"),
}  # fmt: skip

WITH_MARKED_SPACES = frozenset({"gemma4", "granite-embed-multi-311m", "sarvam-moe"})
"""Further names: the vocabulary is SentencePiece's, with merges."""
