"""Two machines that are network namespaces, with addresses and a link of their own: the tokens of
one rank, the bytes on the wire, a link that breaks, and a model that is larger than one machine.

Needs root, because only root makes namespaces and groups of processes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from executor_plans import config_of
from tiny_checkpoint import write_tiny_checkpoint

from quire.config.ranks import Rank
from quire.planning.compile_plan import compile_plan
from quire.program import Gather, Logits, TakeRows
from quire.program.ops import Receive

_MEMORY = Path("/sys/fs/cgroup/memory")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None, reason="only root makes namespaces"
    ),
]
ADDRESS, PORT = "10.99.77.1", "29777"
SHAPE: dict[str, Any] = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 6, "head_dim": 32,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
NUM_TOKENS = 240
GIVEN: dict[str, Any] = {
    "backend": "cpu", "max_model_len": 256, "dtype": "bfloat16", "enable_prefix_caching": False,
}  # fmt: skip
ENGINE = """
import json, sys, time
from pathlib import Path
from executor_plans import config_of
from quire.core.engine_core import EngineCore
from quire.errors import QuireError
from quire.params import SamplingParams
from quire.protocol import EngineCoreRequest

given = json.loads(sys.argv[2])
try:
    core = EngineCore(config_of(Path(sys.argv[1]), **given))
except QuireError as error:
    sys.exit(f"refused: {error}")
length, reply = int(sys.argv[3]), int(sys.argv[4])
def add(name, reply):
    core.add_request(EngineCoreRequest(
        request_id=name, prompt_token_ids=[7 * i % 251 for i in range(length)], arrival_time=0.0,
        sampling_params=SamplingParams(
            temperature=0.8, seed=1, max_tokens=reply, ignore_eos=True, logprobs=2
        ),
    ))
def run():
    found = []
    while core.has_unfinished_requests():
        found += [repr((one.new_token_ids, one.logprobs)) for one in core.step().outputs]
    return found
add("a", reply)
outputs = run()
stats = core.executor.call("rank_stats")
print(json.dumps({"outputs": outputs, "stats": stats}), flush=True)
if sys.argv[5:] == ["again"]:
    for number in range(100000):
        add(f"b{number}", 8)
        try:
            run()
        except QuireError as error:
            print(json.dumps({"error": str(error), "at": time.time()}), flush=True)
            break
core.shutdown()
"""


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """The names of two namespaces, which a link connects."""
    names = (f"quire-a-{os.getpid()}", f"quire-b-{os.getpid()}")
    with ExitStack() as stack:
        for name in names:
            run("ip", "netns", "add", name)
            stack.callback(run, "ip", "netns", "del", name)
        run("ip", "link", "add", "wire", "netns", names[0], "type", "veth",
            "peer", "name", "wire", "netns", names[1])  # fmt: skip
        for number, name in enumerate(names, 1):
            inside = ("ip", "-n", name)
            run(*inside, "addr", "add", f"10.99.77.{number}/24", "dev", "wire")
            run(*inside, "link", "set", "wire", "up")
            run(*inside, "link", "set", "lo", "up")
        yield names


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a process in a namespace, with at most so many bytes of memory."""
    monkeypatch.setenv("QUIRE_RANK_KEY", "a secret of all machines")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, sys.path)))
    monkeypatch.setenv("QUIRE_KV_STORE", "off")
    started: list[subprocess.Popen[str]] = []
    groups: list[Path] = []

    def begin(host: str | None, *words: str, limit: int | None = None) -> subprocess.Popen[str]:
        before: tuple[str, ...] = () if host is None else ("ip", "netns", "exec", host)
        if limit is not None:
            group = _MEMORY / f"quire-{os.getpid()}-{len(groups)}"
            group.mkdir()
            groups.append(group)
            (group / "memory.limit_in_bytes").write_text(str(limit))
            before = ("sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", *before)
        process = subprocess.Popen(
            [*before, sys.executable, *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    for group in groups:
        for _ in range(50):
            with suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), **SHAPE)


def agent_words(directory: Path) -> tuple[str, ...]:
    return (
        "-m", "quire", "serve", str(directory), "--nnodes", "2", "--node-rank", "1",
        "--master-addr", ADDRESS, "--master-port", PORT, "--headless",
    )  # fmt: skip


def engine_words(directory: Path, *more: str, **given: Any) -> tuple[str, ...]:
    return ("-c", ENGINE, str(directory), json.dumps({**GIVEN, **given}), str(NUM_TOKENS), *more)


TWO = {"nnodes": 2, "master_addr": ADDRESS, "master_port": int(PORT)}


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise AssertionError(process.communicate()[1][-2000:])
    found: dict[str, Any] = json.loads(line)
    return found


def received_on(host: str) -> int:
    path = "/sys/class/net/wire/statistics/rx_bytes"
    found = subprocess.run(
        ["ip", "netns", "exec", host, "cat", path], check=True, capture_output=True, text=True
    )
    return int(found.stdout)


def bytes_of_step(directory: Path, num_rows: int) -> int:
    """What a rank of two gets in a step of one prompt, from the ops of its program: activations in
    bfloat16, the residual stream and logits in float32."""
    config = config_of(directory, tensor_parallel_size=2, **GIVEN)
    program = compile_plan(config, Rank(0, 0, 1, 2)).program
    taken, total = set[Any](), 0.0
    for op in program.ops:
        if isinstance(op, TakeRows) or taken.intersection(op.inputs()):
            taken.update(op.outputs())
        rows = 1 if taken.intersection(op.inputs()) else num_rows
        if isinstance(op, Gather):
            item = 4 if op.out.dim == SHAPE["hidden_size"] and "attention" not in op.out.name else 2
            total += rows * op.out.dim * item / 2
        elif isinstance(op, Logits):
            total += op.out.dim * 4 / 2
    return round(total)


@pytest.mark.parametrize("split", [(2, 1), (1, 2), (2, 2)], ids=str)
def test_hosts_have_the_tokens_of_one(
    directory: Path, hosts: tuple[str, str], start: Start, split: tuple[int, int]
) -> None:
    alone = answer(start(None, *engine_words(directory, "6")))["outputs"]
    given = {"tensor_parallel_size": split[0], "pipeline_parallel_size": split[1], **TWO}
    agent = start(hosts[1], *agent_words(directory))
    engine = start(hosts[0], *engine_words(directory, "6", **given))
    assert answer(engine)["outputs"] == alone
    engine.communicate(timeout=60)
    assert agent.wait(60) == 0


def bytes_between_stages(directory: Path, num_rows: int) -> int:
    """The bytes that the second of two stages gets: the residual stream, of all pieces together."""
    config = config_of(directory, pipeline_parallel_size=2, **GIVEN)
    program = compile_plan(config, Rank(1, 0, 2, 1)).program
    [received] = (op for op in program.ops if isinstance(op, Receive))
    return 4 * num_rows * sum(value.dim for value in received.outputs())


def test_stages_exchange_the_bytes_of_the_formula(
    directory: Path, hosts: tuple[str, str], start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    start(hosts[1], *agent_words(directory))
    engine = start(hosts[0], *engine_words(directory, "1", pipeline_parallel_size=2, **TWO))
    first, second = (one["received_bytes"] for one in answer(engine)["stats"])
    wanted, wire = bytes_between_stages(directory, NUM_TOKENS), received_on(hosts[1])
    with capsys.disabled():
        print(f"\nreceived {second}, by the formula {wanted}, on the wire {wire}")
    assert (first, second) == (0, wanted) == (0, 4 * NUM_TOKENS * SHAPE["hidden_size"])


def test_the_wire_has_the_bytes_of_the_formula(
    directory: Path, hosts: tuple[str, str], start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    start(hosts[1], *agent_words(directory))
    given = {"tensor_parallel_size": 2, "max_num_batched_tokens": 256, **TWO}
    engine = start(hosts[0], *engine_words(directory, "1", **given))
    found = answer(engine)["stats"]
    wanted = bytes_of_step(directory, NUM_TOKENS)
    measured = [one["received_bytes"] for one in found]
    with capsys.disabled():
        print(
            f"\nreceived {measured}, by the formula {wanted}, on the wire {received_on(hosts[1])}"
        )
    # A rank gets the rows of tokens that the other one owns, so the two together have the formula.
    assert abs(fmean(measured) / wanted - 1) < 0.02


def test_a_link_that_breaks_ends_the_engine(
    directory: Path, hosts: tuple[str, str], start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = start(hosts[1], *agent_words(directory))
    engine = start(
        hosts[0], *engine_words(directory, "2", "again", tensor_parallel_size=2, **TWO)
    )  # fmt: skip
    answer(engine)
    time.sleep(1.0)
    run("ip", "-n", hosts[1], "link", "set", "wire", "down")
    broke_at = time.time()
    found = answer(engine)
    with capsys.disabled():
        print(f"\nreported after {found['at'] - broke_at:.2f} s: {found['error']}")
    assert "node 1 has sent nothing for" in found["error"]
    assert found["at"] - broke_at < 15.0
    assert "the engine has sent nothing for" in agent.communicate(timeout=60)[1]


@pytest.mark.skipif(not (_MEMORY / "cgroup.procs").exists(), reason="there are no memory groups")
def test_a_model_that_is_larger_than_one_host(
    hosts: tuple[str, str], start: Start, tmp_path: Path
) -> None:
    """Each host has less memory than the weights and what a process needs besides."""
    large = {**SHAPE, "hidden_size": 1024, "intermediate_size": 8192, "num_hidden_layers": 10}
    model = write_tiny_checkpoint(tmp_path / "large", **large)
    num_bytes = 2 * (10 * (3 * 1024 * 8192 + 2 * 1024 * 128 + 2 * 1024 * 64))
    limit = num_bytes * 3 // 4 + (120 << 20)
    alone = start(hosts[0], *engine_words(model, "4"), limit=limit)
    assert alone.wait(280) != 0  # refused, or killed by the system
    start(hosts[1], *agent_words(model), limit=limit)
    engine = start(
        hosts[0], *engine_words(model, "4", tensor_parallel_size=2, **TWO), limit=limit
    )  # fmt: skip
    assert len(answer(engine)["outputs"]) == 4
