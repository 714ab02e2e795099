"""The log's writer: nobody waits for it, nothing is lost unsaid, and the end is bounded."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from quire.log.writer import Writer

PIPE_BYTES = 4096
WAIT_S = 20.0


class Pipe:
    """A pipe with little room."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        fcntl.fcntl(self.write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def read_until(self, end: bytes) -> bytes:
        found = b""
        while not found.endswith(end):
            found += os.read(self.read_end, 65536)
        return found

    def close(self) -> None:
        for fd in (self.read_end, self.write_end):
            try:
                os.close(fd)
            except OSError:
                continue


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


def tell(count: int) -> bytes:
    return b"<%d missing>\n" % count


def lines(first: int, last: int) -> list[bytes]:
    return [b"line %06d %s\n" % (number, b"x" * 80) for number in range(first, last)]


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_what_is_added_comes_out_in_order(pipe: Pipe) -> None:
    writer, wanted = Writer(pipe.write_end, tell), lines(0, 500)
    reading = threading.Thread(target=lambda: found.append(pipe.read_until(wanted[-1])))
    found: list[bytes] = []
    reading.start()
    for line in wanted:
        writer.add(line)
    reading.join(WAIT_S)
    assert found == [b"".join(wanted)]
    assert writer.flush(WAIT_S)


def test_lines_of_several_threads_stay_whole(pipe: Pipe) -> None:
    writer = Writer(pipe.write_end, tell)
    found: list[bytes] = []
    reading = threading.Thread(target=lambda: found.append(pipe.read_until(b"end\n")))
    reading.start()

    def add(start: int) -> None:
        for line in lines(start, start + 100):
            writer.add(line)

    threads = [threading.Thread(target=add, args=(1000 * number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.add(b"end\n")
    reading.join(WAIT_S)
    got = found[0].splitlines(keepends=True)[:-1]
    assert sorted(got) == [line for n in range(6) for line in lines(1000 * n, 1000 * n + 100)]
    for number in range(6):
        mine = [line for line in got if line.startswith(b"line %03d" % number)]
        assert mine == sorted(mine)


def test_nobody_waits_where_nobody_reads_and_what_is_missing_is_told(pipe: Pipe) -> None:
    writer, wanted = Writer(pipe.write_end, tell, max_bytes=20_000), lines(0, 5000)
    for line in wanted:  # does not return if any of them waits
        writer.add(line)
    assert writer._num_bytes <= 20_000
    assert not writer.flush(0.05)
    number = 0
    for line in pipe.read_until(wanted[-1]).splitlines(keepends=True):
        if line.startswith(b"<"):
            number += int(line[1:].split()[0])
        else:
            assert line == wanted[number]
            number += 1
    assert number == len(wanted)
    assert writer.flush(WAIT_S)


def test_the_last_line_is_the_last_to_go(pipe: Pipe) -> None:
    writer = Writer(pipe.write_end, tell, max_bytes=1000)
    for line in lines(0, 1000):
        writer.add(line)
    writer.add(b"the cause of death\n")
    assert pipe.read_until(b"death\n").endswith(b"\nthe cause of death\n")


def test_a_text_larger_than_all_room_comes_out_where_somebody_reads(pipe: Pipe) -> None:
    writer = Writer(pipe.write_end, tell, max_bytes=1000)
    writer.add(b"x" * 50_000 + b"\n")
    assert len(pipe.read_until(b"\n")) == 50_001


def test_a_flush_is_bounded_and_a_second_one_does_not_wait_again(pipe: Pipe) -> None:
    writer = Writer(pipe.write_end, tell)
    for line in lines(0, 200):
        writer.add(line)
    begin = time.monotonic()
    assert not writer.flush(0.2)
    assert not writer.flush(WAIT_S)
    assert time.monotonic() - begin < WAIT_S / 2
    reading = threading.Thread(target=pipe.read_until, args=(lines(199, 200)[0],))
    reading.start()
    until(lambda: writer.flush(1.0))
    reading.join(WAIT_S)


def test_what_cannot_be_written_is_counted(pipe: Pipe) -> None:
    os.close(pipe.read_end)
    writer = Writer(pipe.write_end, tell)
    for line in lines(0, 10):
        writer.add(line)
        assert writer.flush(WAIT_S)
    assert writer._num_missing > 0
    again = Pipe()
    os.dup2(again.write_end, pipe.write_end)
    writer.add(b"end\n")
    assert again.read_until(b"end\n") == b"<10 missing>\nend\n"
    again.close()


def test_a_descriptor_that_somebody_made_non_blocking(pipe: Pipe) -> None:
    os.set_blocking(pipe.write_end, False)
    writer, wanted = Writer(pipe.write_end, tell), lines(0, 300)
    for line in wanted:
        writer.add(line)
    assert not writer.flush(0.05)
    assert pipe.read_until(wanted[-1]) == b"".join(wanted)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python's own, about fork and threads
def test_a_forked_child_writes_its_own_lines_only(pipe: Pipe) -> None:
    writer = Writer(pipe.write_end, tell)
    for line in lines(0, 100):  # more than the pipe takes: the parent's thread is in the middle
        writer.add(line)
    pid = os.fork()
    if not pid:
        writer.add(b"child\n")
        os._exit(0 if writer.flush(WAIT_S) else 1)
    found = pipe.read_until(b"")
    while b"child\n" not in found or lines(99, 100)[0] not in found:
        found += os.read(pipe.read_end, 65536)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert found.count(b"child\n") == 1
    assert found.count(b"line ") == 100


def test_without_a_thread_to_be_had(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """What can be written at once is; the rest waits for a thread."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    writer = Writer(pipe.write_end, tell)
    writer.add(b"first\n")
    assert os.read(pipe.read_end, 100) == b"first\n"
    assert writer.flush(0.1)


def test_a_message_from_inside_another_does_not_hang(pipe: Pipe) -> None:
    """As from a finaliser that runs while a line is being added."""
    writer = Writer(pipe.write_end, tell)
    with writer._changed:
        writer.add(b"inner\n")
    assert pipe.read_until(b"\n") == b"inner\n"
