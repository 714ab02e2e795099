"""Batches of token ids: generated texts, tokenized and grouped by length."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import torch
from tokenizers import Tokenizer
from tools.demo_model.example import Piece
from tools.demo_model.mix import Mix, training_pieces
from torch import Tensor

TOKENS_PER_BATCH = 2560
TEXTS_PER_CHUNK = 1000
LONGEST_TEXT = 4000


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
    rows: Tensor


def encode(tokenizer: Tokenizer, runs: list[Piece]) -> Encoded:
    """The pieces tokenized one by one, as prompt and answer are when the model is used."""
    ids: list[int] = []
    learn: list[bool] = []
    for piece in runs:
        part = tokenizer.encode(piece.text, add_special_tokens=False).ids
        ids += part
        learn += [piece.learn] * len(part)
    return Encoded(ids, learn)


def collate(texts: list[Encoded]) -> Batch:
    """One batch; each text weighs as the root of its number of predicted tokens."""
    length = max(len(text.ids) for text in texts)
    ids = torch.zeros(len(texts), length, dtype=torch.long)
    positions, targets, weights, rows = [], [], [], []
    for row, text in enumerate(texts):
        ids[row, : len(text.ids)] = torch.tensor(text.ids)
        places = [place for place, learn in enumerate(text.learn) if learn]
        positions += [row * length + place - 1 for place in places]
        targets += [text.ids[place] for place in places]
        weights += [len(places) ** -0.5] * len(places)
        rows += [row] * len(places)
    return Batch(
        ids, torch.tensor(positions), torch.tensor(targets), torch.tensor(weights),
        torch.tensor(rows),
    )  # fmt: skip


def grouped(texts: list[Encoded], tokens: int = TOKENS_PER_BATCH) -> list[Batch]:
    """Batches of texts of similar length, each of about `tokens` tokens."""
    batches: list[Batch] = []
    group: list[Encoded] = []
    for text in sorted(texts, key=lambda text: len(text.ids)):
        if group and (len(group) + 1) * len(text.ids) > tokens:
            batches.append(collate(group))
            group = []
        group.append(text)
    return [*batches, collate(group)] if group else batches


def chunk_batches(tokenizer: Tokenizer, seed: str, mix: Mix) -> Iterator[Batch]:
    """The batches of one chunk of generated texts, in random order."""
    rng = Random(seed)
    texts = [encode(tokenizer, training_pieces(rng, mix)) for _ in range(TEXTS_PER_CHUNK)]
    batches = grouped([text for text in texts if len(text.ids) <= LONGEST_TEXT])
    rng.shuffle(batches)
    yield from batches
