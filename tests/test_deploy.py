"""The files of `deploy/` name options, metrics and files that exist.

`deploy/check.sh` checks them with the programs that read them.
"""

from __future__ import annotations

import json
import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from quire import metrics
from quire.cli.commands import serve
from quire.config.command_line.parser import Parser

DEPLOY = Path(__file__).parents[1] / "deploy"
COMPOSE = DEPLOY / "docker" / "compose.yml"


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def entry_point() -> list[str]:
    found = re.search(r"^ENTRYPOINT (\[.*\])$", (DEPLOY / "docker/Dockerfile").read_text(), re.M)
    assert found is not None
    return list(json.loads(found[1]))


def service_words() -> list[str]:
    found = re.search(r"^ExecStart=(.*)$", (DEPLOY / "systemd/quire.service").read_text(), re.M)
    assert found is not None
    return found[1].split()


@pytest.mark.parametrize(
    "words", [[*entry_point(), *load(COMPOSE)["services"]["quire"]["command"]], service_words()]
)
def test_commands_have_options_of_quire_serve(words: list[str]) -> None:
    assert Path(words[0]).name == "quire"
    assert words[1] == "serve"
    parser = Parser("quire serve")
    serve.configure(parser)
    assert parser.parse(words[2:]).api_key_file


def test_files_that_compose_mounts_exist() -> None:
    for service in load(COMPOSE)["services"].values():
        for volume in service.get("volumes", []):
            place = volume.split(":")[0]
            assert not place.startswith(".") or (COMPOSE.parent / place).exists(), place


def test_the_key_of_compose_is_for_a_group_of_its_containers(tmp_path: Path) -> None:
    for service in load(COMPOSE)["services"].values():
        if "quire_key" in service.get("secrets", []):
            assert re.match(r"\$\{QUIRE_KEY_GROUP:\?", service["group_add"][0])
    found = re.search(r"^# +(\(umask .*\))$", COMPOSE.read_text(), re.M)
    assert found is not None
    assert found[1] in (DEPLOY.parent / "docs" / "deployment.md").read_text()
    command = found[1].replace("openssl rand -hex 32", "echo key")
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    key = (tmp_path / "quire.key").stat()
    assert stat.S_IMODE(key.st_mode) == 0o640
    assert (tmp_path / ".env").read_text() == f"QUIRE_KEY_GROUP={key.st_gid}\n"


def test_what_the_image_copies_exists() -> None:
    text = (DEPLOY / "docker/Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.M):
        for name in line.split():
            assert (DEPLOY.parent / name).exists(), name
            assert f"!{name}" in (DEPLOY / "docker/Dockerfile.dockerignore").read_text().split()


def test_rules_name_metrics_of_quire() -> None:
    defined = Path(metrics.__file__).parent
    text = "".join(path.read_text() for path in defined.glob("*.py"))
    names = set(re.findall(r"vllm:\w+", (DEPLOY / "prometheus/quire.rules.yml").read_text()))
    assert names
    for name in names:
        assert f'"{name.removesuffix("_total")}"' in text, name
