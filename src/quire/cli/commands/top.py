"""Watch a running server in the terminal: requests, tokens per second, latencies, KV cache, models.

Ctrl+C ends it. With `--once`, or if the output is not a terminal, it shows the state once.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quire.cli.http_client import Server, ServerError
from quire.config.command_line.parser import Parser
from quire.log.writer import one_line, say
from quire.version import __version__

_LEVELS = " ▁▂▃▄▅▆▇█"
_CELLS = {"s": "█", "u": "▓", "c": "░", "f": "·"}
"""Characters for blocks of the KV cache: shared, used, cached, free. If a column stands for several
blocks, it shows the first of these states that one of them has."""
_MAP_LINES = 4
_MIN_WIDTH = 40

Snapshot = Mapping[str, Any]


def screen(
    live: Snapshot, models: Sequence[Mapping[str, Any]], rates: Sequence[float], width: int
) -> list[str]:
    """All lines, at most `width` characters each.

    `models`: the entries of `/v1/models`; `rates`: generated tokens per second, the latest last.
    """
    width = max(width, _MIN_WIDTH)
    lines = [*_head(live), *_engine(live, rates, width), "", *_models(models)]
    return [one_line(line)[:width].rstrip() for line in lines]


_WITHOUT_ENGINE = {
    "loading": "The model is being loaded.",
    "unloading": "The model is being unloaded.",
    "unloaded": "The model is unloaded; the next request loads it.",
    "failed": "The model could not be loaded; the server's log says why.",
}
"""A sentence for each state in which a model has no engine."""


def _head(live: Snapshot) -> Iterator[str]:
    yield f"{live['model']}  {live['state']}  up {_duration(live['uptime_s'])}"
    yield ""


def _engine(live: Snapshot, rates: Sequence[float], width: int) -> Iterator[str]:
    requests = live.get("requests")
    if live.get("shows_use") is False:
        yield "Of several API keys, only the operator's show what runs."
        return
    if requests is None:
        yield _WITHOUT_ENGINE.get(live["state"], "The model is not loaded.")
        return
    if "device" in live:  # a server of an older version does not say
        yield f"device       {live['device']}"
    finished = ", ".join(f"{n} {why}" for why, n in requests["finished"].items() if n)
    yield (
        f"requests     {requests['running']} running of {requests['max_num_seqs']}, "
        f"{requests['waiting']} waiting; finished: {finished or 'none'}"
    )
    speed = live["rates"]
    yield (
        f"tokens/s     {speed['generation_tokens_per_s']:.1f} generated, "
        f"{speed['prompt_tokens_per_s']:.1f} of prompts computed"
    )
    yield f"             {_curve(rates, width - 30)}"
    for name, title in (("ttft_s", "first token"), ("itl_s", "next token")):
        yield f"{title:<12} {_latency(live['latency'][name])}"
    tokens = live["tokens"]
    yield (
        f"tokens       {tokens['generation']:,} generated, {tokens['prompt']:,} of prompts, "
        f"{tokens['cached']:,} of these from caches"
    )
    yield f"prefix cache {_prefix(live['prefix_cache'])}"
    if live["preemptions"]:
        yield f"preemptions  {live['preemptions']:,}"
    yield from _kv(live["kv"], width)


def _latency(found: Mapping[str, float] | None) -> str:
    if found is None:
        return "no request yet"
    return ", ".join(f"{name} {1000 * found[name]:.0f} ms" for name in ("last", "p50", "p99"))


def _prefix(cache: Mapping[str, Any]) -> str:
    queried, hit = cache["queried_tokens"], cache["hit_tokens"]
    share = f"{100 * hit / queried:.0f} %" if queried else "none"
    loaded = cache.get("loaded_tokens") or {}
    tiers = ", ".join(f"{count:,} from {tier}" for tier, count in loaded.items() if count)
    return f"{share} of prompt tokens hit{f'; KV store: {tiers}' if tiers else ''}"


def _kv(kv: Mapping[str, Any] | None, width: int) -> Iterator[str]:
    if kv is None:
        return
    counts = ", ".join(f"{kv[name]:,} {name}" for name in ("used", "shared", "cached", "free"))
    share = 100 * kv["usage"]
    yield f"KV cache     {share:.1f} % of {kv['num_blocks']:,} blocks in use: {counts}"
    cells = "".join(state * int(count) for state, count in re.findall(r"([a-z])(\d+)", kv["map"]))
    columns = (width - 13) * _MAP_LINES
    per_column = max(1, -(-len(cells) // columns))
    pieces = [cells[at : at + per_column] for at in range(0, len(cells), per_column)]
    drawn = "".join(
        next((_CELLS[state] for state in _CELLS if state in piece), "?") for piece in pieces
    )
    for at in range(0, len(drawn), width - 13):
        yield f"             {drawn[at : at + width - 13]}"


def _models(models: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for number, model in enumerate(models):
        state = model.get("state") or model.get("status") or ""
        if isinstance(state, Mapping):
            state = state.get("value", "")
        yield f"{'models' if not number else '':<12} {model.get('id', '')}  {state}"


def _curve(values: Sequence[float], width: int) -> str:
    """The last values as a line of bars, with the greatest one."""
    shown = list(values)[-max(width, 1) :]
    top = max(shown, default=0.0)
    if top <= 0:
        return ""
    last = len(_LEVELS) - 1
    bars = "".join(_LEVELS[min(last, round(value / top * last))] for value in shown)
    return f"{bars} most {top:.1f}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""Use the terminal's second screen without a cursor; return to the first one."""
_MAX_RATES = 1000


def configure(parser: Parser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("--url", default="http://localhost:8000/v1", help="The server's address.")
    add("--api-key", help="Overrides the environment variable OPENAI_API_KEY.")
    add("--interval", type=float, default=1.0, help="Seconds between two looks; 1 by default.")
    add("--once", action="store_true", help="Show the state once.")


def execute(args: argparse.Namespace) -> int:
    """Show the state until Ctrl+C."""
    server = Server(args.url, args.api_key)
    rates: deque[float] = deque(maxlen=_MAX_RATES)
    if args.once or not sys.stdout.isatty():
        say("\n".join(_lines(server, rates)))
        return 0
    _lines(server, rates)  # an address that is wrong shows on the usual screen
    sys.stdout.write(_ENTER)
    try:
        while True:
            try:
                lines = _lines(server, rates)
            except ServerError as error:
                lines = [one_line(str(error))]
            height = shutil.get_terminal_size().lines
            sys.stdout.write(
                _HOME + "\n".join(line + _CLEAR_LINE for line in lines[: height - 1]) + _CLEAR_REST
            )
            sys.stdout.flush()
            time.sleep(max(args.interval, 0.1))
    except KeyboardInterrupt:
        return 0
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()


def _lines(server: Server, rates: deque[float]) -> list[str]:
    live = server.live()
    try:
        rates.append(live.get("rates", {}).get("generation_tokens_per_s", 0.0))
        models = [] if live["state"] == "loading" else server.models()
        return screen(live, models, rates, shutil.get_terminal_size().columns)
    except (LookupError, TypeError, ValueError, AttributeError):
        raise ServerError(
            f"{server.url}: the reply to /quire/live is not that of a Quire server of version "
            f"{__version__}; give the address of one with --url"
        ) from None
