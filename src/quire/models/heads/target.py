"""`Target`: what a draft head needs to know of the model whose hidden states it reads."""

from __future__ import annotations

from dataclasses import dataclass

from quire.models.base import ModelFacts, ModelFamily
from quire.models.config_reader import ConfigReader
from quire.program import Builder, Embed, Logits, Program, RowsIn, Tensor, Value


@dataclass(frozen=True, slots=True)
class Target:
    """The model that a head drafts for."""

    reader: ConfigReader
    """Its config.json."""
    family: ModelFamily
    facts: ModelFacts
    program: Program

    @property
    def table(self) -> Tensor:
        """Its embedding table [V, D]."""
        return self._embed.table.parts[0]

    @property
    def logits(self) -> Logits:
        """The op that computes the target's logits."""
        return self.program.logits

    def embed(self, builder: Builder) -> Value:
        """Add a look-up of tokens in its table."""
        return builder.embed(self.table, self._embed.scale)

    def end(self, builder: Builder, x: Value) -> None:
        """End a program with its head on the rows x."""
        own = self.logits
        bias = None if own.bias is None else own.bias.parts[0].name
        builder.logits(
            x, own.weight.parts[0], bias=bias, scale=own.scale, softcap=own.softcap, is_taken=True
        )

    @property
    def _embed(self) -> Embed:
        return next(op for op in self.program.ops if isinstance(op, Embed))


@dataclass(frozen=True, slots=True)
class HeadProgram:
    """A draft head: a program that reads a row of hidden states with each token."""

    program: Program
    layers: tuple[int, ...]
    """The layers of the target whose inputs it reads; empty: the target's last hidden states."""
    own_first: int = 0
    """The first column in which it reads the hidden state that it has given itself, for its own
    tokens; the other columns are then 0. Those of the target begin at column 0."""

    num_at_once: int = 0
    """Tokens that it drafts in one step, without K/V: it gives their logits side by side. 0: it
    drafts one token after the other."""

    @property
    def width(self) -> int:
        """Numbers of a row that it reads."""
        return sum(out.dim for op in self.program.ops if isinstance(op, RowsIn) for out in op.outs)
