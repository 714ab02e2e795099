"""Exchanges between the ranks of one model during a step, and their connections."""

from quire.ranks.group import RankGroup
from quire.ranks.links import Link

__all__ = ["Link", "RankGroup"]
