"""How tokens are chosen: the specification, and the arrays that carry the choices' settings."""

from quire.sampling.records import Logprobs, SamplingColumns
from quire.sampling.reference import logprobs, sample, splitmix64, uniform

__all__ = [
    "Logprobs",
    "SamplingColumns",
    "logprobs",
    "sample",
    "splitmix64",
    "uniform",
]
