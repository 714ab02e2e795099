"""What the ranks of one model exchange during a step, and over what."""

from quire.ranks.group import RankGroup
from quire.ranks.links import Link

__all__ = ["Link", "RankGroup"]
