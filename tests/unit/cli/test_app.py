"""Picking a command: help, typos, speed, and that every command can at least explain itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from quire import __version__
from quire.cli import main
from quire.cli.app import COMMANDS
from quire.cli.commands.bench import BENCH
from quire.cli.commands.kv import KV


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert all(f"  {command.name} " in text for command in COMMANDS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"quire {__version__}\n"


def test_a_wrong_command_suggests_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sreve"]) == 2
    assert "did you mean serve?" in capsys.readouterr().err
    assert main(["bench", "serv"]) == 2
    assert "did you mean serve?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [[command.name] for command in COMMANDS]
    + [["bench", one.name] for one in BENCH.commands]
    + [["kv", one.name] for one in KV.commands],
    ids=" ".join,
)
def test_every_command_has_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    if words in (["bench"], ["bench", "sweep"], ["kv"]):
        assert main([*words, "--help"]) == 0
    else:
        with pytest.raises(SystemExit) as exit_info:
            main([*words, "--help"])
        assert exit_info.value.code == 0
    assert f"usage: quire {' '.join(words)}" in capsys.readouterr().out


def test_help_is_quick_because_it_imports_next_to_nothing() -> None:
    code = (
        "import sys; from quire.cli import main; main(['--help']); "
        "print(*sorted({m.split('.')[0] for m in sys.modules} & "
        "{'numpy', 'tokenizers', 'msgspec', 'starlette', 'jinja2', 'asyncio', 'argparse'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""


@pytest.mark.parametrize(
    "module", ["quire.cli.app", "quire.log", "quire.config", "typing", "argparse"]
)
def test_ctrl_c_while_modules_are_imported_ends_the_command(module: str) -> None:
    code = (
        "import runpy, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}: raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "sys.argv = ['quire', 'doctor']\n"
        "runpy.run_module('quire', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_error_of_ours_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "/no/such/model"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("quire explain: there is no directory '/no/such/model'")
    assert err.count("\n") == 1


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m quire bench serve --help | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: quire bench serve")
    assert done.stderr == ""


def test_output_that_cannot_be_written_is_one_line() -> None:
    command = [sys.executable, "-m", "quire", "--help"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "quire: cannot write the output: No space left on device\n"


def test_cp_points_to_alias(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cp", "a", "b"]) == 2
    assert "quire alias NAME MODEL" in capsys.readouterr().err
