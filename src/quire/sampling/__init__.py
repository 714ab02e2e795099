"""Sampling: the specification of how tokens are chosen, and the arrays of sampling parameters."""

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
