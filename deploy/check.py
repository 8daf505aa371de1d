"""Check what is in deploy/ with the tools that read it: `make check-deploy`, or by hand.

    python deploy/check.py

- kubectl renders the Kustomize base, helm lints the chart and renders it for several values; kubernetes-validate checks
  the results, and the runtime for KServe, against the schemas of Kubernetes, or of KServe's package;
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


def validate(text: str) -> None:
    """Check Kubernetes' own objects against its schemas; those of others are left out."""
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


def kustomize() -> None:
    validate(run(tool("kubectl"), "kustomize", HERE / "kustomize" / "base"))


def helm() -> None:
    command = tool("helm")
    run(command, "lint", "--strict", CHART)
    for values in VALUES:
        settings = [word for value in values for word in ("--set", value)]
        validate(run(command, "template", "release", CHART, *settings))


def promtool() -> None:
    command = tool("promtool")
    run(command, "check", "rules", CHART / "files" / "rules.yaml")
    run(command, "test", "rules", HERE / "monitoring" / "rules_test.yaml")


def kserve() -> None:
    """Every member of the runtime is one that KServe's models know, and is read as it stands there."""
    found = importlib.util.find_spec("kserve")
    if found is None or found.origin is None:  # else it is the folder beside this file
        raise SkippedError("there is no package kserve")
    models: Any = importlib.import_module("kserve.models")
    given = yaml.safe_load((HERE / "kserve" / "clusterservingruntime.yaml").read_text())
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
