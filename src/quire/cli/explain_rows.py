"""Rows of quire explain: the expected speed, the KV store, replies to chats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from quire.images.modality import MODALITIES
from quire.units import format_bytes
from quire.weights import projector_file

if TYPE_CHECKING:
    from quire.chat.templates import ChatTemplates
    from quire.config import EngineConfig
    from quire.planning.plan import EnginePlan
    from quire.planning.speed.expected import Expected, Speed
    from quire.planning.speed.work import Work


def speed_lines(found: Expected | None) -> Iterator[str]:
    """Two tables: the work of a step, and the speed in each format. Empty if `found` is None."""
    if found is None:
        return
    if not found.speeds:
        yield "\nexpected speed"
        yield f"  {found.not_timed}"
        return
    own = found.speeds[0]
    yield f"\nwork of a step in {own.name} (each request has {found.context} tokens before)"
    yield f"  {'':<16}{'weights read':>16}{'K and V read':>16}{'operations':>18}"
    for count, work in own.work.items():
        yield _work_row(_streams(count), work)
    yield _work_row(f"prompt of {found.prompt}", own.prompt_work)
    origin = "from steps timed here, with random weights"
    columns = [*(_streams(count) for count in own.streams), f"prompt of {found.prompt}"]
    if found.bytes_per_second:
        origin = f"at most, at {found.bytes_per_second / 1e9:,.0f} GB/s of the device's memory"
        columns = columns[:-1]
    yield f"\nexpected speed, tokens per second ({origin})"
    yield f"  {'':<24}{'weights':>12}" + "".join(f"{column:>15}" for column in columns)
    yield from map(_speed_row, found.speeds)
    for name, why in found.left_out:
        yield f"  {name:<24}  {why}"
    if own.drafts:
        yield f"\ndraft tokens in {own.name}: time of a step, 1 without drafts"
        titles = [
            f"{number} draft{'s' * (number > 1)}" for number in next(iter(own.drafts.values()))
        ]
        yield f"  {'each request has':<24}" + "".join(f"{title:>15}" for title in titles)
        for count, times in own.drafts.items():
            cells = "".join(f"{one:>15.2f}" for one in times.values())
            yield f"  {_streams(count):<24}{cells}"
        yield "  They pay if a step gives more than this many times the tokens: 1 + accepted drafts"


def image_rows(plan: EnginePlan) -> list[tuple[str, str]]:
    """The encoder of images or audio, or why there is none."""
    from quire.models.media.families import vision_model  # for models with images alone

    model = plan.config.model
    vision = vision_model(model.hf_config) if model.images is not None else None
    if vision is None:
        return [("images", f"none: {model.no_images}")]
    file = projector_file(model.path)
    place = "" if file is None else f" of {file.readlink().name}"
    rows = vision.patching.most_rows
    return [
        (
            MODALITIES[vision.kind].plural,
            f"encoder {vision.family}{place}: at most {rows:,} tokens for each tile",
        )
    ]


def _streams(count: int) -> str:
    return f"{count} stream{'s' * (count > 1)}"


def _work_row(title: str, work: Work) -> str:
    reads = format_bytes(work.weight_bytes), format_bytes(work.kv_bytes)
    return f"  {title:<16}{reads[0]:>16}{reads[1]:>16}{work.operations / 1e9:>16,.2f} G"


def _speed_row(speed: Speed) -> str:
    rates = [*speed.streams.values(), *([] if speed.prompt is None else [speed.prompt])]
    cells = "".join(f"{rate:>15,.{1 if rate < 1000 else 0}f}" for rate in rates)
    return f"  {speed.name:<24}{format_bytes(speed.weight_bytes):>12}{cells}"


def store_rows(plan: EnginePlan) -> list[tuple[str, str]]:
    """The size of a chunk, and each tier, the nearest first."""
    from quire.planning.kv.store import describe

    store, cache = plan.config.kv_store, plan.config.cache
    if store is None:
        return [("KV store", f"off: {plan.no_kv_store}")]
    tokens = store.chunk_blocks * cache.block_size
    size = format_bytes(store.chunk_blocks * cache.block_bytes)
    rows = [("KV store", f"chunks of {tokens} tokens, {size} for each group of layers")]
    rows += [("  tier" if index else "  tiers", tier) for index, tier in enumerate(describe(store))]
    if store.disk_path is None:
        rows.append(("  no files", plan.no_kv_store))
    if store.ttl_s is not None:
        rows.append(("  dropped", f"K/V not used for {store.ttl_s:g} s"))
    return rows


Rows = list[tuple[str, str]]


def reply_rows(config: EngineConfig) -> Rows:
    """Rows about the parsing of replies, and the source of the format."""
    templates = _templates(config)
    if templates is None:
        return []
    from quire.chat.renderer import ChatRenderer
    from quire.parsers.detection.finder import find_blocking
    from quire.parsers.detection.names import FormatChoice

    choice = FormatChoice.of(None, config.structured_outputs.reasoning_parser)
    renderer = ChatRenderer(templates)
    try:
        found = find_blocking(choice, config.model, renderer)
    finally:
        renderer.close()
    calls = str(found.tools or "not parsed: the model's call format is unknown")
    if found.tools is None and not found.shows_tools:
        calls = "not parsed: the chat template shows no tools"
    return [("reasoning", str(found.reasoning or "not parsed")), ("tool calls", calls)]


def _templates(config: EngineConfig) -> ChatTemplates | None:
    if config.model.tokenizer_path is None:
        return None
    from quire.chat.templates import ChatTemplates

    return ChatTemplates.of_files(config.model)


def ranges(numbers: Sequence[int], between: str, dash: str) -> str:
    """Ascending numbers with runs folded, such as `0..4, 6`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    folded = (f"{run[0]}{dash}{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return between.join(folded)
