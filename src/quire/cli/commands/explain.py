"""Show the plan for a model on this machine: its program, memory, backend, and bounds.

Reads the checkpoint's configuration and the machine, and times steps with random weights; loads no
weights.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from quire.cli.explain_rows import image_rows, ranges, reply_rows, speed_lines, store_rows
from quire.cli.terminal import quiet_log
from quire.config.command_line.engine_options import add_engine_options, engine_args
from quire.config.command_line.parser import Parser
from quire.config.kv_cache import KV_MEANINGS
from quire.config.memory import max_concurrency, tokens_held
from quire.config.quantization import MEANINGS
from quire.config.resolve import FLOAT16_NOTE, spelled_dtype
from quire.log.writer import one_line, say
from quire.redacted_settings import redacted
from quire.units import format_bytes

if TYPE_CHECKING:
    from quire.planning.plan import EnginePlan

_STEP_PARTS = "activations and buffers of matrix products, attention and sampling"


def configure(parser: Parser) -> None:
    """Declare the options."""
    add_engine_options(parser)
    parser.add_argument(
        "--full", action="store_true", help="Print every layer; do not fold equal layers."
    )
    parser.add_argument(
        "--json", action="store_true", help="Print the plan as JSON, without the program."
    )
    parser.add_argument(
        "--no-timing",
        action="store_true",
        help="Skip the estimate of speed, for which steps are timed for some seconds.",
    )
    parser.add_argument(
        "--usage", choices=["llm", "server"], default="llm", help="Use the defaults of this usage."
    )


def execute(args: argparse.Namespace) -> int:
    """Print the plan of an engine without building it. Raises the same errors as building it."""
    from quire.planning.plan import plan_engine, settle
    from quire.planning.speed.expected import expected_speeds
    from quire.program.printer import format_program

    quiet_log()  # the output below covers the log lines of planning
    given = engine_args(args)
    plan = plan_engine(given, args.usage)
    is_split = plan.config.parallel.world_size > 1  # the time of exchanges is not known
    speeds = None if args.no_timing or is_split else expected_speeds(given, plan, args.usage)
    if args.json:
        found = redacted(_plain(plan.config)) | {"expected_speed": _plain(speeds)}
        say(json.dumps(found, indent=2))
        return 0
    for rank in plan.config.parallel.ranks:
        if rank.world_size > 1:
            say(f"{rank}:")
        say(format_program(plan.compiled.of_rank(rank).program, fold=not args.full))
    for title, rows in _sections(plan, given.dtype):
        say(f"\n{title}")
        for name, value in rows:
            say(f"  {name:<26} {one_line(str(value))}")
    for line in speed_lines(speeds):
        say(line)
    served = plan if args.usage == "server" else settle(given, "server", plan.facts)
    say("\nbounds of a server (limit, value, and what happens beyond it)")
    for row in _server_rows(served):
        say(row)
    return 0


def _sections(plan: EnginePlan, asked: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    yield "model", _model_rows(plan, asked)
    yield "parameters", _parameter_rows(plan)
    yield "memory", _memory_rows(plan)
    device = plan.config.device
    yield (
        "computes",
        [
            ("backend", f"{device.backend}: {plan.facts.backend.capabilities.description}"),
            ("threads", str(device.num_threads)),
        ],
    )
    yield "bounds of a step", _bound_rows(plan)
    if replies := reply_rows(plan.config):
        yield "replies to chats", replies


def _model_rows(plan: EnginePlan, asked: str) -> list[tuple[str, str]]:
    from quire.models.rope.factors import rope_factors

    model, facts = plan.config.model, plan.facts.checkpoint.model.facts
    heads = f"{facts.num_heads} heads, {facts.num_kv_heads} of keys and values"
    window = f", window {facts.sliding_window}" if facts.sliding_window else ""
    factors = rope_factors(plan.facts.checkpoint.model, model.max_model_len)
    longest = facts.max_model_len - facts.num_sources
    return [
        ("name", f"{model.model} ({model.architecture})"),
        ("directory", str(model.path)),
        ("layers", f"{facts.num_layers}, hidden size {facts.hidden_size}"),
        ("attention", f"{heads}, {facts.head_dim} wide{window}"),
        ("vocabulary", f"{facts.vocab_size:,}{', tied head' * facts.tie_word_embeddings}"),
        ("context", f"{model.max_model_len:,} of {longest:,} tokens"),
        *([("rope factors", factors)] if factors is not None else []),
        ("arithmetic", _arithmetic(plan)),
        *([("asked for", f"{asked}: {FLOAT16_NOTE}")] if spelled_dtype(asked) == "float16" else []),
        *_pooling_rows(plan),
        *image_rows(plan),
    ]


def _pooling_rows(plan: EnginePlan) -> list[tuple[str, str]]:
    pooling = plan.config.model.pooling
    if pooling is None:
        return []
    what = "classes" if pooling.task.endswith("classify") else "numbers"
    activation = pooling.activation if pooling.is_activated else "identity"
    tokens = "" if pooling.tokens is None else ", or by token_embed for each token"
    rows = [
        ("task", f"{pooling.task}: {pooling.width:,} {what} for each text{tokens}"),
        ("pooling", f"{pooling.pooling_type}, then {activation}"),
    ]
    if pooling.prompts:
        names = ", ".join(sorted(pooling.prompts))
        default = f" (default {pooling.default_prompt})" if pooling.default_prompt else ""
        rows.append(("prompts", names + default))
    return rows


def _arithmetic(plan: EnginePlan) -> str:
    from quire.program import GroupedFormat

    dtype, quantization = plan.config.model.dtype, plan.config.model.quantization
    if quantization is not None:
        return f"{dtype}, {quantization}: {MEANINGS[quantization]}"
    params = plan.compiled.program.params()
    is_held = any(isinstance(param.format, GroupedFormat) for param in params)
    return dtype + ", matrices as the checkpoint holds them" * is_held


def _parameter_rows(plan: EnginePlan) -> list[tuple[str, str]]:
    from quire.program import GroupedFormat

    kinds: dict[tuple[str, str], list[int]] = {}
    for param in plan.compiled.program.params():
        words = [word for word in param.name.split(".") if not word.isdigit()]
        weight_format = str(param.format)
        if isinstance(param.format, GroupedFormat):
            weight_format += f" ({param.format.bits_per_weight:.2f} bits per weight)"
        kinds.setdefault((" ".join(words), weight_format), []).append(param.num_elements)
    total = sum(sum(sizes) for sizes in kinds.values())
    largest = sorted(kinds.items(), key=lambda kind: -sum(kind[1]))
    rows = [
        (
            name,
            f"{sum(sizes):>13,}  {100 * sum(sizes) / total:5.1f} %  in {len(sizes)}"
            + f", {weight_format}" * (weight_format != "dense"),
        )
        for (name, weight_format), sizes in largest
    ]
    return [("all", f"{total:>13,}  100.0 %"), *rows]


def _memory_rows(plan: EnginePlan) -> list[tuple[str, str]]:
    needs, memory = plan.needs, plan.facts.memory
    return [
        ("available", f"{format_bytes(memory.available_bytes)} ({memory.source})"),
        ("weights", format_bytes(needs.weight_bytes) + _origin(plan)),
        ("  one token reads", _read_by_a_token(plan)),
        *_draft_rows(plan),
        ("one step", f"{format_bytes(needs.workspace_bytes)} at most: {_STEP_PARTS}"),
        *_adapter_rows(plan),
        *_kv_rows(plan),
    ]


def _draft_rows(plan: EnginePlan) -> list[tuple[str, str]]:
    model, draft, backend = plan.config.draft, plan.compiled.draft, plan.facts.backend
    if model is None or draft is None:
        return []
    options, held = draft.options, plan.compiled.held
    num_bytes = backend.weight_bytes(draft.program, options.dtype, held, options.stored_numbers)
    block = format_bytes(backend.kv_block_bytes(draft.program, draft.kv))
    return [
        ("  draft model", f"{format_bytes(num_bytes)}, and {block} of each KV block: {model.model}")
    ]


def _adapter_rows(plan: EnginePlan) -> list[tuple[str, str]]:
    lora = plan.config.lora
    if lora is None:
        return []
    share = lora.adapter_bytes / max(1, plan.needs.weight_bytes)
    size = format_bytes(lora.adapter_bytes)
    return [
        ("adapters", f"{format_bytes(lora.memory_bytes)} of the step's memory, if all are in use"),
        ("  one of rank", f"{lora.max_lora_rank}: {size}, {share:.1%} of the weights, which a step "
         "reads for each adapter in it"),
    ]  # fmt: skip


def _kv_rows(plan: EnginePlan) -> list[tuple[str, str]]:
    needs, cache = plan.needs, plan.config.cache
    if not cache.layout.groups:
        return [("KV cache", "none: a text is computed in one step")]
    pool_bytes = cache.num_blocks * cache.block_bytes
    tokens = tokens_held(needs, cache.num_blocks)
    longest = max_concurrency(needs, cache.num_blocks)
    return [
        ("KV cache", f"{format_bytes(pool_bytes)}, reserved now, used as it fills"),
        ("  holds", f"{tokens:,} tokens in {cache.num_blocks:,} blocks of {cache.block_size}"),
        *_request_rows(plan),
        ("  of the longest kind", f"{longest:.1f} requests at once"),
        ("  prefix caching", "on" if cache.enable_prefix_caching else "off"),
        *store_rows(plan),
    ]


def _read_by_a_token(plan: EnginePlan) -> str:
    """Bytes of weights read per token, which limit the speed of one stream, and the experts
    used."""
    from quire.program import Experts

    program = plan.compiled.program
    read = plan.compiled.bytes_read(plan.facts.backend, 1)
    taken = {(op.top_k, op.routes.dim) for op in program.ops if isinstance(op, Experts)}
    experts = ", ".join(f"{few} of {all_} experts" for few, all_ in sorted(taken))
    return format_bytes(read) + f" of them: {experts} of a layer" * bool(experts)


def _request_rows(plan: EnginePlan) -> list[tuple[str, str]]:
    needs, cache = plan.needs, plan.config.cache
    groups, longest = cache.layout.groups, plan.config.model.max_positions
    by_position = sum(group.is_by_position for group in groups)
    dtype = cache.kv_cache_dtype
    per_token = by_position * cache.block_bytes / cache.block_size
    kept, most = needs.kv_blocks_kept(longest), needs.kv_blocks(longest)
    rows = [
        ("  one token", f"{format_bytes(per_token)} ({dtype}: {KV_MEANINGS[dtype]})"),
        (
            "  longest request",
            f"{format_bytes(kept * cache.block_bytes)} in {kept:,} blocks"
            + f", up to {most:,} while its prompt is computed" * (most > kept),
        ),
    ]
    for state in cache.layout.states:
        size = format_bytes(state.num_blocks * cache.block_bytes)
        rows.append(
            (
                "  state of a request",
                f"{size} in {state.num_blocks:,} blocks, of {len(state.layers)} recurrent ops",
            )
        )
    if cache.layout.keeps_all:
        return rows
    for index, group in enumerate(groups):
        if not group.is_by_position:
            continue
        seen = "all tokens" if group.keeps_all else f"a window of {group.window:,}"
        num_blocks = group.most_blocks(longest, 1, cache.block_size)
        layers = f"layers {ranges(group.layers, ', ', '..')}"
        rows.append((f"    group {index}", f"{num_blocks:,} of these: {layers}, which see {seen}"))
    return rows


def _origin(plan: EnginePlan) -> str:
    """The origin of the weights; empty if they are converted from a checkpoint at each start."""
    if plan.config.model.weights == "dummy":
        return ", random numbers (load_format=dummy)"
    packed = plan.facts.checkpoint.packed
    if packed is None:
        return ""
    how = f", packed for tier {packed.isa} by Quire {packed.quire_version}, used in place"
    return how if packed.calibration is None else f"{how}; calibrated with {packed.calibration}"


def _bound_rows(plan: EnginePlan) -> list[tuple[str, str]]:
    scheduler = plan.config.scheduler
    return [
        ("tokens", f"{scheduler.max_num_batched_tokens:,}"),
        ("requests", f"{scheduler.max_num_seqs:,}"),
        ("order", scheduler.policy),
    ]


def _server_rows(plan: EnginePlan) -> list[str]:
    from quire.server import ServerArgs, describe_bounds

    return [
        f"  {bound.option.replace('_', '-'):<26} {bound.value:<12} {bound.what:<30} {bound.beyond}"
        for bound in describe_bounds(ServerArgs(), plan.config)
    ]


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    return str(value) if isinstance(value, Path) else value
