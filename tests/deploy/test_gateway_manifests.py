"""What deploy/ has for gateways says what `trireme gateway` understands, and finds the servers of the base."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from trireme.api.cli.gateway import GATEWAY_GROUPS, GatewayCommand, build_gateway_command
from trireme.gateway.fleet_file import load_fleet

DEPLOY = Path(__file__).parents[2] / "deploy"
GATEWAY, BASE = DEPLOY / "kustomize" / "gateway", DEPLOY / "kustomize" / "base"
TEMPLATE = (DEPLOY / "helm" / "trireme" / "templates" / "gateway.yaml").read_text()


def manifest(name: str, folder: Path = GATEWAY) -> dict[str, Any]:
    return yaml.safe_load((folder / f"{name}.yaml").read_text())


def pod() -> dict[str, Any]:
    return manifest("deployment")["spec"]["template"]["spec"]


def container() -> dict[str, Any]:
    (found,) = pod()["containers"]
    return found


def flags_of(container: dict[str, Any]) -> dict[str, str]:
    return dict(word[2:].split("=") for word in container["args"] if "=" in word)


def command() -> GatewayCommand:
    words = container()["args"]
    assert words[:2] == ["trireme", "gateway"]
    return build_gateway_command(words[2:], {})


def test_it_asks_for_what_there_is() -> None:
    made = command()
    ports = {each["name"]: each["containerPort"] for each in container()["ports"]}
    assert made.serve.http is not None
    assert made.serve.grpc is not None
    assert made.serve.metrics is not None
    services = {"http": made.serve.http, "grpc": made.serve.grpc, "metrics": made.serve.metrics}
    assert {name: each.service.bind for name, each in services.items()} == {
        name: (f"0.0.0.0:{port}",) for name, port in ports.items()
    }
    listed = manifest("service")["spec"]["ports"]
    assert {each["name"]: each["port"] for each in listed} == ports
    assert [each["targetPort"] for each in listed] == [each["name"] for each in listed]


def test_the_template_has_the_same_flags() -> None:
    """Templates cannot be parsed without helm; `make check-deploy` compares the containers."""
    flags = re.findall(r"^\s+- --([a-z-]+)=", TEMPLATE, re.MULTILINE)
    assert flags == [word[2:].partition("=")[0] for word in container()["args"][2:]]
    assert set(flags) <= {flag.name for group in GATEWAY_GROUPS for flag in group.flags}


def test_a_stop_is_given_the_time_that_it_may_take() -> None:
    given = flags_of(container())
    stop_s = int(given["drain-secs"]) + int(given["exit-timeout-secs"])
    assert pod()["terminationGracePeriodSeconds"] > stop_s


def test_a_gateway_notices_in_time_that_a_server_drains() -> None:
    """A server serves on, while it drains, for longer than it takes until every gateway knows."""
    (server,) = manifest("deployment", BASE)["spec"]["template"]["spec"]["containers"]
    file = load_fleet(GATEWAY / "fleet.toml")
    assert float(flags_of(server)["drain-secs"]) > 10 * file.report_interval_ms / 1000


def test_the_file_names_the_service_of_the_servers() -> None:
    file = load_fleet(GATEWAY / "fleet.toml")
    assert file.kubernetes is not None
    replicas = manifest("replicas")
    assert replicas["metadata"]["name"] == file.kubernetes.service
    assert replicas["spec"]["clusterIP"] == "None"
    (port,) = replicas["spec"]["ports"]
    assert port["name"] == file.kubernetes.port
    ports = manifest("deployment", BASE)["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert {each["name"]: each["containerPort"] for each in ports}[port["targetPort"]] == port["port"]
    (labels,) = yaml.safe_load((BASE / "kustomization.yaml").read_text())["labels"]
    assert replicas["spec"]["selector"] == labels["pairs"]


def test_the_file_lies_where_the_flag_says() -> None:
    (mount,) = [each for each in container()["volumeMounts"] if each["name"] == "fleet"]
    assert str(command().fleet) == f"{mount['mountPath']}/fleet.toml"
    volumes = {each["name"]: each for each in pod()["volumes"]}
    (generated,) = yaml.safe_load((GATEWAY / "kustomization.yaml").read_text())["configMapGenerator"]
    assert generated == {"name": volumes["fleet"]["configMap"]["name"], "files": ["fleet.toml"]}


def test_its_account_may_read_endpoint_slices_and_nothing_else() -> None:
    (rule,) = manifest("role")["rules"]
    assert rule == {
        "apiGroups": ["discovery.k8s.io"],
        "resources": ["endpointslices"],
        "verbs": ["get", "list", "watch"],
    }
    name = manifest("serviceaccount")["metadata"]["name"]
    assert pod()["serviceAccountName"] == name
    assert pod()["automountServiceAccountToken"] is True
    binding = manifest("rolebinding")
    assert binding["roleRef"]["name"] == manifest("role")["metadata"]["name"]
    assert [each["name"] for each in binding["subjects"]] == [name]
    for line in ("apiGroups: [discovery.k8s.io]", "resources: [endpointslices]", "verbs: [get, list, watch]"):
        assert line in TEMPLATE


def test_gateways_are_no_servers() -> None:
    """No selector of one finds the other."""
    labels = manifest("deployment")["spec"]["template"]["metadata"]["labels"]
    selectors = [
        manifest("deployment")["spec"]["selector"]["matchLabels"],
        manifest("service")["spec"]["selector"],
        manifest("poddisruptionbudget")["spec"]["selector"]["matchLabels"],
        manifest("networkpolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    assert selectors == [labels] * 4
    assert manifest("replicas")["spec"]["selector"] != labels


@pytest.mark.parametrize("kind", ["startupProbe", "readinessProbe", "livenessProbe"])
def test_probes_ask_for_health(kind: str) -> None:
    asked = container()[kind]["httpGet"]
    assert asked["port"] == "http"
    assert asked["path"] == f"/v2/health/{'ready' if kind == 'readinessProbe' else 'live'}"
    assert f"path: {asked['path']}" in TEMPLATE


def test_all_of_it_is_listed() -> None:
    kustomization = yaml.safe_load((GATEWAY / "kustomization.yaml").read_text())
    listed = {*kustomization["resources"], *kustomization["configMapGenerator"][0]["files"]}
    assert listed | {"kustomization.yaml"} == {path.name for path in GATEWAY.iterdir()}


def test_it_is_off_unless_it_is_asked_for() -> None:
    values = yaml.safe_load((DEPLOY / "helm" / "trireme" / "values.yaml").read_text())
    assert values["gateway"]["enabled"] is False
    assert TEMPLATE.startswith("{{- if .Values.gateway.enabled }}")


def test_the_image_has_what_it_needs() -> None:
    extras = re.findall(r"^ARG EXTRAS=(.*)$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)[0]
    assert "kubernetes" in extras.split(",")
