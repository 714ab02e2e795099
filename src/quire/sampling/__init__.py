"""How tokens are chosen: the specification, and the arrays that carry the choices' settings."""

from quire.sampling.columns import COLUMNS, TOKEN_LISTS, Column, SamplingColumns, TokenLists
from quire.sampling.masks import TokenMasks
from quire.sampling.records import Logprobs
from quire.sampling.reference import logprobs, no_choice, not_finite, sample, splitmix64, uniform

__all__ = [
    "COLUMNS",
    "TOKEN_LISTS",
    "Column",
    "Logprobs",
    "SamplingColumns",
    "TokenLists",
    "TokenMasks",
    "logprobs",
    "no_choice",
    "not_finite",
    "sample",
    "splitmix64",
    "uniform",
]
