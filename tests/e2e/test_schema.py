"""Schemathesis over /openapi.json, with data that fits the schemas and data that does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import RunningServer, StartServer
from .test_crowds import canary

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance"
)
"""Not that all other data is refused: values that convert are taken, as the types do not say."""

NOT_LIVE = ("--exclude-path", "/quire/live")
"""Its stream never ends."""


SHORT = {"backend": "auto", "override_generation_config": '{"max_new_tokens": 4}'}
"""Short replies: the tests are about what is asked."""


def run_schemathesis(server: RunningServer, directory: Path, *options: str) -> None:
    """Runs the tool, to which every 5xx is a failure; then asks whether all is well."""
    pytest.importorskip("schemathesis")
    text = canary(server)
    command = [
        sys.executable, "-W", "ignore", "-m", "schemathesis.cli", "run",
        f"{server.url}/openapi.json", "--checks", CHECKS, "--mode", "all",
        "--suppress-health-check", "all", "--request-timeout", "20",
        "--generation-deterministic", "--no-color", "--workers", "2", *options,
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=540, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert canary(server) == text
    server.until_idle()
    assert not [name for name, value in server.metrics().items() if '"5xx"' in name and value]


def num_good(server: RunningServer, path: str) -> float:
    """Requests to a path that were answered with success."""
    name = f'http_requests_total{{handler="{path}",method="POST",status="2xx"}}'
    return server.metrics()[name]


@pytest.mark.long
def test_no_request_that_a_schema_suggests_breaks_it(
    start_server: StartServer, tmp_path: Path
) -> None:
    """Every boundary of every field once; the other endpoints' fields are a part of these."""
    server = start_server(engine=SHORT)
    chat = ("--include-path", "/v1/chat/completions")
    run_schemathesis(server, tmp_path, "--phases", "coverage", *chat)
    assert num_good(server, "/v1/chat/completions") > 10


@pytest.mark.long
def test_no_random_request_breaks_it(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(engine=SHORT)
    examples = ("--phases", "fuzzing", "--max-examples", "8")
    run_schemathesis(server, tmp_path, *examples, *NOT_LIVE)
    assert num_good(server, "/v1/completions") > 0


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_requests_break_nothing(start_server: StartServer, tmp_path: Path) -> None:
    phases = ("--phases", "coverage,fuzzing", "--max-examples", "300")
    run_schemathesis(start_server(engine=SHORT), tmp_path, *phases, *NOT_LIVE)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_requests_to_all_routes_break_nothing(
    start_server: StartServer, tmp_path: Path
) -> None:
    """With the routes that an option brings, but for those that make all others wait, and one
    that answers 504 where a caller allows it no time."""
    profiler = json.dumps({"profiler": "torch", "torch_profiler_dir": str(tmp_path / "profile")})
    server = start_server(
        engine={**SHORT, "kv_store_path": tmp_path / "kv", "kv_store_size": "1GiB",
                "profiler_config": profiler},
        enable_dev_routes=True, enable_tokenizer_info_endpoint=True,
    )  # fmt: skip
    paths = ("/sleep", "/pause", "/collective_rpc")
    left_out = [word for path in paths for word in ("--exclude-path", path)]
    phases = ("--phases", "coverage,fuzzing", "--max-examples", "20")
    run_schemathesis(server, tmp_path, *phases, *NOT_LIVE, *left_out)
    for path in ("/inference/v1/generate", "/kv/pin", "/v1/responses", "/v1/messages"):
        assert num_good(server, path) > 0


def test_the_document_names_every_route(server: RunningServer) -> None:
    with server.client() as client:
        document = client.get("/openapi.json").raise_for_status().json()
        page = client.get("/docs").raise_for_status().text
    paths = set(document["paths"])
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models", "/tokenize"} <= paths
    assert all(path in page for path in paths)
    references = {
        part.split('"')[0] for part in json.dumps(document).split("#/components/schemas/")[1:]
    }
    assert references <= set(document["components"]["schemas"])
