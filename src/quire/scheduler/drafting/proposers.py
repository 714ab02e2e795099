"""`proposer_of`: the proposer of a configuration."""

from __future__ import annotations

from quire.config.speculation import PROPOSERS, SpeculationConfig
from quire.errors import ConfigError
from quire.scheduler.drafting.ngram import NgramProposer
from quire.scheduler.drafting.proposer import OF_MODEL, Proposal, Proposer
from quire.scheduler.drafting.suffix import SuffixProposer
from quire.scheduler.request import Request


class ModelProposer(Proposer):
    """Keeps nothing: the result of a step has the proposals for the next one."""

    def propose(self, request: Request, most: int) -> Proposal | None:
        """The first of the proposed tokens."""
        token_ids = request.proposed_token_ids[:most]
        return Proposal(token_ids, OF_MODEL) if token_ids else None

    def forget(self, request: Request) -> None:
        """Does nothing."""


def proposer_of(config: SpeculationConfig) -> Proposer:
    """Makes the proposer. An installed package adds one by an entry point of the group
    `quire.proposers`: its name is the method, and its object is called with the
    `SpeculationConfig`. Raises ConfigError if that gives something else."""
    least = config.prompt_lookup_min
    if config.method == "ngram":
        return NgramProposer(least)
    if config.has_model:
        return ModelProposer()
    if config.method == "suffix":
        return SuffixProposer(least, config.suffix_max_replies, config.suffix_spec_factor)
    from importlib.metadata import entry_points

    [entry] = entry_points(group=PROPOSERS, name=config.method)
    made = entry.load()(config)
    if not isinstance(made, Proposer):
        raise ConfigError(
            f"the entry point {config.method} of {PROPOSERS} must give a Proposer, not a "
            f"{type(made).__name__}"
        )
    return made
