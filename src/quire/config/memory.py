"""Division of the available memory among the parts of an engine. Reads nothing.

Called by `planning`; how much there is, `planning/machine.py` says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from quire.config.kv_cache import KVMemoryChoice
from quire.config.kv_layout import KVLayout
from quire.errors import DoesNotFitError
from quire.log import get_logger
from quire.units import format_bytes

logger = get_logger(__name__)

_MAX_BLOCKS = 2**31 - 1
"""Block ids are 32 bits wide."""


@dataclass(frozen=True, slots=True)
class AvailableMemory:
    """Bytes that this process may still use, and what says so."""

    available_bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Memory that a model needs, in bytes unless the name says otherwise."""

    weight_bytes: int
    workspace_bytes: int
    kv_block_bytes: int
    kv_layout: KVLayout
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int

    def kv_blocks(self, num_tokens: int) -> int:
        """KV blocks that a request of `num_tokens` holds at once, at most: in a step that computes
        nothing but its prompt."""
        return self.kv_layout.most_blocks(num_tokens, self.max_num_batched_tokens, self.block_size)

    def kv_blocks_kept(self, num_tokens: int) -> int:
        """KV blocks that it holds at most while it generates."""
        return self.kv_layout.most_blocks(num_tokens, 1, self.block_size)

    def longest_request(self, num_blocks: int) -> int:
        """The longest request that so many blocks are enough for, up to `max_model_len`."""
        chunk = self.max_num_batched_tokens
        return self.kv_layout.longest(num_blocks, self.max_model_len, chunk, self.block_size)


@dataclass(frozen=True, slots=True)
class Fitted:
    """Sizes that the memory has room for."""

    needs: MemoryNeeds
    """With the `max_model_len` that became of it."""
    num_blocks: int


def fit(
    needs: MemoryNeeds, choice: KVMemoryChoice, memory: AvailableMemory, *, shortens: bool
) -> Fitted:
    """The size of the KV cache; where `shortens`, of the longest context that it has room for.

    Raises DoesNotFitError as `num_kv_blocks` does, and where there is room for no context.
    """
    if shortens:
        fits = longest_fit(needs, choice, memory)
        if fits < 2:
            raise DoesNotFitError(
                f"the memory is too small for any context: {needs.block_size} tokens need "
                f"{format_bytes(needs.kv_blocks(needs.block_size) * needs.kv_block_bytes)}; free "
                "memory, or give kv_cache_memory_bytes or gpu_memory_utilization a larger value"
            )
        if fits < needs.max_model_len:
            logger.info("max_model_len is %d: that is what the KV cache has room for", fits)
            needs = replace(needs, max_model_len=fits)
    return Fitted(needs, num_kv_blocks(needs, choice, memory))


def num_kv_blocks(needs: MemoryNeeds, choice: KVMemoryChoice, memory: AvailableMemory) -> int:
    """The number of KV blocks: as many as could ever be of use, if there is room for them.

    Raises DoesNotFitError where the weights, the blocks that the user asks for, or one request
    of `max_model_len` do not fit.
    """
    if not needs.kv_layout.groups:
        kv_budget_bytes(needs, choice, memory)
        return 1  # nothing is kept from step to step, and a pool has at least one block
    if choice.num_blocks is not None:
        num_blocks = _checked_blocks(choice.num_blocks, needs, choice, memory)
    else:
        budget = kv_budget_bytes(needs, choice, memory) // needs.kv_block_bytes
        num_blocks = min(_useful_blocks(needs), budget)
    if num_blocks < needs.kv_blocks(needs.max_model_len):
        raise DoesNotFitError(_context_message(needs, max(0, num_blocks), choice, memory))
    return min(num_blocks, _MAX_BLOCKS)


def _checked_blocks(
    wanted: int, needs: MemoryNeeds, choice: KVMemoryChoice, memory: AvailableMemory
) -> int:
    """The user's number, which no share of the memory bounds, but all of it does."""
    room = memory.available_bytes - needs.weight_bytes - needs.workspace_bytes
    if room < needs.kv_block_bytes:
        raise DoesNotFitError(_weights_message(needs, choice, memory))
    fits = min(room // needs.kv_block_bytes, _MAX_BLOCKS)
    if wanted > fits:
        raise DoesNotFitError(
            f"num_gpu_blocks_override={wanted} does not fit: a block takes "
            f"{format_bytes(needs.kv_block_bytes)}, and {format_bytes(room)} remain after "
            f"weights and workspace ({memory.source}); {fits} would fit"
        )
    return wanted


def max_concurrency(needs: MemoryNeeds, num_blocks: int) -> float:
    """`KVLayout.max_concurrency` of requests of `max_model_len`."""
    length, chunk = needs.max_model_len, needs.max_num_batched_tokens
    return needs.kv_layout.max_concurrency(num_blocks, length, chunk, needs.block_size)


def tokens_held(needs: MemoryNeeds, num_blocks: int) -> int:
    """`KVLayout.tokens_held` of requests of `max_model_len`."""
    length, chunk = needs.max_model_len, needs.max_num_batched_tokens
    return needs.kv_layout.tokens_held(num_blocks, length, chunk, needs.block_size)


def _useful_blocks(needs: MemoryNeeds) -> int:
    """All that the requests that run at once ever compute, if each is of `max_model_len`: what they
    give back before they end can be found as a prefix."""
    length, size = needs.max_model_len, needs.block_size
    return needs.max_num_seqs * sum(
        group.most_useful(length, size) for group in needs.kv_layout.groups
    )


def kv_budget_bytes(needs: MemoryNeeds, choice: KVMemoryChoice, memory: AvailableMemory) -> int:
    """Bytes for the KV cache. Raises DoesNotFitError if the weights alone are too large."""
    fixed = needs.weight_bytes + needs.workspace_bytes
    wanted = fixed + (choice.cache_bytes or 0)
    limit = memory.available_bytes
    if choice.cache_bytes is None:
        limit = int(limit * choice.utilization)
    if wanted > limit:
        raise DoesNotFitError(_weights_message(needs, choice, memory))
    return choice.cache_bytes if choice.cache_bytes is not None else limit - fixed


def longest_fit(needs: MemoryNeeds, choice: KVMemoryChoice, memory: AvailableMemory) -> int:
    """The longest context of which one request fits, up to `max_model_len`."""
    num_blocks = choice.num_blocks
    if not needs.kv_layout.groups:
        return needs.max_model_len
    if num_blocks is None:
        num_blocks = kv_budget_bytes(needs, choice, memory) // needs.kv_block_bytes
    return needs.longest_request(num_blocks)


def _weights_message(needs: MemoryNeeds, choice: KVMemoryChoice, memory: AvailableMemory) -> str:
    room = format_bytes(memory.available_bytes)
    weights, workspace = format_bytes(needs.weight_bytes), format_bytes(needs.workspace_bytes)
    if choice.cache_bytes is not None:
        fits = memory.available_bytes - needs.weight_bytes - needs.workspace_bytes
        if fits > 0:
            return (
                f"kv_cache_memory_bytes={choice.cache_bytes} does not fit: {room} are available "
                f"({memory.source}), of which the weights take {weights} and a step {workspace}; "
                f"{fits} would fit"
            )
    return (
        f"the model does not fit: its weights need {weights} and a step {workspace}, and "
        f"{format_bytes(memory.available_bytes * choice.utilization)} may be used: "
        f"gpu_memory_utilization={choice.utilization:g} of the {room} available "
        f"({memory.source}). Free memory, take a smaller model, or a smaller "
        "max_num_batched_tokens"
    )


def _context_message(
    needs: MemoryNeeds, num_blocks: int, choice: KVMemoryChoice, memory: AvailableMemory
) -> str:
    num_wanted = needs.kv_blocks(needs.max_model_len)
    wanted = num_wanted * needs.kv_block_bytes
    cache_size = format_bytes(num_blocks * needs.kv_block_bytes)
    fits = needs.longest_request(num_blocks)
    cause, remedy = "", f"set max_model_len={fits}, or -1 to let the engine choose"
    if choice.num_blocks is not None:
        cause = f"num_gpu_blocks_override={choice.num_blocks} is too small. "
        remedy += f"; or set num_gpu_blocks_override={num_wanted}"
    elif choice.cache_bytes is not None:
        cause = f"kv_cache_memory_bytes={choice.cache_bytes} is too small. "
        remedy += f"; or set kv_cache_memory_bytes={wanted}"
    if not fits:
        remedy = remedy.partition("; or ")[2] or "free memory, or set a smaller max_model_len"
    return (
        f"{cause}To serve at least one request with the model's max seq len "
        f"({needs.max_model_len}), {format_bytes(wanted)} KV cache is needed, which is larger "
        f"than the available KV cache memory ({cache_size} after "
        f"{format_bytes(needs.weight_bytes)} "
        f"of weights, out of {format_bytes(memory.available_bytes)} available: "
        f"{memory.source}). Based on the available memory, the estimated maximum model length "
        f"is {fits}: {remedy}"
    )
