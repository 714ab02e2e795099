"""The command line of the Kubernetes manifests as a process, with a pod's folders: it serves, and
writes to the mounted volumes alone."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text()
SERVING = re.compile(r"Serving demo at \S+:(\d+), ready")
KEY = "a-key-of-this-test"
FOLDERS = ("/data", "/tmp", "/run/secrets/quire")
"""Places of the pod that the manifest mounts."""
BOUNDS = ["setpriv", "--bounding-set=-all"] if os.geteuid() == 0 else []
"""Without capabilities, root too has the rights of files alone."""


@dataclass
class Pod:
    """A server in the folders of a pod."""

    root: Path
    process: subprocess.Popen[str]
    container: dict[str, Any]
    url: str

    def get(self, path: str, key: str | None = None) -> httpx.Response:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.get(self.url + path, headers=headers, timeout=60)


def words_of(container: dict[str, Any], root: Path) -> list[str]:
    """The image's entry point and the manifest's arguments, at a free port."""
    found = re.search(r"^ENTRYPOINT (\[.*\])$", DOCKERFILE, re.M)
    assert found is not None
    program, *entry = json.loads(found[1])
    assert program == "quire"
    words = [*entry, *container["args"]]
    words[words.index("--port") + 1] = "0"
    keys = str(root) + "/run/secrets"
    return [sys.executable, "-m", "quire", *(one.replace("/run/secrets", keys) for one in words)]


def environment(root: Path) -> dict[str, str]:
    """That of the image, in which K/V is kept, and nothing of this machine's user."""
    given = dict(re.findall(r"\b(HOME|XDG_CACHE_HOME)=(/\S+)", DOCKERFILE))
    assert len(given) == 2
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    mapped = {name: str(root) + value for name, value in given.items()}
    return {**kept, **mapped, "TMPDIR": f"{root}/tmp", "QUIRE_LOG_LEVEL": "INFO"}


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    manifest = yaml.safe_load((DEPLOY / "k8s/base/statefulset.yaml").read_text())
    [container] = manifest["spec"]["template"]["spec"]["containers"]
    assert {one["mountPath"] for one in container["volumeMounts"]} == set(FOLDERS)
    root = tmp_path / "root"
    for folder in FOLDERS:
        (root / folder[1:]).mkdir(parents=True)
    key = root / "run/secrets/quire/operator-key"
    key.write_text(KEY)
    key.chmod(0o440)
    for folder in (key.parent, root / "run", root):
        folder.chmod(0o555)
    assert subprocess.run([*BOUNDS, "touch", root / "file"]).returncode != 0
    process = subprocess.Popen(
        [*BOUNDS, *words_of(container, root)],
        cwd=root, env=environment(root), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        if (found := SERVING.search(line)) is not None:
            yield Pod(root, process, container, f"http://127.0.0.1:{found[1]}")
            break
    else:
        pytest.fail("".join(lines))
    process.kill()
    process.wait()
    process.stderr.close()


def test_a_pod_serves_and_writes_to_its_volumes_alone(pod: Pod) -> None:
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert pod.get(pod.container[probe]["httpGet"]["path"]).status_code == 200
    assert pod.get("/v1/models").status_code == 401
    body = {"model": "demo", "messages": [{"role": "user", "content": "What is 17 + 25?"}]}
    headers = {"Authorization": f"Bearer {KEY}"}
    done = httpx.post(f"{pod.url}/v1/chat/completions", json=body, headers=headers, timeout=60)
    assert "42" in done.json()["choices"][0]["message"]["content"]
    assert re.search(r"^quire:expected_wait_seconds{.*} 0.0$", pod.get("/metrics", KEY).text, re.M)
    pod.process.send_signal(signal.SIGTERM)
    assert pod.process.wait(timeout=60) == 0
    assert {one.name for one in pod.root.iterdir()} == {"data", "tmp", "run"}
    assert [one.name for one in (pod.root / "run/secrets/quire").iterdir()] == ["operator-key"]
    assert (pod.root / "data/cache/quire/kv").is_dir()
