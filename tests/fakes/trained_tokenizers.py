"""Small tokenizers of the three kinds, trained on the spot; shared by the tests of this folder."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TEXTS = [
    "The quick brown fox jumps over the lazy dog, again and again.",
    "Größe und Maß: über allen Gipfeln ist Ruh'.",
    "你好，世界。这是一个测试。",
    "emoji 😀👩‍👩‍👧‍👦 and flags 🇩🇪",
    "def f(x):\n    return x ** 2\n\n\n# comment\t\ttabs",
    "Съешь ещё этих мягких французских булок",
    "1234567890 3.14159 -1e-10",
    "",
    " leading and trailing ",
    "it's we've I'm they'll <|im_start|>user\nhi<|im_end|>",
]


def corpus(seed: int = 0) -> list[str]:
    generator = random.Random(seed)
    words = " ".join(TEXTS).split()
    return [" ".join(generator.choices(words, k=12)) for _ in range(200)]


def byte_level(vocab_size: int = 500) -> Tokenizer:
    """As GPT-2, Llama 3 and Qwen: every byte has a letter."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens([AddedToken("<tool call>", special=False)])
    return tokenizer


def byte_fallback(strip: bool = True) -> Tokenizer:
    """As Llama 2 and Mistral: `▁` for a space, `<0xE4>` for a byte that has no token."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    seed = Tokenizer(models.BPE(unk_token="<unk>"))
    seed.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(
        vocab_size=400, show_progress=False, limit_alphabet=60, special_tokens=[]
    )
    seed.train_from_iterator([text.replace("你", "") for text in corpus()], trainer)
    model = json.loads(seed.to_str())["model"]
    learnt = sorted(model["vocab"], key=model["vocab"].get)
    vocab = {piece: index for index, piece in enumerate([*pieces, *learnt])}
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]
    tokenizer = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def word_level() -> Tokenizer:
    """Whole words, and no decoder: tokens are joined by spaces."""
    words = sorted({word for text in TEXTS for word in text.split()})
    vocab = {word: index for index, word in enumerate(["[UNK]", "[END]", "[CALL]", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[UNK]", "[END]", "[CALL]"])
    return tokenizer


def metaspace() -> Tokenizer:
    """As T5: `▁` through the Metaspace decoder, which looks at the first token apart."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<unk>", "</s>"], show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def save(directory: Path, tokenizer: Tokenizer, **config: object) -> Path:
    """A checkpoint directory with a tokenizer.json."""
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **config})
    )
    return directory
