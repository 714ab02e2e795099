"""How tokens are chosen: the specification, and the arrays that carry the choices' settings."""

from quire.sampling.records import Logprobs, SamplingColumns
from quire.sampling.reference import logprobs, not_finite, sample, splitmix64, uniform

__all__ = [
    "Logprobs",
    "SamplingColumns",
    "logprobs",
    "not_finite",
    "sample",
    "splitmix64",
    "uniform",
]
