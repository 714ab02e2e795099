"""Batches of token ids: generated texts, tokenized and grouped by length."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import torch
from tokenizers import Tokenizer
from tools.demo_model.example import Piece
from tools.demo_model.mix import Mix, training_pieces
from torch import Tensor

TOKENS_PER_BATCH = 1280
TEXTS_PER_CHUNK = 1000
LONGEST_TEXT = 4000
_TARGETS_STEP = 128


@dataclass(frozen=True)
class Encoded:
    """Token ids, and for each whether it is to be predicted."""

    ids: list[int]
    learn: list[bool]


@dataclass(frozen=True)
class Batch:
    """Padded ids; where in the flattened batch to predict, what, and with which weight."""

    ids: Tensor
    positions: Tensor
    targets: Tensor
    weights: Tensor


def encode(tokenizer: Tokenizer, runs: list[Piece]) -> Encoded:
    """The pieces tokenized one by one, as prompt and answer are when the model is used."""
    ids: list[int] = []
    learn: list[bool] = []
    for piece in runs:
        part = tokenizer.encode(piece.text, add_special_tokens=False).ids
        ids += part
        learn += [piece.learn] * len(part)
    return Encoded(ids, learn)


def padded_length(length: int) -> int:
    """The next of a few lengths: kernels are prepared once for each shape they meet."""
    step = 8 if length <= 128 else 32 if length <= 512 else 256
    return -(-length // step) * step


def collate(texts: list[Encoded], tokens: int = 0) -> Batch:
    """One batch; each text weighs as the root of its number of predicted tokens.

    Given `tokens`, the batch is filled up to the same shape as others of its length.
    """
    length = max(len(text.ids) for text in texts)
    count = len(texts)
    if tokens:
        length = padded_length(length)
        count = max(1, tokens // length)
    ids = torch.zeros(count, length, dtype=torch.long)
    positions: list[int] = []
    targets: list[int] = []
    weights: list[float] = []
    for row, text in enumerate(texts):
        ids[row, : len(text.ids)] = torch.tensor(text.ids)
        places = [place for place, learn in enumerate(text.learn) if learn]
        positions += [row * length + place - 1 for place in places]
        targets += [text.ids[place] for place in places]
        weights += [len(places) ** -0.5] * len(places)
    missing = -len(targets) % _TARGETS_STEP if tokens else 0
    return Batch(
        ids,
        torch.tensor(positions + [0] * missing),
        torch.tensor(targets + [0] * missing),
        torch.tensor(weights + [0.0] * missing),
    )


def grouped(texts: list[Encoded], tokens: int = TOKENS_PER_BATCH) -> list[Batch]:
    """Batches of texts of similar length, each of about `tokens` tokens."""
    batches: list[Batch] = []
    group: list[Encoded] = []
    for text in sorted(texts, key=lambda text: len(text.ids)):
        if group and (len(group) + 1) * padded_length(len(text.ids)) > tokens:
            batches.append(collate(group, tokens))
            group = []
        group.append(text)
    return [*batches, collate(group, tokens)] if group else batches


def chunk_batches(tokenizer: Tokenizer, seed: str, mix: Mix) -> Iterator[Batch]:
    """The batches of one chunk of generated texts, in random order."""
    rng = Random(seed)
    texts = [encode(tokenizer, training_pieces(rng, mix)) for _ in range(TEXTS_PER_CHUNK)]
    batches = grouped([text for text in texts if len(text.ids) <= LONGEST_TEXT])
    rng.shuffle(batches)
    yield from batches
