"""`quire bench sweep serve`: which commands are run, and what lies in the folder afterwards."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from ports import free_ports

from quire.bench.server_process import ServerProcess
from quire.bench.sweep_serve import SweepServeArgs, SweepWorkloadArgs, run_sweep, run_workload_sweep
from quire.bench.sweep_settings import Setting, are_linked, parse_links, read_settings
from quire.cli import main
from quire.errors import BackendError, ConfigError

SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        open(sys.argv[3], "a").write(self.path + "\\n")
        self.send_response(200); self.end_headers()
    def log_message(self, *_):
        pass
open(sys.argv[3], "a").write(" ".join(sys.argv[4:]) + "\\n")
HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""
BENCH = """
import json, os, sys
words = sys.argv[1:]
at = lambda name: words[words.index(name) + 1]
if "--fails" in words:
    sys.exit("it failed")
path = os.path.join(at("--result-dir"), at("--result-filename"))
rate = float(at("--max-concurrency"))
result = {"request_throughput": rate, "mean_ttft_ms": 5, "mean_e2el_ms": 1000, "itls": [1]}
json.dump(result, open(path, "w"))
"""


@pytest.fixture
def commands(tmp_path: Path) -> dict[str, str]:
    """A server that notes how it was started and asked, and a benchmark that makes numbers up."""
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "bench.py").write_text(BENCH)
    server, notes, port = tmp_path / "server.py", tmp_path / "notes", free_ports()
    return {
        "serve_cmd": f"{sys.executable} {server} --port {port} {notes} --seed 1",
        "bench_cmd": f"{sys.executable} {tmp_path / 'bench.py'} --max-concurrency 1",
        "output_dir": str(tmp_path / "out"),
        "experiment_name": "mine",
    }


def settings_file(tmp_path: Path, name: str, data: Any) -> str:
    path = tmp_path / name
    path.write_text(json.dumps(data))
    return str(path)


def test_every_server_meets_every_benchmark(
    tmp_path: Path, commands: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    serve = settings_file(tmp_path, "serve.json", {"small": {"seed": 2}, "large": {"seed": 3}})
    bench = settings_file(tmp_path, "bench.json", [{"max_concurrency": 4}, {"max_concurrency": 8}])
    args = SweepServeArgs(
        **commands, serve_params=serve, bench_params=bench, num_runs=2, warmup_num_prompts=1
    )
    results = run_sweep(args)
    assert [(r["seed"], r["max_concurrency"], r["run_number"]) for r in results] == [
        (2, 4, 0), (2, 4, 1), (2, 8, 0), (2, 8, 1), (3, 4, 0), (3, 4, 1), (3, 8, 0), (3, 8, 1),
    ]  # fmt: skip
    folder = tmp_path / "out" / "mine"
    place = folder / "SERVE-small-BENCH-max_concurrency=4"
    assert sorted(file.name for file in place.iterdir()) == [
        "run=0.json", "run=1.json", "summary.json", "warmup.json",
    ]  # fmt: skip
    assert len(json.loads((place / "summary.json").read_text())) == 2
    rows = list(csv.DictReader((folder / "summary.csv").read_text().splitlines()))
    assert [row["request_throughput"] for row in rows] == ["4.0"] * 2 + ["8.0"] * 2 + [
        "4.0", "4.0", "8.0", "8.0",
    ]  # fmt: skip
    assert "itls" not in rows[0]
    notes = (tmp_path / "notes").read_text().split("\n")
    assert [line for line in notes if line.startswith("--seed")] == ["--seed 2", "--seed 3"]
    assert notes.count("/reset_prefix_cache") == 12
    table = capsys.readouterr().out.splitlines()[-10:]
    assert table[0].split() == [
        "seed", "max_concurrency", "run", "request_throughput", "mean_ttft_ms",
        "mean_e2el_ms",
    ]  # fmt: skip
    assert table[3].split() == ["2", "8", "0", "8.00", "5.00", "1000.00"]


def test_a_sweep_can_be_resumed_and_does_not_overwrite(
    tmp_path: Path, commands: dict[str, str]
) -> None:
    run_sweep(SweepServeArgs(**commands, num_runs=1))
    with pytest.raises(ConfigError, match="--resume"):
        run_sweep(SweepServeArgs(**commands))
    (tmp_path / "notes").unlink()
    results = run_sweep(SweepServeArgs(**commands, num_runs=1, resume=True))
    assert [result["request_throughput"] for result in results] == [1.0]
    assert not (tmp_path / "notes").exists()
    with pytest.raises(ConfigError, match="nothing to resume"):
        run_sweep(SweepServeArgs(**{**commands, "experiment_name": "no"}, resume=True))


def test_a_failure_ends_the_sweep_or_is_noted(tmp_path: Path, commands: dict[str, str]) -> None:
    bench = settings_file(tmp_path, "bench.json", [{"fails": True}, {"max_concurrency": 2}])
    with pytest.raises(BackendError, match="ended with code 1: it failed"):
        run_sweep(SweepServeArgs(**commands, bench_params=bench, num_runs=1))
    args = SweepServeArgs(
        **{**commands, "experiment_name": "other"}, bench_params=bench, num_runs=1,
        continue_on_error=True,
    )  # fmt: skip
    assert [result["max_concurrency"] for result in run_sweep(args)] == [2]
    note = tmp_path / "out" / "other" / "BENCH-fails=True" / "run=0.failure.json"
    assert json.loads(note.read_text())["error_type"] == "BackendError"


def test_a_server_that_ends_is_told(commands: dict[str, str]) -> None:
    port = commands["serve_cmd"].split("--port ")[1].split()[0]
    given = {**commands, "serve_cmd": f"{sys.executable} -c raise --port={port}"}
    with pytest.raises(BackendError, match="the server ended with code 1"):
        run_sweep(SweepServeArgs(**given))


def test_a_port_in_use_is_told(commands: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerProcess, "_is_ready", lambda _: True)
    with pytest.raises(ConfigError, match="another server answers at http://127"):
        run_sweep(SweepServeArgs(**commands))


def test_nothing_runs_in_a_dry_run(
    tmp_path: Path, commands: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for name, value in commands.items() for word in (f"--{name}", value)]
    assert main(["bench", "sweep", "serve", *words, "--num-runs", "1", "--dry-run"]) == 0
    assert "benchmark: " in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    assert main(["bench", "sweep", "serve"]) == 1
    assert "--serve-cmd" in capsys.readouterr().err
    assert main(["bench", "sweep", "serve", *words, "--num-runs", "0"]) == 1
    assert "num_runs must be at least 1" in capsys.readouterr().err


def test_options_replace_those_of_the_command() -> None:
    command = ["quire", "serve", "m", "--max-num-seqs", "4", "--api-key", "a", "b", "--ui", "-tp=1"]
    setting = Setting({
        "max_num_seqs": 8, "ui": False, "api-key": ["c", "d"], "compilation_config.mode": 3,
        "hf_overrides": {"a": 1}, "x.y": True,
    })  # fmt: skip
    assert setting.applied_to(command) == [
        "quire", "serve", "m", "-tp=1", "--max-num-seqs", "8", "--no-ui", "--api-key", "c", "d",
        "--compilation-config.mode", "3", "--hf-overrides", '{"a": 1}', "--x.y=true",
    ]  # fmt: skip


def test_linked_options_must_be_equal() -> None:
    links = parse_links("max_num_seqs=max_concurrency, a=b")
    assert links == [("max_num_seqs", "max_concurrency"), ("a", "b")]
    serve = Setting({"max-num-seqs": 4, "a": 1})
    assert are_linked(serve, Setting({"max_concurrency": 4, "b": 1}), links)
    assert not are_linked(serve, Setting({"max_concurrency": 8, "b": 1}), links)
    assert not are_linked(serve, Setting({"max_concurrency": 4}), links)
    with pytest.raises(ConfigError, match="--link-vars"):
        parse_links("a")


@pytest.mark.parametrize("text", ["[", "3", "[]", "[1]", '{"a": 1}'])
def test_files_of_settings_that_are_wrong(tmp_path: Path, text: str) -> None:
    path = tmp_path / "settings.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"settings\.json"):
        read_settings(str(path))
    path.write_text('[{"_benchmark_name": "a"}, {"_benchmark_name": "a"}]')
    with pytest.raises(ConfigError, match="names of settings must differ"):
        read_settings(str(path))
    assert read_settings(None) == [Setting({})]


def workload_sweep(commands: dict[str, str], **options: Any) -> list[dict[str, Any]]:
    """The bench of `commands` reaches as many requests a second as there are at once."""
    given = {**commands, "bench_cmd": commands["bench_cmd"] + " --num-prompts 9"}
    return run_workload_sweep(SweepWorkloadArgs(**{**given, **options}, num_runs=1))


def test_a_load_between_both_ends(tmp_path: Path, commands: dict[str, str]) -> None:
    options = {"workload_var": "max_concurrency", "workload_iters": 5}
    commands = {**commands, "bench_cmd": commands["bench_cmd"] + " --num_prompts=9"}
    results = workload_sweep(commands, **options)
    # on average at once: requests a second times the 1000 ms that each takes
    assert [run["max_concurrency"] for run in results] == [1, 3, 5, 7, 9]
    names = sorted(path.name for path in (tmp_path / "out" / "mine").iterdir())
    assert names == [*(f"BENCH-WL-max_concurrency={n}" for n in (1, 3, 5, 7, 9)), "summary.csv"]


def test_rates_between_both_ends(tmp_path: Path, commands: dict[str, str]) -> None:
    bench = settings_file(tmp_path, "bench.json", {"long": {"num_prompts": 2, "x": 3}})
    results = workload_sweep(commands, bench_params=bench, workload_iters=4)
    # the runs between the ends have the command's own --max-concurrency 1
    assert [run["request_rate"] for run in results] == [1, 1.33, 1.67, 2]
    assert [run.get("max_concurrency") for run in results] == [1, None, None, 2]
    assert all(run["x"] == 3 for run in results)
    assert (tmp_path / "out" / "mine" / "BENCH-long-WL-request_rate=1.33").is_dir()


def test_two_levels_are_the_ends(commands: dict[str, str]) -> None:
    assert [run["request_rate"] for run in workload_sweep(commands, workload_iters=2)] == [1, 9]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workload_iters": 1}, "workload_iters must be at least 2"),
        ({"bench_params": [{"request-rate": 1}]}, "sets request_rate, which --workload-var"),
        ({"bench_params": [{"num_prompts": "many"}]}, "--num-prompts must be a number"),
    ],
)
def test_what_a_workload_cannot_be(
    tmp_path: Path, commands: dict[str, str], options: dict[str, Any], message: str
) -> None:
    if "bench_params" in options:
        options["bench_params"] = settings_file(tmp_path, "b.json", options["bench_params"])
    with pytest.raises(ConfigError, match=message):
        workload_sweep(commands, **options)


def test_a_workload_in_a_dry_run(
    commands: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for name, value in commands.items() for word in (f"--{name}", value)]
    assert main(["bench", "sweep", "serve_workload", *words, "--num-runs", "1", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "--max-concurrency 1000 --request-rate 1000" in shown
    assert main(["bench", "sweep", "serve_workload"]) != 0
