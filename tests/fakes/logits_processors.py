"""Logits processors for tests, under names that an engine process can import too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.logits_processors import (
    AdapterLogitsProcessor,
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
    RequestLogitsProcessor,
)
from quire.params import SamplingParams

Logits = NDArray[np.float32]


def arg(params: SamplingParams, name: str) -> Any:
    return (params.extra_args or {}).get(name)


class Ledger(LogitsProcessor):
    """Keeps a book of the batch, as a processor of a user would. Changes nothing."""

    IS_ARGMAX_INVARIANT = False

    def __init__(self, vllm_config: Any, device: str, is_pin_memory: bool) -> None:
        assert vllm_config.model_config.vocab_size
        assert (device, is_pin_memory) == ("cpu", False)
        self.requests: dict[int, tuple[SamplingParams, list[int], list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        return self.IS_ARGMAX_INVARIANT

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for place in batch_update.removed:
            del self.requests[place]
        for place, params, prompt, output in batch_update.added:
            assert prompt is not None
            self.requests[place] = (params, prompt, output)
        for first, second, direction in batch_update.moved:
            assert direction is MoveDirectionality.UNIDIRECTIONAL
            self.requests[second] = self.requests.pop(first)
        assert sorted(self.requests) == [*range(batch_update.batch_size)]

    def apply(self, logits: Logits) -> Logits:
        assert len(logits) == len(self.requests)
        return logits


class InvariantLedger(Ledger):
    IS_ARGMAX_INVARIANT = True


class TargetToken(Ledger):
    """Lets nothing but the token `target_token` of a request be chosen."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        target = arg(sampling_params, "target_token")
        if target is not None and not isinstance(target, int):
            raise ValueError(f"target_token value {target} {type(target)} is not int")

    def apply(self, logits: Logits) -> Logits:
        for place, (params, _, _) in self.requests.items():
            target = arg(params, "target_token")
            if target is not None:
                kept = logits[place, target]
                logits[place] = -np.inf
                logits[place, target] = kept
        return logits


class TargetOfRequest(AdapterLogitsProcessor):
    """The same, a callable for each request; `fails_at`: after so many tokens it raises."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        target, fails_at = arg(params, "target_token"), arg(params, "fails_at")
        if arg(params, "fails_to_start"):
            raise LookupError("no such thing")
        if target is None and fails_at is None:
            return None

        def process(prompt: list[int], output: list[int], logits: Logits) -> Any:
            assert prompt
            if fails_at is not None:
                logits[:] = 0
                if len(output) >= fails_at:
                    return FAULTS[arg(params, "fault") or "raises"](logits)
            changed = np.full_like(logits, -np.inf)
            changed[target or 0] = logits[target or 0]
            return changed

        return process


class ChooserOfRequest(AdapterLogitsProcessor):
    """A request brings the object that changes its logits: `chooser`."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        chooser = arg(params, "chooser")
        return None if chooser is None else lambda _, logits: chooser(logits)


def _raises(_: Logits) -> Logits:
    raise ZeroDivisionError("I am broken")


def _exits(_: Logits) -> Logits:
    raise SystemExit("I am broken")


FAULTS: dict[str, Callable[[Logits], Any]] = {
    "raises": _raises,
    "exits": _exits,
    "NaN": lambda logits: np.full_like(logits, np.nan),
    "infinite": lambda logits: np.full_like(logits, np.inf),
    "nothing left": lambda logits: np.full_like(logits, -np.inf),
    "None": lambda _: None,
    "shape": lambda logits: logits[..., :-1],
    "dtype": lambda logits: logits.astype(np.float64),
}


class Fragile(Ledger):
    """Has a fault (`fault`) as soon as a request with `fails_at` has so many tokens; one that
    raises has written to all rows before."""

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        super().update_state(batch_update)
        if any(arg(params, "fails_to_start") for params, _, _ in self.requests.values()):
            raise LookupError("no such thing")

    def apply(self, logits: Logits) -> Logits:
        guilty = [
            place
            for place, (params, _, output) in self.requests.items()
            if arg(params, "fails_at") is not None and len(output) >= arg(params, "fails_at")
        ]
        if not guilty:
            return logits
        fault = arg(self.requests[guilty[0]][0], "fault")
        if fault in ("NaN", "infinite", "nothing left"):
            for place in guilty:
                logits[place] = FAULTS[fault](logits[place])
            return logits
        logits += np.arange(logits.shape[1], dtype=np.float32)
        return FAULTS[fault](logits)  # type: ignore[no-any-return]


class FlatTop(Ledger):
    """Argmax invariant: of the 5 largest logits, the 4 lower ones become nearly equal."""

    IS_ARGMAX_INVARIANT = True

    def apply(self, logits: Logits) -> Logits:
        for place, (params, _, _) in self.requests.items():
            if arg(params, "flat"):
                best = np.argsort(-logits[place], kind="stable")[:5]
                changed = np.full_like(logits[place], -np.inf)
                changed[best] = 0
                changed[best[0]] = 1
                logits[place] = changed
        return logits


class CannotBeMade(Ledger):
    def __init__(self, vllm_config: Any, device: str, is_pin_memory: bool) -> None:
        del vllm_config, device, is_pin_memory
        raise OSError("no file")
