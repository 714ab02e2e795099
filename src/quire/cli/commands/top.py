"""Watch a running server in the terminal: requests, tokens per second, latencies, KV cache, models.

Ctrl+C ends it. With `--once`, or if the output is not a terminal, it shows the state once.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections import deque

from quire.cli.conversation.client import Server, ServerError
from quire.cli.top.screen import screen
from quire.config.command_line.parser import Parser

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
        print("\n".join(_lines(server, rates)))
        return 0
    _lines(server, rates)  # an address that is wrong shows on the usual screen
    sys.stdout.write(_ENTER)
    try:
        while True:
            try:
                lines = _lines(server, rates)
            except ServerError as error:
                lines = [str(error)]
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
    rates.append(live.get("rates", {}).get("generation_tokens_per_s", 0.0))
    models = [] if live["state"] == "loading" else server.models()
    return screen(live, models, rates, shutil.get_terminal_size().columns)
