"""`DecodeGroup`: replicas that go on with prompts that other replicas have computed, as one engine
of a front end. The K/V itself goes through the KV store that all of them share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec

from quire.config import EngineConfig
from quire.core.client import EngineListener
from quire.core.messages import AddRequest, Call, Command
from quire.core.parallel.joining import join_answers
from quire.errors import ConfigError, EngineDeadError
from quire.params import SamplingParams
from quire.protocol import EngineCoreOutputs, EngineCoreRequest
from quire.ray.serve.replica_group import ReplicaCalls, ReplicaGroup

_FIRST_TOKEN = SamplingParams(max_tokens=1, temperature=0.0, seed=0)
"""The token that a replica chooses after a prompt is not used."""


class PrefillGroup(ReplicaGroup):
    """Replicas that compute prompts. While there is none, requests are lost at once."""

    def _hold(self, request: EngineCoreRequest, num_places: int) -> None:
        del num_places
        self._replicas.ask_for_one()
        if self._listener is not None:
            self._listener.on_lost([request.request_id], EngineDeadError(self._none_there()))


class DecodeGroup(ReplicaGroup):
    """A request first goes to a prefill replica, and then, with the name of its prompt's K/V, to a
    decode replica. The decode replica computes a prompt that no prefill replica has computed, so
    requests end with an error for no other reasons than in a `ReplicaGroup`."""

    def __init__(self, config: EngineConfig, replicas: ReplicaCalls, prefill: PrefillGroup) -> None:
        super().__init__(config, replicas)
        self._prefill = prefill
        self._in_prefill: dict[str, EngineCoreRequest] = {}
        """Requests whose prompts are being computed."""

    def attach(self, loop: asyncio.AbstractEventLoop, listener: EngineListener) -> None:
        super().attach(loop, listener)
        own = EngineListener(self._on_prompts, lambda _: None, lambda ids, _: self._go_on(ids))
        self._prefill.attach(loop, own)

    async def call(self, command: str, *args: Any, **kwargs: Any) -> Any:
        both = (super().call, self._prefill.call)
        answers = await asyncio.gather(*(one(command, *args, **kwargs) for one in both))
        return join_answers(command, answers)

    def abandon(self) -> None:
        super().abandon()
        self._prefill.abandon()

    def _deliver(self, command: Command) -> None:
        if isinstance(command, AddRequest) and self._is_handed_on(command.request):
            self._in_prefill[command.request.request_id] = command.request
            request = _of_prompt(command.request)
            if self._prefill.root != self.root:  # the blocks of its replicas have other keys
                request.block_keys = []
            self._prefill.add_request(request)
            return
        if isinstance(command, Call):  # of `notify`
            self._prefill.notify(command.command)
        super()._deliver(command)

    def _is_handed_on(self, request: EngineCoreRequest) -> bool:
        """Whether another replica computes the prompt. A request with a grammar does not wait for
        K/V; a beam has computed most of its prompt."""
        params = request.sampling_params
        return not (
            request.pooling_params is not None
            or request.hands_off
            or request.awaited_kv is not None
            or request.num_reply_tokens
            or params.structured_outputs is not None
            or params.prompt_logprobs is not None
            or len(request.prompt_token_ids) <= self._placement.limits.block_size
        )

    def _abort(self, request_ids: list[str]) -> None:
        found = [one for one in request_ids if self._in_prefill.pop(one, None) is not None]
        if found:
            self._prefill.abort_requests(found)
        super()._abort(request_ids)

    def _on_prompts(self, outputs: EngineCoreOutputs) -> None:
        for output in outputs.outputs:
            if output.finish_reason is not None:
                self._go_on([output.request_id], output.kv_name)

    def _go_on(self, request_ids: Iterable[str], kv_name: str | None = None) -> None:
        """Prompts were computed and stored under this name, or were lost."""
        for request_id in request_ids:
            request = self._in_prefill.pop(request_id, None)
            if request is not None:
                awaiting = msgspec.structs.replace(request, awaited_kv=kv_name)
                super()._deliver(AddRequest(awaiting))


def check_hand_off(prefill: EngineConfig, decode: EngineConfig) -> None:
    """Raises ConfigError if replicas of these configurations could not use each other's K/V."""
    stores = (prefill.kv_store, decode.kv_store)
    if any(one is None for one in stores):
        raise ConfigError(
            "prefill_config and decode_config need a KV store, through which K/V goes: leave out "
            "kv_store=False and QUIRE_KV_STORE=off"
        )
    if prefill.cache.fingerprint != decode.cache.fingerprint:
        raise ConfigError(
            "prefill_config and decode_config must have the same model_source and the same "
            "dtype and quantization: their replicas compute other K/V"
        )
    places = [
        {*one.remotes, *([one.disk_path] if one.disk_path is not None else [])}
        for one in stores
        if one is not None
    ]
    if not places[0] & places[1]:
        raise ConfigError(
            "prefill_config and decode_config have no place of K/V in common: give both the same "
            "kv_store_path or kv_store_url"
        )


def _of_prompt(request: EngineCoreRequest) -> EngineCoreRequest:
    """The request for the replica that computes the prompt."""
    return msgspec.structs.replace(
        request, sampling_params=_FIRST_TOKEN, hands_off=True, reasoning=None,
        predicted_token_ids=[], stop_token_ids=[], eos_token_ids=[], banned_token_ids=[],
    )  # fmt: skip
