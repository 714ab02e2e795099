"""Every family on the CUDA backend's emulated device, against the reference."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hybrid_cases import HYBRID_CASES
from model_cases import CASES, Case, prompt_of, write_checkpoint
from model_harness import Floats, Runner, load

from quire.backends.cuda import CudaBackend
from quire.backends.cuda.emulated import EmulatedDevice
from quire.backends.cuda.graphs import StepGraphs
from quire.backends.cuda.kernel import Action
from quire.backends.reference import ReferenceBackend

LENGTHS = (37, 5, 3)
"""Tokens of the prompts: more than windows and chunks of states have. A step of three requests is
padded to four."""
NEW_TOKENS = 5


@pytest.fixture(scope="module", params=[*CASES, *HYBRID_CASES], ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    """Each family in turn."""
    found: Case = request.param
    return found


@pytest.fixture
def both(case: Case, tmp_path: Path) -> Iterator[list[Runner]]:
    """The reference, and the emulated device."""
    directory = write_checkpoint(case, tmp_path)
    backends = ReferenceBackend(), CudaBackend(EmulatedDevice())
    models = [load(directory, backend) for backend in backends]
    models[1]._graphs = CheckedGraphs(models[1]._device)  # type: ignore[attr-defined]
    yield [Runner(model) for model in models]
    for model in models:
        model.close()


class CheckedGraphs(StepGraphs):
    """All steps with one key must have the launches that are recorded."""

    def __init__(self, device: EmulatedDevice) -> None:
        super().__init__(device)
        self.launches: dict[Hashable, list[Action]] = {}
        self.num_steps = 0

    def run(self, key: Hashable, actions: Callable[[], Iterable[Action]]) -> None:
        found = list(actions())
        assert found == self.launches.setdefault(key, found)
        self.num_steps += 1
        super().run(key, lambda: found)


def replies(case: Case, runner: Runner) -> tuple[list[Floats], list[list[int]]]:
    """Logits of the prompts, the first in two chunks, and what follows them."""
    first, *others = (runner.request(prompt_of(case, n), room=NEW_TOKENS) for n in LENGTHS)
    logits = runner.step([(first, 19)])
    rest = [(one, len(one.tokens) - 1) for one in others]
    logits += runner.step([(first, LENGTHS[0] - 20), *rest])
    for _ in range(NEW_TOKENS):
        runner.decode([first, *others])
    return logits, [one.tokens for one in (first, *others)]


@pytest.mark.sweep(12)
def test_the_tokens_are_those_of_the_reference(case: Case, both: list[Runner]) -> None:
    (logits, tokens), (found, continued) = (replies(case, runner) for runner in both)
    for wanted, own in zip(logits, found, strict=True):
        assert np.abs(own - wanted).max() <= 1e-3 * np.abs(wanted).max()
    assert continued == tokens
    graphs = both[1].model._graphs  # type: ignore[attr-defined]
    assert (graphs.num_steps, len(graphs.launches)) == (NEW_TOKENS, 1)
    assert list(graphs._recordings.values()) != [None]
