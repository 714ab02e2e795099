"""How tokens are chosen: the specification, and the arrays that carry the choices' settings."""

from quire.sampling.columns import SamplingRow, build_columns, child_seed
from quire.sampling.records import Logprobs, SamplingColumns
from quire.sampling.reference import logprobs, sample, splitmix64, uniform

__all__ = [
    "Logprobs",
    "SamplingColumns",
    "SamplingRow",
    "build_columns",
    "child_seed",
    "logprobs",
    "sample",
    "splitmix64",
    "uniform",
]
