"""Check this machine and this installation: what works, what is missing, and how to install it.

The exit code is 0 if models can run, 1 if something essential is missing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator

from quire.cli.checks import Finding, all_findings
from quire.config.command_line.parser import Parser

_MARKS = {"good": "ok  ", "note": "note", "bad": "BAD "}


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.add_argument("--json", action="store_true", help="Print JSON for programs.")


def execute(args: argparse.Namespace) -> int:
    """Print every finding. Returns 1 if one of them is bad."""
    findings = list(all_findings())
    is_healthy = all(finding.level != "bad" for finding in findings)
    if args.json:
        rows = [dataclasses.asdict(finding) for finding in findings]
        print(json.dumps({"healthy": is_healthy, "findings": rows}, indent=2))
    else:
        print("\n".join(_lines(findings)))
        print("\nhealthy" if is_healthy else "\nnot healthy: see the lines marked BAD")
    return 0 if is_healthy else 1


def _lines(findings: list[Finding]) -> Iterator[str]:
    topic = ""
    for finding in findings:
        if finding.topic != topic:
            topic = finding.topic
            yield f"\n{topic}" if topic != findings[0].topic else topic
        yield f"  {_MARKS[finding.level]}  {finding.text}"
        if finding.remedy:
            yield f"        -> {finding.remedy}"
