"""What the documentation names exists: files, directories, and commands with their options."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from quire.cli.app import COMMANDS
from quire.cli.command import Action, Command, Group
from quire.config.command_line.parser import Parser

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
OWN_PATHS = [page for page in PAGES if page.name != "vllm_tests.md"]
"""Without the page whose paths are of vLLM's repository."""
_SPAN = re.compile(r"`([^`\n]+)`|\]\((?!\w+:|\.\.)([^)#\s]+)[^)\s]*\)")
_PATH = re.compile(r"(?!/)(?:[\w.*-]+/)*[\w.*-]+(?:/|\.(?:py|md|h|cpp|toml|jinja|cmake|yml))")
_BLOCK = re.compile(r"^```[a-z]*\n(.*?)^```|(?:^(?: {4}|\t).*\n)+", re.MULTILINE | re.DOTALL)
_BEFORE = re.compile(r"[\s$]*(?:[A-Z_]+=\S+\s*)*")
"""What may stand in front of a command: a prompt, and variables."""
_PLACES = ("", "docs", "src/quire", "src", "native", "native/src", "tests/e2e")


@cache
def tracked() -> frozenset[str]:
    """Files of the repository, and their directories with a slash."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.splitlines()  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is not a git checkout")
    folders = {f"{folder}/" for file in listed for folder in Path(file).parents}
    return frozenset({*listed, *folders})


def exists(path: str) -> bool:
    """Whether a path is one of the repository, from its root or from a usual place."""
    if "/" not in path.rstrip("/"):  # a name alone stands for one in the folder of which it speaks
        return any(one == path or one.endswith(f"/{path}") for one in tracked())
    for place in _PLACES:
        whole = f"{place}/{path}".lstrip("/")
        if "*" in whole:
            if any(Path(one).match(whole) for one in tracked()):
                return True
        elif whole in tracked() or f"{whole}/" in tracked():
            return True
    return False


def paths_of(page: Path) -> Iterator[str]:
    for found in _SPAN.finditer(page.read_text()):
        text = found[1] or found[2]
        if _PATH.fullmatch(text) and text != "llama.cpp":
            yield text


@pytest.mark.parametrize("page", OWN_PATHS, ids=lambda page: page.name)
def test_every_path_exists(page: Path) -> None:
    missing = [path for path in paths_of(page) if not exists(path)]
    assert not missing, f"{page.name} names what does not exist: {missing}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing, f"{page.name} links to what does not exist: {missing}"


def commands_of(page: Path) -> Iterator[list[str]]:
    """The words of each `quire` command: of spans, and of lines of code."""
    text = page.read_text()
    lines = [found[1] or "" for found in _SPAN.finditer(text)]
    for block in _BLOCK.finditer(text):
        lines += re.sub(r"\\\n", " ", block[0]).splitlines()
    for line in lines:
        found = re.search(r"(?:^|\s|[;&|]\s*)(?:python -m )?quire ([a-z-][^#|;&<>]*)", line)
        if found and _BEFORE.fullmatch(line[: found.start()]):
            try:
                yield shlex.split(found[1])
            except ValueError:
                yield found[1].split()


@cache
def flags_of(command: Command) -> set[str]:
    found, parser = command.load(), Parser("quire", "")
    assert isinstance(found, Action)
    found.configure(parser)
    return {flag for action in parser._actions for flag in action.option_strings}


def problem_of(words: list[str]) -> str | None:
    """Why a command cannot be given so; None: it can."""
    commands: tuple[Command, ...] = COMMANDS
    while commands:
        if not words or words[0] in ("COMMAND", "--help", "--version", "help"):
            return None
        command = next((one for one in commands if one.name == words[0]), None)
        if command is None:
            return f"there is no command {words[0]}"
        words = words[1:]
        found = command.load()
        commands = found.commands if isinstance(found, Group) else ()
    known = flags_of(command)
    for word in words:
        flag = word.split("=")[0].split(".")[0].rstrip(",:)")
        if flag.startswith("--") and len(flag) > 2 and flag not in known | {"--help-all"}:
            return f"quire {command.name} has no option {flag}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_exists(page: Path) -> None:
    problems = [problem for words in commands_of(page) if (problem := problem_of(words))]
    assert not problems, f"{page.name}: {problems}"


def test_what_is_missing_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "See `kvstore/none.py`, [that](docs/none.md) and `quire serve`.\n\n    quire surf --x\n"
        "    quire serve MODEL --no-such-option 3\n"
    )
    assert [path for path in paths_of(page) if not exists(path)] == [
        "kvstore/none.py", "docs/none.md",
    ]  # fmt: skip
    assert [problem_of(words) for words in commands_of(page)] == [
        None, "there is no command surf", "quire serve has no option --no-such-option",
    ]  # fmt: skip


_INSTALLS = re.compile(r"\b(?:pip3?|pipx|uv|conda)\b[^\n]*?\b(?:install|add|run)\b([^\n#]*)")
_OTHERS_PACKAGE = re.compile(r"quire(\[[\w,]*\])?([=<>~!].*)?")


def test_nothing_says_to_install_a_package_of_others() -> None:
    """The name `quire` belongs to another project on PyPI; this one is `quire-engine`."""
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    wrong = [
        f"{name}: {found[0].strip()}"
        for name in names
        if (ROOT / name).is_file() and b"\0" not in (ROOT / name).read_bytes()[:1024]
        for found in _INSTALLS.finditer((ROOT / name).read_text(errors="replace"))
        if any(_OTHERS_PACKAGE.fullmatch(word.strip("`'\".,;:()")) for word in found[1].split())
    ]
    assert not wrong, "\n".join(wrong)
    assert _OTHERS_PACKAGE.fullmatch("quire[redis]>=1")
    assert not _OTHERS_PACKAGE.fullmatch("quire-engine[redis]")
