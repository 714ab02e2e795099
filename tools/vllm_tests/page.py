"""The page: a row for each file with tests that could pass, and why the others have none."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tools.from_vllm.markdown import table
from tools.vllm_parsers.compare import compare
from tools.vllm_parsers.reasons import reason as why_read_otherwise
from tools.vllm_tests.examples import read_outcomes
from tools.vllm_tests.running import result_file
from tools.vllm_tests.sorting import test_files

PAGE = Path(__file__).parents[2] / "docs" / "vllm_tests.md"
_REASONS: tuple[tuple[str, str], ...] = (
    (r"\blora\b|lora[\]\[-]|_lora", "LoRA adapters"),
    (r"has no field (build_\w+|_\w+)", "a private part of vLLM"),
    (r"has no attribute '_|has no attribute '[A-Z_]+'|does not have the attribute|"
     r"cannot import name '\w+' from 'tests\.", "a private part of vLLM"),
    (r"did not end in time|Timeout \(>", "did not end in time"),
    (r"JSONDecodeError|Invalid JSON from|ValidationError: 1 validation error",
     "the model's own text, template or vocabulary"),
    (r"KeyError: '<", "the model's own text, template or vocabulary"),
    (r"I am only a small demo model", "the model's own text, template or vocabulary"),
    (r"tokenizer_mode='mistral' is not supported",
     "a tokenizer is read from tokenizer.json, not from Mistral's own files"),
    (r"'\w+(Parser|Config)' object has no attribute|has no field to_sampling_params",
     "a private part of vLLM"),
    (r"'DummyTokenizer' object has no attribute",
     "parsers read texts, for which the test's tokenizer cannot decode"),
    (r"PydanticSchemaGenerationError|has no field model_copy",
     "pydantic's methods (from_vllm.md: classes of requests)"),
    (r"/weight_checker does not exist|/weight_checker$", "other routes"),
    (r"mm_payload|limit_mm_per_prompt", "images, audio, video"),
    (r"dataset_name '\w+' is not supported", "the benchmarks: images, tools"),
    (r"require gpt_oss package", "a package that is not installed"),
    (r"No module named '(psutil|schemathesis|fastapi|mistral_common|openai_harmony|xgrammar|"
     r"opentelemetry)",
     "a package that is not installed"),
    (r"lacks everything of the model", "a model that is not here"),
    (r"No module named 'tests\.|cannot import name '\w+' from 'tests\.",
     "a part of vLLM's tests that needs a GPU"),
    (r"(?i)multi_modal|mm[-_]embeds|image_url|audio|prompt_embeds", "images, audio, video"),
    (r"kv_transfer_params", "other engines' K/V transfer"),
    (r"speculative|spec_", "speculative decoding"),
    (r"tensor[-_]parallel|pipeline_parallel|data[-_]parallel", "several processes and machines"),
    (r"maximum context length is", "the model's context is shorter"),
    (r"routed_experts", "the experts that tokens were routed to"),
    (r"runner='pooling'", "pooling models"),
    (r"_validate_trace_replay", "a private part of vLLM"),
    (r"Check your internet connection", "a model of the hub"),
    (r"partial_json_parser|pybase64", "a package that is not installed"),
    (r"trust-request-chat-template", "no template from a request is trusted (security.md)"),
    (r"(?i)watermark", "texts are not watermarked (scope.md)"),
    (r"fixture '\w+' not found", "a part of vLLM's tests that needs a GPU"),
    (r"CapacityError.__init__|has no attribute '\w+'|CheckpointError: config.json must have|"
     r"replace\(\) should be called|with a dataclass type|logits processors have the interface",
     "a private part of vLLM"),
    (r"No module named '(ray|datasets)'", "a package that is not installed"),
    (r"is not implemented; leave it out", "an option that is refused by name (from_vllm.md)"),
    (r"there is no directory '', and a hub id", "a private part of vLLM"),
)  # fmt: skip
"""Patterns of a test's name and message, and the reason; empty: what the message says."""
_LACKS = re.compile(
    r"Quire has no vllm[\w.]*: (.+?)(?:; did you mean|>|\n|$)|"
    r"(?:ConfigError|AttributeError): vllm[\w.]*: (.+?)(?:\n|$)|"
    r"No \w+ in the (stand-ins for vLLM's tests)|\bPlaceholder\b"
)
"""The message of a test that uses a missing part of vLLM, and why that is missing."""
_SORTED: dict[str, str] = json.loads((Path(__file__).parent / "sorted.json").read_text())
"""Reasons that were found by reading: by a test's name, as far as it goes."""
_UNSORTED = "not sorted"
_PASSED, _FAILED = "passed", "failed"
_BEYOND = "beyond"
"""Outcome of a test that vLLM marks as failing, and that passes."""
_LACKING = "lacking"
"""Outcome of a test that uses a part of vLLM that is missing here."""
_OUTCOMES = (_PASSED, _BEYOND, _FAILED, _LACKING, "skipped")
_NOT_RUN = "not run yet; some of the names that they import are here"
_EARLIER = " (earlier)"
_EARLIER_RESULTS = "earlier"
_TEXTS_OF_REPLIES = "## Texts of replies"
_TEXT = """# vLLM's own tests

What comes of the tests and examples in the source distribution of vLLM 0.33.0, run against Quire as
they are: with the model that is bundled, on a CPU, without a hub. Written by
`python -m tools.vllm_tests`, whose docstring says how to make it again.
[from_vllm.md](from_vllm.md) says what is the same, and what differs on purpose.

A name of vLLM that Quire does not have is a placeholder, which fails the tests that use it; these
are counted apart from those that fail. The K/V store is off, as vLLM has none by default. Rows that
are marked as earlier may be of the tests of vLLM 0.32.0.

"""


@dataclass(slots=True)
class _Row:
    """Outcomes of a file: how many tests had each outcome, the reasons of some failures, and what
    others lack."""

    outcomes: Counter[str]
    why: Counter[str]
    lacks: Counter[str]
    state: str = ""
    """State of a file without outcomes."""
    is_earlier: bool = False
    """Whether it is of an earlier state of the code."""

    @classmethod
    def read(cls, cells: list[str]) -> _Row:
        """Reads a row of the existing page."""
        counts = (int(cell or 0) for cell in cells[:-1])
        listed = re.findall(r"(?:^|; )(.+?) \((\d+)\)(?=;|$)", cells[-1])
        return cls(
            Counter(dict(zip(_OUTCOMES, counts, strict=True))),
            Counter({reason: int(count) for reason, count in listed}),
            Counter(),
            "" if listed else cells[-1],
            is_earlier=True,
        )

    @property
    def is_shown(self) -> bool:
        """Whether the file was run, and has a test that uses no missing part."""
        ran = self.outcomes.total() - self.outcomes["skipped"]
        return self.state != _NOT_RUN and (ran == 0 or self.outcomes[_LACKING] < ran)

    def without(self) -> str:
        """Why a file that is not shown has no row."""
        return self.state or self.lacks.most_common(1)[0][0]

    def cells(self, name: str) -> list[str]:
        """The cells of the table row."""
        counts = [str(self.outcomes[each] or "") for each in _OUTCOMES]
        mark = _EARLIER if self.is_earlier else ""
        return [f"`{name}`{mark}", *counts, _listed(self.why.items()) or self.state]


def page(source: Path, results: Path, before: str = "") -> str:
    """The whole page. What has no result is as it was before, in another state of the code."""
    files = test_files(source)
    old = _rows_before(before)
    rows = {name: _latest_row(results, name) for name, reason in files.items() if not reason}
    rows |= {name: old[name] for name, row in rows.items() if row.state and name in old}
    shown = {name: row for name, row in rows.items() if row.is_shown}
    total, why, lacks = Counter[str](), Counter[str](), Counter[str]()
    for row in shown.values():
        total += row.outcomes
        why += row.why
        lacks += row.lacks
    without = [row.without() for row in rows.values() if not row.is_shown]
    not_run = Counter([*without, *filter(None, files.values())])
    passed, beyond, failed = (total[each] for each in (_PASSED, _BEYOND, _FAILED))
    parts = [
        _TEXT,
        f"{passed} tests pass, {failed} fail, {total['skipped']} are skipped by themselves. "
        f"{beyond} more ask for what vLLM does not do: they are marked as failing there, and work "
        f"here. {total[_LACKING]} in the same files use a part of vLLM that is missing here. "
        f"{_states(shown.values(), results)} Why tests fail:\n",
        table(["tests", "why"], ([str(n), reason] for reason, n in why.most_common())),
        "What the others use that is missing:\n",
        table(["tests", "why it is missing"], ([str(n), one] for one, n in lacks.most_common())),
        "By file:\n",
        table(
            ["file", "passed", "works here alone", "failed", "uses a missing part", "skipped",
             "why some fail"],
            (row.cells(name) for name, row in shown.items()),
        ),
        "## Files without a row\n\nThey are about something that Quire or the bundled model does "
        "not have, or every test in them uses\na private part of vLLM.\n",
        table(["files", "why"], ([str(n), why] for why, n in not_run.most_common())),
        "## Examples\n\nThose that fit a model of text; others need pooling models, images, LoRA, "
        "GPUs or services.\n",
        table(["example", "what came of it"], _examples(results / "examples.jsonl", before)),
        *(_parsers(results / "cases.jsonl") or _parsers_before(before)),
    ]  # fmt: skip
    return "".join(parts).rstrip() + "\n"


def _parsers(cases: Path) -> list[str]:
    """Results of the formats on the texts in vLLM's tests of parsers, if these were recorded."""
    if not cases.exists():
        return []
    found = sorted(compare(cases).items())
    whys = {name: Counter(why_read_otherwise(*one) for one in each.differ) for name, each in found}
    rows = [
        [f"`{name}`", str(each.agree), str(len(each.differ) or ""), _listed(whys[name].items())]
        for name, each in found
    ]
    agree = sum(each.agree for _, each in found)
    differ = sum(len(each.differ) for _, each in found)
    total = sum(whys.values(), Counter[str]())
    return [
        f"{_TEXTS_OF_REPLIES}\n\nWhat vLLM's parsers say of the texts in their own tests, where "
        "these pass, compared with what a server of\nQuire makes of the same texts "
        f"(`python -m tools.vllm_parsers`): {agree:,} agree, {differ} differ.\nWhy:\n",
        table(["texts", "why"], ([str(n), why] for why, n in total.most_common())),
        "By format, of reasoning, of calls or of both:\n",
        table(["format", "agree", "differ", "why"], rows),
    ]


def _latest_row(results: Path, name: str) -> _Row:
    """The row of a file; without a result in RESULTS, that of RESULTS/earlier."""
    row = _row(results, name)
    if not row.state:
        return row
    earlier = _row(results / _EARLIER_RESULTS, name)
    return row if earlier.state else replace(earlier, is_earlier=True)


def _row(results: Path, name: str) -> _Row:
    found = _results(result_file(results, name))
    row = _Row(Counter(), Counter(), Counter())
    if found is None:
        has_run = result_file(results, name).with_suffix(".log").exists()
        row.state = "did not end in time" if has_run else _NOT_RUN
    for test, outcome, text in found or ():
        what = _outcome(outcome, text)
        row.outcomes[what] += 1
        if what == _FAILED:
            row.why[_why(test, text)] += 1
        elif what == _LACKING:
            row.lacks[_missing_part(text)] += 1
    return row


def _rows_before(text: str) -> dict[str, _Row]:
    """The table of files in a page that was written before."""
    found = re.findall(rf"^\| `(\S+\.py)`(?:{re.escape(_EARLIER)})? \|(.*)\|$", text, re.MULTILINE)
    rows = {name: [cell.strip() for cell in rest.split("|")] for name, rest in found}
    width = len(_OUTCOMES) + 1
    read = {name: _Row.read(cells) for name, cells in rows.items() if len(cells) == width}
    return {name: row for name, row in read.items() if row.outcomes.total()}


def _states(rows: Iterable[_Row], results: Path) -> str:
    """A sentence about the state of the code that the page describes."""
    kept = sum(row.is_earlier for row in rows)
    earlier = [f"the {kept} rows that are marked so"] if kept else []
    for file, what in (("examples", "the examples"), ("cases", "the texts of replies")):
        if not (results / f"{file}.jsonl").exists():
            earlier.append(what)
    if not earlier:
        return "All of this is of one state of the code."
    return f"Of an earlier state of the code are {' and '.join(earlier)}; all else is of one."


def _parsers_before(text: str) -> list[str]:
    _, mark, rest = text.partition(_TEXTS_OF_REPLIES)
    return [mark + rest] if mark else []


def _examples(path: Path, before: str) -> list[list[str]]:
    if not path.exists():
        section = before.partition("## Examples")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| (`.+?`) \| (.*) \|$", section, re.MULTILINE)
        return [list(row) for row in rows]
    found = read_outcomes(path).items()
    return [
        [f"`{name}`", _SORTED.get(name, outcome) if outcome else "works"] for name, outcome in found
    ]


def _results(path: Path) -> list[tuple[str, str, str]] | None:
    if not path.exists():
        return None
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()]


def _outcome(outcome: str, message: str) -> str:
    """Outcome that counts: a test that its process did not reach has failed."""
    if outcome == _FAILED and message.startswith("[XPASS(strict)]"):
        return _BEYOND
    if outcome == _FAILED and _LACKS.search(message):
        return _LACKING
    return _FAILED if outcome == "unfinished" else outcome


def _why(test: str, message: str) -> str:
    name = test.removeprefix("tests/")
    if message == "did not end in time":
        return message
    for known, reason in _SORTED.items():
        if name.startswith(known):
            return reason
    for pattern, reason in _REASONS:
        if found := re.search(pattern, f"{name}\n{message}"):
            return reason or found[1]
    return _UNSORTED


def _missing_part(message: str) -> str:
    found = _LACKS.search(message)
    return next(filter(None, found.groups() if found else ()), "a private part of vLLM")


def _listed(reasons: Iterable[tuple[str, int]]) -> str:
    return "; ".join(f"{reason} ({count})" for reason, count in reasons)
