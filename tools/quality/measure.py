"""Logits of a model in a format, and what they differ by from those in float32."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray
from tools.quality.formats import TRUTH, Choice, Rounding, rounded
from tools.quality.subjects import Subject, Text

from quire.backends.base import Backend, CompileOptions, KVCacheSpec, StepBatch
from quire.planning.calibration import factors_of, mean_squares, rounded_folds
from quire.program import Program, keep_all
from quire.program.passes import run_passes
from quire.weights import WeightStore
from quire.weights.folded import FoldedStore

Floats = NDArray[np.float32]
BLOCK_SIZE = 16
MAX_TOKENS = 1024


@dataclass(frozen=True)
class Row:
    """A format's line. Divergences are in nats."""

    name: str
    bytes_per_weight: float | None
    """Bytes of all weights of the model in memory; None: unknown."""
    perplexity: float | None
    mean: float
    percentile_99: float
    agreed: float
    """Part of the positions where the most likely token is float32's."""
    positions: int

    def cells(self) -> tuple[str, ...]:
        """Columns of the table after the model's name."""
        size = "-" if self.bytes_per_weight is None else f"{self.bytes_per_weight:.3f}"
        perplexity = "-" if self.perplexity is None else f"{self.perplexity:.3f}"
        return (
            self.name, size, perplexity, f"{self.mean:.2e}", f"{self.percentile_99:.2e}",
            f"{100 * self.agreed:.2f} %",
        )  # fmt: skip


def rows_of(
    backend: Backend, subject: Subject, formats: Mapping[str, Choice], rounding: Rounding
) -> Iterator[Row]:
    """One for each format, that of float32 first."""
    truths = list(logits_of(backend, subject, TRUTH, rounding))
    for name, choice in {"float32": TRUTH, **formats}.items():
        logits = truths if choice is TRUTH else logits_of(backend, subject, choice, rounding)
        yield row_of(name, subject, truths, logits, bytes_per_weight(backend, subject, choice))


def row_of(
    name: str,
    subject: Subject,
    truths: Sequence[Floats],
    logits: Iterable[Floats],
    size: float | None,
) -> Row:
    """The line of a format, of its logits of each text."""
    kl, agreed, surprise = [], 0, 0.0
    for text, truth, found in zip(subject.texts, truths, logits, strict=True):
        kl.append(divergences(truth, found))
        agreed += int((truth.argmax(axis=1) == found.argmax(axis=1)).sum())
        scores = log_probabilities(found)
        surprise -= float(scores[np.arange(len(scores)), list(text.tokens[text.first :])].sum())
    every = np.concatenate(kl)
    return Row(
        name,
        size,
        float(np.exp(surprise / len(every))) if subject.is_language else None,
        float(every.mean()),
        float(np.quantile(every, 0.99)),
        agreed / len(every),
        len(every),
    )


def bytes_per_weight(backend: Backend, subject: Subject, choice: Choice) -> float:
    """Bytes of all weights in the backend's format."""
    program, _ = rounded(subject.program, subject.store, choice, _nothing)
    program = run_passes(program, choice.weights)
    count = sum(prod(param.shape) for param in program.params())
    return backend.weight_bytes(program, choice.dtype) / count


def _nothing(*_: object) -> NDArray[np.uint8]:
    raise RuntimeError("no weight was to be read")


def logits_of(
    backend: Backend, subject: Subject, choice: Choice, rounding: Rounding
) -> Iterator[Floats]:
    """The logits of one text after the other, [positions that count, V]."""
    program, store = rounded(subject.program, subject.store, choice, rounding)
    program = run_passes(program, choice.weights)
    if choice.is_calibrated:
        store = calibrated(backend, subject, program)
    options = CompileOptions(choice.dtype, MAX_TOKENS, max_num_seqs=1, max_model_len=MAX_TOKENS)
    blocks = MAX_TOKENS // BLOCK_SIZE
    kv = KVCacheSpec(blocks, BLOCK_SIZE, choice.kv_cache, keep_all(program))
    model = backend.compile(program, store, kv, options)
    try:
        for text in subject.texts:
            logits = model.step(_batch(text, blocks)).logits
            if logits is None:
                raise RuntimeError("no logits came")
            yield logits
    finally:
        model.close()


def calibrated(backend: Backend, subject: Subject, program: Program) -> WeightStore:
    """The weights with factors of their columns, from the subject's other text."""
    every = rounded_folds(subject.program, program)
    values = [fold.value for fold in every]
    squares = mean_squares(
        backend, subject.program, subject.store, "bfloat16", values, *subject.calibration
    )
    return FoldedStore(subject.store, factors_of(every, squares, program, subject.store))


def _batch(text: Text, blocks: int) -> StepBatch:
    """All tokens but the last, and the logits from that before `first` on."""
    count = len(text.tokens) - 1
    return StepBatch(
        token_ids=np.array(text.tokens[:-1], np.int32),
        positions=np.arange(count, dtype=np.int32),
        seq_starts=np.array([0, count], np.int32),
        context_lens=np.array([count], np.int32),
        block_tables=np.arange(blocks, dtype=np.int32)[None, None],
        logits_rows=np.arange(text.first - 1, count, dtype=np.int32),
        sampling=None,
        want_logits=True,
    )


def log_probabilities(logits: Floats) -> NDArray[np.float64]:
    """Row by row."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    result: NDArray[np.float64] = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return result


def divergences(truth: Floats, logits: Floats) -> NDArray[np.float64]:
    """KL(truth || logits) of every position, in nats."""
    p, q = log_probabilities(truth), log_probabilities(logits)
    result: NDArray[np.float64] = (np.exp(p) * (p - q)).sum(axis=1)
    return result
