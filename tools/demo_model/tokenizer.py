"""Trains the byte-level BPE tokenizer of the demo model on generated text."""

from collections.abc import Iterator
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tools.demo_model.mix import Mix, training_pieces

VOCAB_SIZE = 2048
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Shown to the reader of an answer, so not special: parsers look for them in the text.
MARKERS = (
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
)  # fmt: skip


def _texts(samples: int, seed: int) -> Iterator[str]:
    rng = Random(f"tokenizer {seed}")
    for _ in range(samples):
        text = "".join(piece.text for piece in training_pieces(rng, Mix(longest=200)))
        for token in (*SPECIAL, *MARKERS):
            text = text.replace(token, "")
        yield text


def train_tokenizer(samples: int = 40_000, seed: int = 0) -> Tokenizer:
    """A tokenizer that keeps every digit apart and can represent any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            # Line breaks in pairs whatever follows: the tokens of a prompt that ends with a pair
            # stay the same when the reply is appended.
            pre_tokenizers.Split(Regex(r"\n{1,2}"), behavior="isolated"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL) - len(MARKERS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(samples, seed), trainer)
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens(
        [AddedToken(marker, special=False, normalized=False) for marker in MARKERS]
    )
    return tokenizer
