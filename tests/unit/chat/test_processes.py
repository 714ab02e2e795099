"""The child processes that render: what they may, how they end, and what a caller is told."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from polling import until
from processes import is_alive
from rendered_here import HELLO

from quire.chat import async_renderer as renderer_module
from quire.chat import renderer_process as process_module
from quire.chat.async_renderer import NUM_PROCESSES, AsyncChatRenderer, RenderBounds
from quire.chat.job import MAX_MEMORY_BYTES, ChatInput
from quire.chat.renderer import ChatRenderer
from quire.chat.renderer_process import RenderProcess
from quire.chat.templates import ChatTemplates
from quire.errors import CapacityError, QuireError, RequestError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="relies on /proc")

ECHO = "{{ messages[0].content }}"
TEMPLATES = ChatTemplates({"default": ECHO, "tool_use": "tools"}, {"bos_token": "<s>"})


@pytest.fixture
def process() -> Iterator[RenderProcess]:
    process = RenderProcess()
    yield process
    process.close()


def job(template: str = ECHO, max_seconds: float = 5.0, **options: Any) -> Any:
    chat = ChatInput(options.pop("messages", HELLO), chat_template=template, **options)
    return TEMPLATES.job(chat, max_seconds)


# --- one process


def test_a_process_renders_one_job_after_the_other(process: RenderProcess) -> None:
    pid = process.pid
    assert process.render(job()) == "hi"
    assert process.render(job("{{ bos_token }}ü你😀")) == "<s>ü你😀"
    with pytest.raises(RequestError, match=r"^no$") as caught:
        process.render(job("{{ raise_exception('no') }}"))
    assert caught.value.parameter == "messages"
    long = [{"role": "user", "content": "\u4f60\n" * 1_000_000}]
    assert process.render(job(messages=long)) == long[0]["content"]
    assert process.pid == pid


def test_it_has_nothing_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_API_KEY", "secret")
    with open(os.devnull) as file:
        os.set_inheritable(file.fileno(), True)
        own = RenderProcess()
    try:
        own.render(job())
        proc = Path(f"/proc/{own.pid}")
        assert b"secret" not in (proc / "environ").read_bytes()
        opened = {int(path.name): os.readlink(path) for path in (proc / "fd").iterdir()}
        assert set(opened) <= {0, 1, 2, 3}
        assert opened[0] == opened[1]
        assert opened[2] == os.devnull
        assert opened.get(3, "statm").endswith("statm")
        limits = (proc / "limits").read_text()
        for name, most in {
            "Max data size": MAX_MEMORY_BYTES,
            "Max core file size": 0,
            "Max file size": 0,
            "Max processes": 0,
        }.items():
            line = next(line for line in limits.splitlines() if line.startswith(name))
            assert line.removeprefix(name).split()[:2] == [str(most)] * 2
        assert "Max cpu time              unlimited" not in limits
        assert os.getsid(own.pid) != os.getsid(0)
    finally:
        own.close()


def test_it_imports_jinja_and_no_part_of_the_engine() -> None:
    code = "import sys, quire.chat.template_child; print(*sys.modules)"
    command = _command()
    command[command.index("-c") + 1] = f"import sys; sys.path += sys.argv[1:]; {code}"
    modules = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "jinja2" in modules
    ours = {name for name in modules if name.startswith("quire.")}
    assert {name.split(".")[1] for name in ours} == {
        "chat", "errors", "images", "system", "units", "version",
    }  # fmt: skip
    assert {name for name in ours if ".images." in name} == {"quire.images.modality"}
    heavy = {"asyncio", "msgspec", "numpy", "socket", "subprocess", "tokenizers", "threading"}
    assert not heavy - {"threading"} & set(modules)  # Jinja imports threading


def _command() -> list[str]:
    return process_module._command()


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_process_that_stops_or_dies_costs_one_job(
    process: RenderProcess, is_killed: bool
) -> None:
    assert process.render(job()) == "hi"
    os.kill(process.pid, signal.SIGSTOP)
    if is_killed:
        threading.Timer(0.1, os.kill, (process.pid, signal.SIGKILL)).start()
    begin = time.monotonic()
    with pytest.raises(QuireError) as caught:
        process.render(TEMPLATES.job(ChatInput(HELLO), 30))
    assert time.monotonic() - begin < 20
    why = "ended by signal 9" if is_killed else r"stopped by a signal \(SIGSTOP\)"
    assert re.search(f"'default' has no prompt: its process was {why}", str(caught.value))
    assert isinstance(caught.value, CapacityError) is not is_killed
    assert not process.is_open
    assert not is_alive(process.pid)


def test_the_time_on_the_clock_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    monkeypatch.setattr(process_module, "_command", lambda: waits)
    process = RenderProcess()
    with pytest.raises(RequestError, match=r"'default' was stopped: it takes more than 1\.2 s"):
        process.render(TEMPLATES.job(ChatInput(HELLO), 0.2))
    assert not is_alive(process.pid)


def test_memory_is_bounded_and_given_back(process: RenderProcess) -> None:
    many = "{% set ns = namespace(l=[]) %}{% for i in range(1000) %}{% set ns.l = ns.l + ["
    with pytest.raises(RequestError, match="too much memory"):
        process.render(job(many + "'x' * 15000000 ~ i] %}{% endfor %}"))
    if process.is_open:
        assert process.render(job()) == "hi"
        statm = Path(f"/proc/{process.pid}/statm").read_text().split()
        assert int(statm[1]) * os.sysconf("SC_PAGESIZE") < 128 << 20


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_it_ends_with_its_parent(how: str) -> None:
    code = (
        "import os, signal; from quire.chat.renderer_process import RenderProcess; "
        "p = RenderProcess(); print(p.pid, flush=True); "
    ) + ("raise SystemExit(0)" if how == "exit" else "os.kill(os.getpid(), signal.SIGKILL)")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stderr == ""
    pid = int(run.stdout)
    until(lambda: not is_alive(pid))


def test_it_ends_with_its_parent_in_the_midst_of_a_job() -> None:
    code = (
        "import sys, threading, time; "
        "from quire.chat.renderer_process import RenderProcess; "
        "from quire.chat.templates import ChatTemplates; from quire.chat.job import ChatInput; "
        "j = ChatTemplates({'default': sys.stdin.read()}, {}).job(ChatInput(["
        "{'role': 'user', 'content': 'hi'}]), 1.0); p = RenderProcess(); "
        "threading.Thread(target=p.render, args=(j,), daemon=True).start(); "
        "print(p.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdin.write("{% for a in range(99999) %}" * 9 + "{% endfor %}" * 9)
        parent.stdin.close()
        pid = int(parent.stdout.readline())
        time.sleep(0.3)
        parent.kill()
    until(lambda: not is_alive(pid))


REPLIES = {
    "an unknown kind": b"X\0\0\0\1a",
    "too long": b"T\xff\xff\xff\xffa",
    "more than told": b"T\0\0\0\1ab",
    "no UTF-8": b"T\0\0\0\1\xff",
    "no JSON": b"R\0\0\0\1{",
    "another JSON": b"R\0\0\0\2[]",
    "cut off": b"T\0\0\0\5ab",
    "nothing": b"",
}


@pytest.mark.parametrize("reply", sorted(REPLIES))
async def test_replies_of_no_sense_end_the_child(
    monkeypatch: pytest.MonkeyPatch, reply: str
) -> None:
    code = f"import os; os.read(0, 1 << 20); os.write(1, {REPLIES[reply]!r}); os._exit(3)"
    monkeypatch.setattr(process_module, "_command", lambda: [sys.executable, "-S", "-c", code])
    process = RenderProcess()
    with pytest.raises(QuireError, match="'default' has no prompt: its process ended with exit"):
        process.render(TEMPLATES.job(ChatInput(HELLO)))
    assert not process.is_open

    renderer = AsyncChatRenderer(TEMPLATES)
    with pytest.raises(QuireError, match="has no prompt: its process ended with exit code 3"):
        await renderer.render(ChatInput(HELLO))
    renderer.close()


def test_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "_command", lambda: ["/no/such/python"])
    with pytest.raises(QuireError, match="no process for chat templates can be started"):
        RenderProcess()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "not valid Unicode"),
        ({"messages": [{"role": "user", "content": "x" * (1 << 26)}]}, "at most 64.0 MiB"),
        ({"variables": {"a": float("nan")}}, "chat_template_kwargs holds nan"),
        ({"variables": {"a": object()}}, "which is not a JSON value"),
        ({"template": "{{ '\ud800' }}"}, "not valid Unicode"),
        ({"template": "{{ '\\ud800' }}"}, "not valid Unicode"),
    ],
)
def test_what_cannot_cross_is_refused(options: dict[str, Any], message: str) -> None:
    renderer = ChatRenderer(TEMPLATES)
    chat = ChatInput(
        options.get("messages", HELLO),
        chat_template=options.get("template"),
        variables=options.get("variables"),
    )
    with pytest.raises(RequestError, match=message):
        renderer.render(chat)
    assert renderer.render(ChatInput(HELLO)) == "hi"
    renderer.close()


def test_values_cross_unchanged() -> None:
    values = {
        "a": 1.5, "b": 10**30, "c": -0.0, "d": "\u2028\x00\"'\\", "e": None, "f": [True, [], {}],
        "g": 1e300, "h": {"ü": "😀"},
    }  # fmt: skip
    renderer = ChatRenderer(TEMPLATES)
    chat = ChatInput(HELLO, chat_template="{{ v|tojson }}", variables={"v": values})
    assert json.loads(renderer.render(chat)) == values
    own = ChatInput(HELLO, chat_template="{{ v }}", variables={"v": values})
    assert renderer.render(own) == str(values)
    renderer.close()


# --- offline


def test_a_renderer_keeps_its_process_and_replaces_a_dead_one() -> None:
    renderer = ChatRenderer(TEMPLATES)
    renderer.start()
    process = renderer._process
    assert process is not None
    assert renderer.render(ChatInput(HELLO)) == "hi"
    assert renderer._process is process
    process.kill()
    until(lambda: not process.is_open)
    assert renderer.render(ChatInput(HELLO, tools=[{}])) == "tools"
    renderer.close()
    renderer.close()
    assert renderer.render(ChatInput(HELLO)) == "hi"
    renderer.close()


def test_an_interruption_ends_the_rendering_at_once() -> None:
    """Ctrl+C, with a child that would take another minute."""
    code = (
        "from quire.chat.renderer import ChatRenderer; from quire.chat.job import ChatInput; "
        "from quire.chat.templates import ChatTemplates; import os, signal, threading; "
        "r = ChatRenderer(ChatTemplates({'default': 'x'}, {})); r.start(); "
        "os.kill(r._process.pid, signal.SIGSTOP); print(r._process.pid, flush=True); "
        "threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start(); "
        "r.render(ChatInput([{'role': 'user', 'content': 'hi'}]))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "KeyboardInterrupt" in run.stderr
    assert "RequestError" not in run.stderr  # which its time being up would be
    assert not is_alive(int(run.stdout))


# --- beside an event loop


@contextmanager
def renderer_with(bounds: RenderBounds | None = None) -> Iterator[AsyncChatRenderer]:
    renderer = AsyncChatRenderer(TEMPLATES, bounds)
    try:
        yield renderer
    finally:
        renderer.close()


async def stopped(renderer: AsyncChatRenderer) -> list[asyncio.Task[str]]:
    """All processes at work on a job that they never finish.

    Those that run already are stopped before they get the job: they could finish it otherwise.
    """
    for process in renderer._idle:
        os.kill(process.pid, signal.SIGSTOP)
    tasks = [asyncio.create_task(renderer.render(ChatInput(HELLO))) for _ in range(NUM_PROCESSES)]
    await asyncio.sleep(0)
    assert len(renderer._busy) == NUM_PROCESSES
    for process in renderer._busy:
        os.kill(process.pid, signal.SIGSTOP)
    return tasks


async def test_many_chats_share_few_processes() -> None:
    with renderer_with() as renderer:
        chats = [
            ChatInput([{"role": "user", "content": f"{number}"}], chat_template=text)
            for number in range(40)
            for text in (None, "{{ raise_exception(messages[0].content) }}")
        ]
        found = await asyncio.gather(*map(renderer.render, chats), return_exceptions=True)
        assert [str(one) for one in found] == [str(n // 2) for n in range(80)]
        assert [isinstance(one, RequestError) for one in found] == [False, True] * 40
        assert len(renderer._idle) == NUM_PROCESSES
        assert not renderer._busy


async def test_the_second_process_ends_when_it_has_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renderer_module, "_SPARE_S", 0.3)

    with renderer_with() as renderer:

        async def chat(count: int) -> None:
            chats = [renderer.render(ChatInput(HELLO)) for _ in range(count)]
            assert await asyncio.gather(*chats) == ["hi"] * count

        await chat(2)
        first, second = renderer._idle
        for _ in range(1000):
            if len(renderer._idle) == 1:
                break
            await chat(1)
            await asyncio.sleep(0.01)
        assert renderer._idle == [second]
        await asyncio.to_thread(until, lambda: not is_alive(first.pid))
        await chat(2)  # another is started
        assert second in renderer._idle


async def test_what_is_stopped_costs_itself_and_the_others_their_turn() -> None:
    with renderer_with(RenderBounds(max_seconds=30)) as renderer:
        hanging = await stopped(renderer)
        pids = {process.pid for process in renderer._busy}
        waiting = asyncio.create_task(renderer.render(ChatInput(HELLO)))
        for task in hanging:
            with pytest.raises(CapacityError, match="its process was stopped by a signal"):
                await task
        assert await waiting == "hi"
        assert not pids & {process.pid for process in renderer._idle}
        assert not any(map(is_alive, pids))


async def test_how_many_wait_and_how_long_is_bounded() -> None:
    with renderer_with(RenderBounds(max_seconds=30, max_waiting=3, max_wait_s=0.1)) as renderer:
        hanging = await stopped(renderer)
        waiting = [asyncio.create_task(renderer.render(ChatInput(HELLO))) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(CapacityError, match="3 chats wait for the chat template already"):
            await renderer.render(ChatInput(HELLO))
        for task in waiting:
            with pytest.raises(CapacityError, match=r"has waited 0\.1 s for the chat template"):
                await task
        assert not any(task.done() for task in hanging)
        assert not renderer._waiting


async def test_a_caller_that_leaves_spoils_no_process() -> None:
    with renderer_with() as renderer:
        assert await renderer.render(ChatInput(HELLO)) == "hi"
        (process,) = renderer._idle
        leaving = asyncio.create_task(renderer.render(ChatInput(HELLO)))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert await renderer.render(ChatInput(HELLO)) == "hi"
        while renderer._busy:
            await asyncio.sleep(0.01)
        assert process in renderer._idle
        hanging = await stopped(renderer)
        waiting = asyncio.create_task(renderer.render(ChatInput(HELLO)))
        await asyncio.sleep(0)
        for task in (waiting, *hanging):
            task.cancel()
        await asyncio.gather(waiting, *hanging, return_exceptions=True)
        assert not renderer._waiting
        for busy in renderer._busy:
            busy.kill()
        assert await renderer.render(ChatInput(HELLO)) == "hi"


async def test_a_process_that_died_idle_is_replaced() -> None:
    with renderer_with() as renderer:
        assert await renderer.render(ChatInput(HELLO)) == "hi"
        (process,) = renderer._idle
        process.kill()
        while process.is_open:
            await asyncio.sleep(0.01)
        assert await renderer.render(ChatInput(HELLO)) == "hi"
        assert process not in renderer._idle


async def test_closing_ends_what_runs_and_what_waits() -> None:
    with renderer_with(RenderBounds(max_seconds=30)) as renderer:
        tasks = await stopped(renderer)
        pids = [process.pid for process in renderer._busy]
        tasks.append(asyncio.create_task(renderer.render(ChatInput(HELLO))))
        await asyncio.sleep(0)
        renderer.close()
        for task in tasks:
            with pytest.raises(CapacityError, match="shutting down"):
                await task
        with pytest.raises(CapacityError, match="shutting down"):
            await renderer.render(ChatInput(HELLO))
        assert not any(map(is_alive, pids))


async def test_a_large_job_and_reply_pass_while_the_loop_turns() -> None:
    with renderer_with() as renderer:
        num_turns = 0

        async def turn() -> None:
            nonlocal num_turns
            while True:
                num_turns += 1
                await asyncio.sleep(0)

        turning = asyncio.create_task(turn())
        text = "x\n" * 5_000_000
        assert await renderer.render(ChatInput([{"role": "user", "content": text}])) == text
        turning.cancel()
        assert num_turns > 100
