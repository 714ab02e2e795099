"""`quire`: picks the command, imports only that one, and turns errors into one line."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

from quire.cli.command import Command, Group
from quire.log.writer import say
from quire.redaction import redact
from quire.system.garbage import expect_imports
from quire.version import __version__

COMMANDS = (
    Command("serve", "serve", "Serve models over HTTP to OpenAI clients, with a web page"),
    Command("run", "chat:run", "Generate text or chat in this process, without a server"),
    Command("chat", "chat:chat", "Chat with a running server"),
    Command("complete", "chat:complete", "Complete text with a running server"),
    Command("pull", "library:pull", "Fetch models from the hub"),
    Command("list", "library:local", "List the models on this machine"),
    Command("show", "library:show", "Show what is known of a model on this machine"),
    Command("ps", "library:ps", "Show the models of a running server"),
    Command("stop", "library:stop", "Unload a model of a running server"),
    Command("rm", "library:rm", "Delete models from the hub's cache"),
    Command("alias", "library:alias", "Give a model a short name"),
    Command("top", "top", "Watch a running server in the terminal"),
    Command("bench", "bench:BENCH", "Benchmarks: latency | throughput | serve | sweep | startup"),
    Command("quantize", "convert:quantize", "Quantise a model's weights once, for a faster start"),
    Command("merge", "convert:merge", "Write a checkpoint with a LoRA adapter in its weights"),
    Command("explain", "explain", "Show a model's program, memory plan and bounds"),
    Command("models", "library:models", "List the supported architectures"),
    Command("kv", "kv:KV", "The KV store: ls | du | verify | prune | warm | bench"),
    Command("doctor", "doctor", "Check this machine and the installation"),
    Command("collect-env", "collect_env", "Print the facts that a bug report needs"),
    Command("completion", "library:completion", "Print shell code that completes commands"),
    Command("generate", "rows:generate", "Answer a prompt for every row of a file"),
    Command("embed", "rows:embed", "Give every text of a file a vector"),
    Command("transcribe", "transcribe", "Write down what is said in sound files"),
    Command("run-batch", "run_batch", "Answer a file of OpenAI batch requests"),
)  # fmt: skip


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk."""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code; usage errors leave through SystemExit(2)."""
    words = list(sys.argv[1:] if argv is None else argv)
    _open_standard_streams()
    sys.excepthook = _print_exception
    expect_imports()
    if words[:1] == ["__complete"]:
        from quire.cli.completion import completions

        say("\n".join(completions(words[1:], COMMANDS)))
        return 0
    try:
        code = dispatch("quire", _ABOUT, COMMANDS, words)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader closed the pipe
        _give_up_stdout()
        return 0
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        _give_up_stdout()
        say(
            f"quire: cannot write {error.filename or 'the output'}: {error.strerror}",
            file=sys.stderr,
        )
        return 1


def _print_exception(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Print an uncaught exception, with secrets removed."""
    from traceback import format_exception

    say(redact("".join(format_exception(kind, error, traceback))), end="", file=sys.stderr)


def _open_standard_streams() -> None:
    """Open standard streams that were closed when this process started, as /dev/null.

    Otherwise a file or a socket would get descriptor 0, 1 or 2, and receive the output.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(fd)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _give_up_stdout() -> None:
    """Keep the interpreter from writing to standard output again when it exits."""
    with suppress(OSError, ValueError):  # a replaced stream may have no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def dispatch(prog: str, about: str, commands: Sequence[Command], words: Sequence[str]) -> int:
    """Run the command that the first word names; also used for subcommands."""
    if not words or words[0] in ("-h", "--help", "--help-all", "help"):
        if len(words) > 1 and words[0] == "help":
            return dispatch(prog, about, commands, [words[1], "--help"])
        say(_overview(prog, about, commands))
        return 0
    if words[0] in ("-V", "--version"):
        say(f"quire {__version__}")
        return 0
    for command in commands:
        if command.name == words[0]:
            return _run(prog, command, words[1:])
    return _unknown(prog, commands, words[0])


def _run(prog: str, command: Command, words: Sequence[str]) -> int:
    from quire.config.command_line.parser import Parser
    from quire.errors import QuireError
    from quire.log import flush

    found = command.load()
    if isinstance(found, Group):
        return dispatch(f"{prog} {command.name}", found.about, found.commands, words)
    parser = Parser(f"{prog} {command.name}", found.about.partition("\n\n")[0])
    found.configure(parser)
    args = parser.parse(words)
    try:
        return found.execute(args)
    except QuireError as error:
        flush()
        say(f"{prog} {command.name}: {error}", file=sys.stderr)
        return 1


def _unknown(prog: str, commands: Sequence[Command], word: str) -> int:
    from quire.suggest import did_you_mean

    names = [command.name for command in commands]
    if commands is COMMANDS and word == "cp":
        say(f"{prog}: a model gets a further name with `{prog} alias NAME MODEL`", file=sys.stderr)
        return 2
    kind = "option" if word.startswith("-") else "command"
    say(
        f"{prog}: unknown {kind} {word!r}{did_you_mean(word, names)}\n"
        f"Commands: {', '.join(names)}. See `{prog} --help`.",
        file=sys.stderr,
    )
    return 2


def _overview(prog: str, about: str, commands: Sequence[Command]) -> str:
    width = max(len(command.name) for command in commands)
    lines = [f"usage: {prog} COMMAND [options]", "", about, "", "commands:"]
    lines += [f"  {command.name:<{width}}  {command.summary}" for command in commands]
    lines += ["", f"`{prog} COMMAND --help` shows a command's options."]
    return "\n".join(lines)


_ABOUT = f"""\
Quire {__version__}, an LLM inference and serving engine for CPUs.

  quire run "What is 17 + 25?"      ask the bundled demo model
  quire run path/to/model           chat with another model
  quire serve path/to/model         serve it; the page is at http://127.0.0.1:8000/"""
