"""`proposer_of`: the proposer of a configuration."""

from __future__ import annotations

from operator import index

from quire.config.speculation import PROPOSERS, SpeculationConfig
from quire.errors import ConfigError
from quire.log import get_logger
from quire.scheduler.drafting.ngram import NgramProposer
from quire.scheduler.drafting.proposer import NUM_GRADES, OF_MODEL, Proposal, Proposer
from quire.scheduler.drafting.suffix import SuffixProposer
from quire.scheduler.request import Request
from quire.system.deferred_signals import raise_ctrl_c

logger = get_logger(__name__)


class ModelProposer(Proposer):
    """Keeps nothing: the result of a step has the proposals for the next one."""

    def propose(self, request: Request, most: int) -> Proposal | None:
        """The first of the proposed tokens."""
        token_ids = request.proposed_token_ids[:most]
        return Proposal(token_ids, OF_MODEL) if token_ids else None

    def forget(self, request: Request) -> None:
        """Does nothing."""


class PackagesProposer(Proposer):
    """A proposer of an installed package. After its first mistake, which is logged, it is not
    called again: requests go on without guesses."""

    def __init__(self, proposer: Proposer, vocab_size: int) -> None:
        self._proposer: Proposer | None = proposer
        self._vocab_size = vocab_size

    def propose(self, request: Request, most: int) -> Proposal | None:
        """The first guesses of the proposer."""
        if self._proposer is None:
            return None
        try:
            given = self._proposer.propose(request, most)
            return None if given is None else self._checked(given, most)
        except BaseException as error:
            raise_ctrl_c(error)
            self._give_up()
            return None

    def forget(self, request: Request) -> None:
        if self._proposer is None:
            return
        try:
            self._proposer.forget(request)
        except BaseException as error:
            raise_ctrl_c(error)
            self._give_up()

    def _checked(self, given: Proposal, most: int) -> Proposal:
        token_ids, grade = [index(one) for one in given.token_ids[:most]], index(given.grade)
        if not 0 <= grade < NUM_GRADES:
            raise ValueError(f"the grade {grade} must be from 0 to {NUM_GRADES - 1}")
        for one in token_ids:
            if not 0 <= one < self._vocab_size:
                raise ValueError(f"the token id {one} must be from 0 to {self._vocab_size - 1}")
        return Proposal(token_ids, grade)

    def _give_up(self) -> None:
        name = type(self._proposer).__name__
        logger.exception("the proposer %s failed and is not called again", name)
        self._proposer = None


def proposer_of(config: SpeculationConfig, vocab_size: int) -> Proposer:
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
    return PackagesProposer(made, vocab_size)
