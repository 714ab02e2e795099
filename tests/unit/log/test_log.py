"""Who configures the log, and where it goes. In processes of their own, as users' programs are."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest


def run(script: str, *, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a program of a user."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "QUIRE_LOG_LEVEL": "INFO", **(env or {})},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=60,
    )


def test_a_log_line_of_a_program_without_logging() -> None:
    ended = run(
        r"""
        from quire.log import get_logger
        get_logger("quire.a").info("one\n%s", "tw\x1bo")
        get_logger("quire.b").debug("not shown")
        """
    )
    assert ended.returncode == 0
    [line] = ended.stderr.splitlines()
    assert line.startswith("INFO ")
    assert line.endswith(r"[quire.a] one\ntw\x1bo")


@pytest.mark.parametrize("where", ["root", "quire"])
def test_a_hosts_own_handler_is_the_only_one(where: str) -> None:
    name = "" if where == "root" else "quire"
    ended = run(
        f"""
        import logging, sys
        host = logging.StreamHandler(sys.stdout)
        logging.getLogger({name!r}).addHandler(host)
        logging.getLogger({name!r}).setLevel("INFO")
        from quire.log import get_logger
        get_logger("quire.a").info("hello")
        assert logging.getLogger("quire").handlers == ([] if {name!r} == "" else [host])
        """
    )
    assert (ended.stdout, ended.stderr) == ("hello\n", "")


def test_what_a_host_put_in_place_of_stderr_gets_the_log() -> None:
    ended = run(
        """
        import io, sys
        sys.stderr = io.StringIO()
        from quire.log import get_logger, unblock_stderr
        unblock_stderr()
        get_logger("quire.a").info("hello")
        print(sys.stderr.getvalue())
        """
    )
    assert ended.stdout.strip().endswith("hello")
    assert ended.stderr == ""


def test_importing_starts_no_thread() -> None:
    ended = run("import quire.llm, threading; print(threading.active_count())")
    assert ended.stdout == "1\n"


def test_the_last_words_of_a_process_come_out_in_order() -> None:
    """The log, warnings, prints and the traceback, of a program that ends by an exception."""
    ended = run(
        """
        import sys, warnings
        from quire.log import get_logger, unblock_stderr
        unblock_stderr()
        for number in range(50):
            get_logger("quire.a").info("line %d", number)
            print("print", number, file=sys.stderr)
        warnings.warn("careful")
        raise ValueError("the end")
        """
    )
    assert ended.returncode == 1
    lines = ended.stderr.splitlines()
    assert lines[-1] == "ValueError: the end"
    shown = [line.rpartition("]")[2].split()[-1] for line in lines[:100]]
    assert shown == [str(number) for number in range(50) for _ in range(2)]
    assert any("careful" in line for line in lines[100:])


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    "ending", ["sys.exit(3)", "flush(); os._exit(3)", "os.kill(os.getpid(), 15)", "raise OSError"]
)
def test_an_end_is_bounded_where_nobody_reads(ending: str) -> None:
    """With its pipe full, and a sum of lines that is more than the queue takes."""
    child = subprocess.Popen(
        [
            sys.executable, "-c", textwrap.dedent(
                f"""
                import os, sys, warnings
                from quire.log import flush, get_logger, unblock_stderr
                unblock_stderr()
                for number in range(3000):
                    get_logger("quire.a").info("line %d %s", number, "x" * 1000)
                print("all said", flush=True)
                {ending}
                """
            ),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"all said\n"
        assert child.wait(20) in (1, 3, -15)
    finally:
        child.kill()
        child.communicate()


def test_a_forked_worker_logs_too() -> None:
    ended = run(
        """
        import os
        from quire.log import get_logger
        get_logger("quire.a").info("parent")
        pid = os.fork()
        get_logger("quire.a").info("child" if not pid else "parent again")
        if pid:
            os.waitpid(pid, 0)
        """
    )
    words = sorted(line.rpartition("] ")[2] for line in ended.stderr.splitlines())
    assert words == ["child", "parent", "parent again"]


def test_a_log_in_a_process_without_stderr() -> None:
    command = (
        f'"{sys.executable}" -c "from quire.log import get_logger, unblock_stderr; '
        "unblock_stderr(); get_logger('quire.a').info('x'); print('well')\" 2>&-"
    )
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "well\n")


@pytest.mark.parametrize("text", ["ü €", "\ud800", "日本"])
def test_text_that_the_terminal_cannot_show(text: str) -> None:
    ended = run(
        f"from quire.log import get_logger; get_logger('quire.a').info({text!a})",
        env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "LANG": "C"},
    )
    assert ended.returncode == 0
    assert ended.stderr.isascii()
    assert ascii(text).strip("'") in ended.stderr


def test_the_writer_is_not_for_a_file_that_is_no_stderr(tmp_path: Path) -> None:
    ended = run(
        f"""
        import sys
        sys.stderr = open({str(tmp_path / "log")!r}, "w")
        from quire.log import get_logger
        get_logger("quire.a").info("hello")
        """
    )
    assert ended.stderr == ""
    assert "hello" in (tmp_path / "log").read_text()
