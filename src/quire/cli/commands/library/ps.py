"""Show the models of a running server, and which of them are loaded."""

from __future__ import annotations

import argparse
import json

from quire.cli.conversation.client import Server
from quire.cli.library import table
from quire.config.command_line.parser import Parser
from quire.units import format_bytes


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--url", default="http://localhost:8000/v1", help="The server's address; /v1 is optional."
    )
    parser.add_argument("--api-key", help="Overrides the environment variable OPENAI_API_KEY.")
    parser.add_argument("--json", action="store_true", help="Print JSON for programs.")


def execute(args: argparse.Namespace) -> int:
    """Print a row for each model."""
    cards = Server(args.url, args.api_key).models()
    if args.json:
        print(json.dumps(cards, indent=2))
        return 0
    rows = []
    for card in cards:
        status = card.get("status") or {"value": "loaded"}
        left = status.get("expires_in")
        rows.append((
            str(card.get("id")), status["value"],
            format_bytes(status["num_bytes"]) if status.get("num_bytes") else "",
            str(status.get("num_requests", "")), "" if left is None else f"in {left:.0f} s",
        ))  # fmt: skip
    print(table(("NAME", "STATE", "MEMORY", "REQUESTS", "UNLOADED"), rows))
    return 0
