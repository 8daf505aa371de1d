"""Check what is in deploy/ with the tools that read it: `make check-deploy`, or by hand.

    python deploy/check.py

- kubectl renders the Kustomize base and the gateway, helm lints the chart and renders it for several values;
  kubernetes-validate checks the results, and the runtimes for KServe, against the schemas of Kubernetes, or of KServe's
  package; the gateway is the same with kubectl and helm, and the Service that its file names is there;
- promtool checks the rules and plays series to them, systemd-analyze checks the unit; docker, podman or buildah build
  the image, and without them its instructions are carried out here (`rehearse.py`).

A check whose tool is missing is skipped and says so. The exit code is 1 if one has failed.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
CHART = HERE / "helm" / "trireme"
OLDEST, NEWEST = "1.27", "1.33"
"""Versions of Kubernetes whose schemas the files must fit."""

VALUES = (
    (),
    ("autoscaling.enabled=true", "monitoring.podMonitor=true", "monitoring.rules=true", "monitoring.dashboard=true"),
    ("models.repositories={s3://bucket/models,gs://other/models}", "models.credentials=keys", "flags={--id=x}"),
    ("networkPolicy.enabled=false", "disruptionBudget.enabled=false", "serviceAccount.create=false"),
    ("gateway.enabled=true",),
    (
        *("gateway.enabled=true", "gateway.replicas=3", "gateway.serviceType=LoadBalancer", "gateway.flags={--id=g}"),
        *("gateway.settings.wait-secs=10", "gateway.connection.ca-file=/etc/trireme/secret/ca.pem"),
        *("gateway.secret=keys", "gateway.weights.trireme-0=2.5", "gateway.apiServers[0].ipBlock.cidr=10.0.0.1/32"),
        *("monitoring.podMonitor=true", "podAnnotations.a=b", "image.pullSecrets[0].name=pull"),
    ),
    ("gateway.enabled=true", "networkPolicy.enabled=false", "disruptionBudget.enabled=false"),
)
"""What the chart is rendered with."""

_OTHERS = ("monitoring.coreos.com/", "serving.kserve.io/", "kustomize.config.k8s.io/")


class CheckError(Exception):
    """Something is wrong, and what."""


class SkippedError(Exception):
    """A check cannot be made here, and why."""


def tool(*names: str) -> str:
    """The first of these commands that is there."""
    for name in names:
        if found := shutil.which(name):
            return found
    raise SkippedError(f"there is no {' or '.join(names)}")


def run(*words: str | Path) -> str:
    """What a command prints."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CheckError(f"{words[0]}: {done.stdout}{done.stderr}")
    return done.stdout


def validate(text: str) -> list[dict[str, Any]]:
    """Check Kubernetes' own objects against its schemas; those of others are left out. What there is."""
    if importlib.util.find_spec("kubernetes_validate") is None:
        raise SkippedError("there is no package kubernetes-validate")
    validator: Any = importlib.import_module("kubernetes_validate")
    documents = [each for each in yaml.safe_load_all(text) if each]
    if not documents:
        raise CheckError("nothing was rendered")
    for document in documents:
        if not document["apiVersion"].startswith(_OTHERS):
            for version in (OLDEST, NEWEST):
                try:
                    validator.validate(document, version, strict=True)
                except validator.ValidationError as error:
                    raise CheckError(f"{document['kind']}, Kubernetes {version}: {error}") from error
    return documents


def find(documents: list[dict[str, Any]], kind: str, ending: str) -> dict[str, Any]:
    """The one object of a kind whose name ends so, but for what is added to names of what is generated."""
    names = re.compile(rf".*{ending}(-[a-z0-9]{{10}})?")
    found = [each for each in documents if each["kind"] == kind and names.fullmatch(each["metadata"]["name"])]
    if len(found) != 1:
        raise CheckError(f"there are {len(found)} objects of kind {kind} with names that end with {ending}")
    return found[0]


def check_fleet(documents: list[dict[str, Any]]) -> None:
    """The file of the gateway is TOML, and names a Service that is there."""
    text = find(documents, "ConfigMap", "-gateway")["data"]["fleet.toml"]
    try:
        service = tomllib.loads(text)["kubernetes"]["service"]
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise CheckError(f"fleet.toml: {error!r}\n{text}") from error
    if find(documents, "Service", "-replicas")["metadata"]["name"] != service:
        raise CheckError(f"fleet.toml names the Service {service}, which there is not")


def gateway_container(documents: list[dict[str, Any]]) -> dict[str, Any]:
    (container,) = find(documents, "Deployment", "-gateway")["spec"]["template"]["spec"]["containers"]
    return {**container, "image": "", "imagePullPolicy": ""}


def kustomize() -> None:
    command = tool("kubectl")
    validate(run(command, "kustomize", HERE / "kustomize" / "base"))
    rendered = validate(run(command, "kustomize", HERE / "kustomize" / "gateway"))
    check_fleet(rendered)
    charted = validate(run(tool("helm"), "template", "release", CHART, "--set", "gateway.enabled=true"))
    if gateway_container(rendered) != gateway_container(charted):
        raise CheckError("the gateway's container is not that of the chart")


def helm() -> None:
    command = tool("helm")
    run(command, "lint", "--strict", CHART)
    for values in VALUES:
        settings = [word for value in values for word in ("--set", value)]
        documents = validate(run(command, "template", "release", CHART, *settings))
        if "gateway.enabled=true" in values:
            check_fleet(documents)
        elif any(each["metadata"]["name"].endswith("-gateway") for each in documents):
            raise CheckError("there is a gateway that is not enabled")


def promtool() -> None:
    command = tool("promtool")
    run(command, "check", "rules", CHART / "files" / "rules.yaml")
    run(command, "test", "rules", HERE / "monitoring" / "rules_test.yaml")


def kserve() -> None:
    """Every member of the runtimes is one that KServe's models know, and is read as it stands there."""
    found = importlib.util.find_spec("kserve")
    if found is None or found.origin is None:  # else it is the folder beside this file
        raise SkippedError("there is no package kserve")
    models: Any = importlib.import_module("kserve.models")
    for path in sorted((HERE / "kserve").glob("*.yaml")):
        check_runtime(models, yaml.safe_load(path.read_text()))


def check_runtime(models: Any, given: dict[str, Any]) -> None:
    spec = models.V1alpha1ServingRuntimeSpec
    members = {shown: name for name, shown in spec.attribute_map.items()}
    if strange := given["spec"].keys() - members.keys():
        raise CheckError(f"a serving runtime has no {', '.join(sorted(strange))}")
    wanted = {members[name]: value for name, value in given["spec"].items()}
    read = {name: value for name, value in spec(**wanted).to_dict().items() if value is not None}
    if read != wanted:
        raise CheckError("its members are read as something else")
    for each in given["spec"]["supportedModelFormats"]:
        if strange := each.keys() - set(models.V1alpha1SupportedModelFormat.attribute_map.values()):
            raise CheckError(f"a model format has no {', '.join(sorted(strange))}")


def systemd() -> None:
    command = tool("systemd-analyze")
    unit = (HERE / "systemd" / "trireme.service").read_text().replace("/opt/trireme/bin/trireme", "/bin/true")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trireme.service"
        path.write_text(unit)
        run(command, "verify", path)


def image() -> None:
    command = tool("docker", "podman", "buildah")
    try:
        run(command, "info")
    except CheckError:
        raise SkippedError(f"{command} does not run") from None
    run(command, "build", "--file", HERE / "Containerfile", HERE.parent)


def rehearsal() -> None:
    command = tool("unshare")
    try:
        run(command, "--mount", "true")
    except CheckError:
        raise SkippedError("only root may do that") from None
    base = re.search(r"python:(\d+)\.(\d+)", (HERE / "Containerfile").read_text())
    if base is None or tuple(map(int, base.groups())) != sys.version_info[:2]:
        raise SkippedError("this Python has another version than the image's")
    run(sys.executable, "-B", HERE / "rehearse.py")


CHECKS: tuple[Callable[[], None], ...] = (kustomize, helm, promtool, kserve, systemd, image, rehearsal)


def results() -> Iterator[tuple[str, str, bool]]:
    """What became of each check: its name, what to say of it, whether it failed."""
    for check in CHECKS:
        try:
            check()
        except SkippedError as reason:
            yield check.__name__, f"skipped: {reason}", False
        except CheckError as error:
            yield check.__name__, f"FAILED: {error}", True
        else:
            yield check.__name__, "fine", False


if __name__ == "__main__":
    code = 0
    for name, told, failed in results():
        sys.stdout.write(f"{name:10} {told}\n")
        code |= failed
    sys.exit(code)
