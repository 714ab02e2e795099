"""Measures what the matrices of a model are multiplied with, and makes the columns' factors of it.

The file is a text, which the model reads, or an imatrix of llama.cpp.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import Backend
from quire.backends.reference.quantised import round_activations, round_weights
from quire.config.checkpoint.model_files import read_bytes
from quire.config.records import Arithmetic
from quire.errors import CheckpointError, ConfigError
from quire.gguf.architectures import ARCHITECTURES
from quire.gguf.architectures.row import ANY_EXPERT
from quire.log import get_logger, phase
from quire.planning.calibration.measure import mean_squares, tokens_of
from quire.planning.checkpoint import Checkpoint
from quire.program import Param, Program, WeightFormat
from quire.program.folds import Fold, folds
from quire.program.values import BITS
from quire.tokenizer.for_model import tokenizer_of
from quire.units import MiB
from quire.weights import Calibration, WeightStore
from quire.weights.folded import FoldedStore
from quire.weights.imatrix import MAX_BYTES, is_imatrix, read_imatrix

logger = get_logger(__name__)

Floats = NDArray[np.float32]

_MAX_TEXT_BYTES = 64 * MiB
_FEWEST_TOKENS = 64
Matrix = tuple[Floats, WeightFormat]

MOST_ROWS = 128
"""Maximum number of rows of a matrix that are tried."""
_TOKENS = 64
_POWERS = (0.15, 0.3, 0.45, 0.6, 0.75)
_WORTH = 0.97
"""Factors must leave less than this part of the error without them."""
_MOST = 8
"""Largest exponent of a factor, to base 2."""
_LEAST = 1e-4
"""Smallest root mean square of a column, as a part of the largest one."""


def calibrated(
    file: Path,
    checkpoint: Checkpoint,
    backend: Backend,
    arithmetic: Arithmetic,
    program: Program,
    weights: WeightStore,
) -> tuple[WeightStore, Calibration]:
    """The weights with factors of their columns, and the record of it. `program`: as it is
    quantised. Raises ConfigError or CheckpointError for a file that cannot be used."""
    plain = checkpoint.model.program
    every = rounded_folds(plain, program)
    if not every:
        raise ConfigError(f"--calibrate: {plain.name} has no matrices whose columns can be scaled")
    num_tokens = 0
    if is_imatrix(file):
        squares = _of_imatrix(file, checkpoint, every)
    else:
        squares, num_tokens = _of_text(file, checkpoint, backend, arithmetic, weights, every)
    with phase(logger, "factors of columns"):
        factors = factors_of(every, squares, program, weights)
    digest = hashlib.sha256(read_bytes(file, max_bytes=MAX_BYTES)).hexdigest()
    record = Calibration(file.name, digest, num_tokens, len(factors), len(every))
    return FoldedStore(weights, factors), record


def rounded_folds(plain: Program, program: Program) -> list[Fold]:
    """The folds of a program with a matrix that the quantised program rounds."""
    formats = {param.name: param.format for param in program.params()}
    return [
        fold for fold in folds(plain) if any(formats[one.name] in BITS for one in fold.matrices)
    ]


def factors_of(
    every: Sequence[Fold], squares: Mapping[str, Floats], program: Program, weights: WeightStore
) -> dict[Fold, Floats]:
    """The factors of those folds whose values have mean squares, where some are not 1.

    `program`: as it is quantised; `weights`: as they are before.
    """
    formats = {param.name: param.format for param in program.params()}
    factors: dict[Fold, Floats] = {}
    for fold in every:
        if fold.value.name not in squares:
            continue
        matrices: list[Matrix] = [
            (_sample(weights, param), own)
            for param in fold.matrices
            if (own := formats[param.name]) in BITS
        ]
        found = best_factors(
            squares[fold.value.name],
            matrices,
            fold.head_dim,
            fold.sharing,
            are_exact=len(matrices) < len(fold.matrices),
        )
        if (found != 1).any():
            factors[fold] = found
    return factors


def _sample(weights: WeightStore, param: Param) -> Floats:
    """Some rows of a matrix, or of an expert's; as many of each part as its share."""
    rows: list[Floats] = []
    total = sum(part.num_rows for part in param.parts)
    for part in param.parts:
        values = weights.get(part.name).to_float32()
        if part.transposed:
            values = values.swapaxes(-1, -2)
        values = values.reshape(-1, values.shape[-1])
        count = max(1, MOST_ROWS * part.num_rows // total)
        step = max(1, len(values) // count)
        rows.append(np.array(values[::step][:count]))
        weights.release(part.name)
    return np.concatenate(rows)


def _of_text(
    file: Path,
    checkpoint: Checkpoint,
    backend: Backend,
    arithmetic: Arithmetic,
    weights: WeightStore,
    every: Sequence[Fold],
) -> tuple[Mapping[str, Floats], int]:
    """The mean squares of the folds' values, and the number of tokens."""
    program = checkpoint.model.program
    if program.num_sources or program.reads_rows:
        raise ConfigError(f"--calibrate: {program.name} does not read texts alone; give an imatrix")
    try:
        text = read_bytes(file, max_bytes=_MAX_TEXT_BYTES).decode()
    except UnicodeDecodeError:
        raise ConfigError(
            f"--calibrate: {file} must be a text in UTF-8, or an imatrix of llama.cpp"
        ) from None
    tokenizer = tokenizer_of(checkpoint.path, program.vocab_size)
    tokens = tokens_of(tokenizer, text)
    if len(tokens) < _FEWEST_TOKENS:
        raise ConfigError(
            f"--calibrate: {file} has {len(tokens)} tokens; give a text with at least "
            f"{_FEWEST_TOKENS}, better some thousands"
        )
    values = [fold.value for fold in every]
    with phase(logger, f"{len(tokens)} tokens of {file.name} read"):
        squares = mean_squares(
            backend, program, weights, arithmetic.dtype, values, tokens,
            tokenizer.special_frame.before, checkpoint.model.facts.max_model_len,
        )  # fmt: skip
    return squares, len(tokens)


def _of_imatrix(file: Path, checkpoint: Checkpoint, every: Iterable[Fold]) -> Mapping[str, Floats]:
    """The mean squares of those values that the file has."""
    found = read_imatrix(file)
    folds_of = {
        part.name: fold for fold in every for param in fold.matrices for part in param.parts
    }
    squares: dict[str, Floats] = {}
    for name, own in found.squares.items():
        for tensor in _names(name, checkpoint):
            fold = folds_of.get(tensor)
            if fold is None or fold.value.name in squares:
                continue
            if own.size % fold.value.dim:
                raise CheckpointError(
                    f"{file}: {name!r} must have numbers for {fold.value.dim} columns, not "
                    f"{own.size}: it belongs to another model than {checkpoint.path}"
                )
            squares[fold.value.name] = own.reshape(-1, fold.value.dim).mean(axis=0)
    if not squares:
        raise CheckpointError(
            f"{file}: none of its {len(found.squares)} matrices, such as "
            f"{next(iter(found.squares))!r}, belongs to {checkpoint.path}"
        )
    return squares


def _names(name: str, checkpoint: Checkpoint) -> set[str]:
    """The names that a tensor of a GGUF file may have in the program."""
    wanted = checkpoint.model.hf_config.get("architectures") or [""]
    rows = [row for row in ARCHITECTURES.values() if row.hf_name == wanted[0]]
    places = {place.name.replace(ANY_EXPERT, "0") for row in rows for place in row.places(name)}
    return {found for place in places if (found := checkpoint.model.names.canonical(place))}


def best_factors(
    squares: Floats,
    matrices: Sequence[Matrix],
    head_dim: int,
    sharing: int,
    *,
    are_exact: bool = False,
) -> Floats:
    """A factor for each column: 1, or a power of the column's root mean square.

    `squares`: mean squares of what some rows of the `matrices` are multiplied with. `sharing`:
    neighbouring heads of `head_dim` columns that get the same factors. `are_exact`: the factors are
    powers of two, which change no digit of other matrices with the same columns.
    """
    deviations = np.sqrt(squares)
    random = np.random.default_rng(0)
    x = (random.laplace(size=(_TOKENS, len(squares))) * deviations).astype(np.float32)
    of_heads = deviations.reshape(-1, sharing, head_dim)
    shared = np.sqrt(np.square(of_heads).mean(axis=1, keepdims=True))
    spread = np.broadcast_to(shared, of_heads.shape).reshape(-1)
    logs = np.log2(np.maximum(spread, spread.max(initial=0) * _LEAST))
    if not np.isfinite(logs).all():
        return np.ones_like(squares)
    logs = logs - logs.mean()
    truths = [x @ matrix.T for matrix, _ in matrices]
    best = np.ones_like(squares)
    least = _error(x, best, matrices, truths) * _WORTH
    for power in _POWERS:
        exponents = np.clip(logs * power, -_MOST, _MOST)
        factors = np.exp2(np.rint(exponents) if are_exact else exponents).astype(np.float32)
        error = _error(x, factors, matrices, truths)
        if error < least:
            best, least = factors, error
    return best


def _error(
    x: Floats, factors: Floats, matrices: Sequence[Matrix], truths: Sequence[Floats]
) -> float:
    """The squared error of the products. x is divided by the factors and the matrices are
    multiplied by them."""
    error = 0.0
    divided = x / factors
    for (matrix, weight_format), truth in zip(matrices, truths, strict=True):
        rounded = round_weights(matrix * factors, weight_format)
        found = round_activations(divided, weight_format) @ rounded.T
        error += float(np.square(found - truth, dtype=np.float64).sum())
    return error
