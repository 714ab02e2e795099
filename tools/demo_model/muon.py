"""The optimizer: Muon for the matrices inside the layers, AdamW for embeddings and norms.

Muon orthogonalises the momentum of each weight matrix by a Newton-Schulz iteration; matrices of
one shape are updated together.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


def orthogonalize(matrices: Tensor, steps: int = 5) -> Tensor:
    """The nearest orthogonal matrices, roughly: a quintic iteration.

    It is in fp32, which a CPU without bf16 matrix units multiplies three times as fast as bf16.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


@dataclass
class Optimizer:
    """Keeps the fp32 weights and their moments; `step` takes gradients of the same names."""

    weights: dict[str, Tensor]
    matrix_rate: float = 0.02
    vector_rate: float = 0.004
    momentum: float = 0.95
    weight_decay: float = 0.02
    first: dict[str, Tensor] = field(default_factory=dict)
    second: dict[str, Tensor] = field(default_factory=dict)
    steps: int = 0

    def __post_init__(self) -> None:
        self.first = self.first or {name: torch.zeros_like(w) for name, w in self.weights.items()}
        vectors = {name for name in self.weights if not self._is_matrix(name)}
        self.second = self.second or {n: torch.zeros_like(self.weights[n]) for n in vectors}

    def _is_matrix(self, name: str) -> bool:
        return self.weights[name].ndim == 2 and "embed" not in name

    def step(self, gradients: dict[str, Tensor], scale: float) -> None:
        """One update with the learning rates times `scale`."""
        self.steps += 1
        groups: dict[tuple[int, int], list[str]] = defaultdict(list)
        for name, weight in self.weights.items():
            if self._is_matrix(name):
                rows, columns = weight.shape
                groups[(min(rows, columns), max(rows, columns))].append(name)
            else:
                self._adam(name, gradients[name], self.vector_rate * scale)
        for names in groups.values():
            self._muon(names, gradients, self.matrix_rate * scale)

    def _adam(self, name: str, gradient: Tensor, rate: float) -> None:
        beta1, beta2 = 0.9, 0.98
        first = self.first[name].lerp_(gradient, 1 - beta1)
        second = self.second[name].lerp_(gradient.square(), 1 - beta2)
        unbiased = first / (1 - beta1**self.steps)
        spread = (second / (1 - beta2**self.steps)).sqrt() + 1e-8
        self.weights[name].sub_(rate * unbiased / spread)

    def _muon(self, names: list[str], gradients: dict[str, Tensor], rate: float) -> None:
        directions = []
        for name in names:
            moment = self.first[name].mul_(self.momentum).add_(gradients[name])
            direction = gradients[name].add(moment, alpha=self.momentum)
            wide = direction.shape[0] <= direction.shape[1]
            directions.append(direction if wide else direction.T)
        updates = orthogonalize(torch.stack(directions))
        for name, update in zip(names, updates, strict=True):
            weight = self.weights[name]
            rows, columns = weight.shape
            size = max(1.0, rows / columns) ** 0.5
            weight.mul_(1 - rate * self.weight_decay)
            weight.sub_(rate * size * (update if rows <= columns else update.T))

    def state(self) -> dict[str, Any]:
        """Everything a checkpoint needs."""
        return {"weights": self.weights, "first": self.first, "second": self.second,
                "steps": self.steps}  # fmt: skip

    def load(self, state: dict[str, Any]) -> None:
        """Takes up a state in place."""
        for own, saved in ((self.weights, state["weights"]), (self.first, state["first"]),
                           (self.second, state["second"])):  # fmt: skip
            for name, value in saved.items():
                own[name].copy_(value)
        self.steps = state["steps"]
