"""Show what is known of a model on this machine: its files and its configuration."""

from __future__ import annotations

import argparse
import json
from typing import Any

from quire.cli.library import cached_model, place_of
from quire.config.checkpoint.model_files import DEMO_MODEL, read_config
from quire.config.command_line.parser import Parser
from quire.config.places.hub import resolve_model
from quire.errors import ModelNotFoundError, QuireError
from quire.units import format_bytes

_KEYS = (
    "architectures", "num_hidden_layers", "hidden_size", "max_position_embeddings", "vocab_size",
)  # fmt: skip


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.add_argument(
        "model",
        nargs="?",
        default=DEMO_MODEL,
        metavar="MODEL",
        help="A hub id, a path, or an alias; without one, the bundled demo model.",
    )
    parser.add_argument("--json", action="store_true", help="Print JSON for programs.")


def execute(args: argparse.Namespace) -> int:
    """Print the facts. `quire explain MODEL` prints the program and the memory plan."""
    facts = facts_of(args.model)
    if args.json:
        print(json.dumps(facts, indent=2))
        return 0
    width = max(map(len, facts))
    for name, value in facts.items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        print(f"{name:<{width}}  {text}")
    return 0


def facts_of(name: str) -> dict[str, Any]:
    """Names and values. Raises ModelNotFoundError for a model that is not on this machine."""
    facts: dict[str, Any] = {"name": name}
    try:
        model = cached_model(name)
    except ModelNotFoundError:
        facts["path"] = str(resolve_model(name, needs_weights=False))
    else:
        facts = {
            "name": model.name, "path": str(place_of(model)), "commit": model.commit,
            "size": format_bytes(model.num_bytes),
            "files": [file.name for file in model.files],
        }  # fmt: skip
    directory = resolve_model(name)
    config = read_config(directory)
    text = config.get("text_config")
    known = {**config, **(text if isinstance(text, dict) else {})}
    facts |= {key: known[key] for key in _KEYS if key in known}
    quantised = config.get("quantization_config")
    if isinstance(quantised, dict):
        facts["quantisation"] = quantised.get("quant_method", "unknown")
    facts["parameters"] = _num_parameters(config)
    return facts


def _num_parameters(config: Any) -> str:
    from quire.models import build_program

    try:
        count = sum(param.num_elements for param in build_program(config).params())
    except QuireError:
        return "unknown: transformers runs this model"
    return f"{count / 1e9:.2f}B" if count >= 1e9 else f"{count / 1e6:.1f}M"
