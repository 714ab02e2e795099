"""The chart, the plain manifests and the RayService: what the programs that read them would say.

`deploy/check.sh` checks them with helm and kubectl. Here the chart is rendered by Go's own template
engine, which refuses values that do not exist, and objects are compared with Kubernetes' schemas.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from quire import __version__
from quire.cli.commands import serve
from quire.config.command_line.parser import Parser
from quire.metrics import engine_series
from quire.ray.serve import LLMConfig
from quire.server.http.auth import PROBE_PATHS

DEPLOY = Path(__file__).parents[1] / "deploy"
CHART = DEPLOY / "helm" / "quire"
BASE, AUTOSCALING = DEPLOY / "k8s" / "base", DEPLOY / "k8s" / "autoscaling"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
RENDER = """
import json, sys
from pathlib import Path
import go_template
paths, values = json.load(sys.stdin)
print(json.dumps([go_template.render(Path(one), values).decode() for one in paths]))
"""
"""A template that fails ends the process of its engine."""
VERSIONS = ("1.30", "1.37")
"""Kubernetes' oldest version that the chart names, and the newest with a schema."""


def objects(text: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(text) if one is not None]


def render(**values: Any) -> dict[str, list[dict[str, Any]]]:
    """The objects of each template, by its name."""
    if platform.machine() != "x86_64":
        pytest.skip("this processor has no wheel of py-go-template")
    pytest.importorskip("go_template")
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    given = {
        "Values": {**VALUES, **values},
        "Chart": {"Name": chart["name"], "AppVersion": chart["appVersion"]},
        "Release": {"Name": "quire", "Namespace": "default"},
    }
    paths = [*sorted((CHART / "templates").glob("*.yaml")), CHART / "templates" / "NOTES.txt"]
    done = subprocess.run(
        [sys.executable, "-c", RENDER],
        input=json.dumps([[str(path) for path in paths], given]),
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    texts = json.loads(done.stdout)[:-1]
    return {path.name: objects(text) for path, text in zip(paths, texts, strict=False)}


def written(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The manifests of a folder that its kustomization names."""
    names = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    return {one: objects((folder / one).read_text()) for one in names if one != "../base"}


def check(one: dict[str, Any]) -> None:
    """Raises for fields that Kubernetes does not know, and for values that it refuses."""
    validate = pytest.importorskip("kubernetes_validate").validate
    for version in VERSIONS:
        validate(one, version, strict=True)


def stateful_set() -> dict[str, Any]:
    [found] = written(BASE)["statefulset.yaml"]
    return found


def test_plain_manifests_are_the_chart_with_its_defaults() -> None:
    """`deploy/helm/render.sh` writes them."""
    files = {path.name for folder in (BASE, AUTOSCALING) for path in folder.glob("*.yaml")}
    assert files - {*written(BASE), *written(AUTOSCALING)} == {
        "kustomization.yaml", "adapter-values.yaml",
    }  # fmt: skip
    assert {name: found for name, found in render().items() if found} == written(BASE)
    scaled = render(autoscaling={**VALUES["autoscaling"], "enabled": True})
    [pods] = scaled["statefulset.yaml"]
    assert pods["spec"].setdefault("replicas", 1) == 1  # the patch of `autoscaling` removes it
    assert scaled == {**written(BASE), **written(AUTOSCALING)}


def test_manifests_have_fields_of_kubernetes() -> None:
    for found in [*written(BASE).values(), *written(AUTOSCALING).values()]:
        for one in found:
            if one["kind"] != "PodMonitor":  # an object of the Prometheus operator
                check(one)


def test_other_values_reach_their_fields() -> None:
    found = render(
        image={"repository": "registry.example.com/quire", "tag": "9", "pullPolicy": "Always"},
        imagePullSecrets=[{"name": "pull"}],
        args=["--max-model-len", "8192", "a 'word' \"with\" quotes"],
        env=[{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}],
        volumes=[{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
        volumeMounts=[{"name": "models", "mountPath": "/models", "readOnly": True}],
        storage={"size": "1Gi", "className": "fast"},
        shutdownTimeout=300,
        nodeSelector={"cpu": "amx"},
        tolerations=[{"operator": "Exists"}],
        affinity={"nodeAffinity": {}},
        networkPolicy={**VALUES["networkPolicy"], "enabled": False},
    )
    assert found["networkpolicy.yaml"] == []
    [one] = found["statefulset.yaml"]
    check(one)
    pod = one["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["image"] == "registry.example.com/quire:9"
    assert container["args"][-3:] == ["--max-model-len", "8192", "a 'word' \"with\" quotes"]
    assert container["args"][4] == "300"
    assert pod["terminationGracePeriodSeconds"] == 315
    assert container["env"][0]["name"] == "HF_TOKEN"
    assert {one["name"] for one in container["volumeMounts"]} == {"data", "tmp", "keys", "models"}
    assert {one["name"] for one in pod["volumes"]} == {"tmp", "keys", "models"}
    assert {"nodeSelector", "tolerations", "affinity", "imagePullSecrets"} <= pod.keys()
    assert one["spec"]["volumeClaimTemplates"][0]["spec"]["storageClassName"] == "fast"


def test_the_schema_names_the_values_that_exist() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def names(of: dict[str, Any], given: dict[str, Any]) -> None:
        assert of["additionalProperties"] is False
        assert of["properties"].keys() - {"global"} == given.keys()
        for name, inner in of["properties"].items():
            if "properties" in inner:
                names(inner, given[name])

    names(schema, VALUES)
    jsonschema.validate(VALUES, schema)
    with pytest.raises(jsonschema.ValidationError, match="modle"):
        jsonschema.validate({**VALUES, "modle": "demo"}, schema)


def test_the_chart_has_the_version_of_quire() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__


def test_pods_have_few_rights() -> None:
    pod = stateful_set()["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    user = pod["securityContext"]["runAsUser"]
    assert f"--uid {user} " in (DEPLOY / "docker" / "Dockerfile").read_text()
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    [keys] = [one["secret"] for one in pod["volumes"] if one["name"] == "keys"]
    assert keys["defaultMode"] == 0o440  # root's, and of the group of the process


def test_pods_end_after_their_requests_and_are_probed_where_quire_answers() -> None:
    pod = stateful_set()["spec"]["template"]["spec"]
    [container] = pod["containers"]
    parser = Parser("quire serve")
    serve.configure(parser)
    options = parser.parse(container["args"])
    before = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] == before + options.shutdown_timeout + 10
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"].encode() in PROBE_PATHS


def test_replicas_follow_metrics_of_quire() -> None:
    [scaler] = written(AUTOSCALING)["horizontalpodautoscaler.yaml"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == stateful_set()["metadata"]["name"]
    [rule] = yaml.safe_load((AUTOSCALING / "adapter-values.yaml").read_text())["rules"]["custom"]
    assert rule["name"] == {"matches": "^(.*):(.*)$", "as": "${1}_${2}"}
    found = re.match(r'\{__name__=~"([^"]+)"', rule["seriesQuery"])
    assert found is not None
    names = found[1].split("|")
    asked = [one["pods"]["metric"]["name"] for one in scaler["spec"]["metrics"]]
    assert asked == [name.replace(":", "_") for name in names]
    for name in names:
        assert f'"{name}"' in Path(engine_series.__file__).read_text()


def test_the_ray_service_is_an_application_of_quire() -> None:
    service, policy = objects((DEPLOY / "kuberay" / "rayservice.yaml").read_text())
    check(policy)
    [application] = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    module, name = application["import_path"].split(":")
    assert callable(getattr(import_module(module), name))
    [config] = application["args"]["llm_configs"]
    found = LLMConfig.of(config)
    cluster = service["spec"]["rayClusterConfig"]
    assert cluster["authOptions"] == {"mode": "token"}
    [group] = cluster["workerGroupSpecs"]
    for pods in (cluster["headGroupSpec"], group):
        check({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, **pods["template"]})
        [container] = pods["template"]["spec"]["containers"]
        folder = container["volumeMounts"][0]["mountPath"]
        assert str(found.server_args().api_key_file).startswith(folder)
    [container] = group["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["cpu"] == str(found.engine_args().num_threads)
