"""The fleet as applications of Ray Serve, one of replicas and one of gateways: what `trireme cluster` does."""

# pyright: reportMissingImports=false
# Ray is in no environment of the tools.

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.serve.schema import ApplicationStatus

from .gateway import MakeGateway, ServedGateway
from .policy import QueueTimePolicy, policy_arguments
from .replica import MakeServer, ServedReplica
from .resources import ReplicaResources
from .roster_actor import NAMESPACE, find_roster
from .settings import ClusterSettings

_METRICS_S = 1.0
_HEALTH_S = 2.0
_SURGE_PERCENT = 1
"""Of replicas that are started before an old one is stopped: one at a time."""
_POLICY = f"{QueueTimePolicy.__module__}:{QueueTimePolicy.__name__}"


def build_replicas(
    settings: ClusterSettings, release: float, resources: ReplicaResources, make_server: MakeServer
) -> serve.Application:
    """The application of the replicas."""
    scaling = settings.scaling
    count: dict[str, Any] = {"num_replicas": scaling.least}
    if scaling.most > scaling.least:
        policy = AutoscalingPolicy(policy_function=_POLICY, policy_kwargs=policy_arguments(scaling))
        count = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=scaling.least,
                max_replicas=scaling.most,
                initial_replicas=scaling.least,
                upscale_delay_s=0,  # the policy has delays of its own
                downscale_delay_s=0,
                metrics_interval_s=_METRICS_S,
                look_back_period_s=2 * _METRICS_S,
                policy=policy,
            )
        }
    replicas = serve.deployment(
        ServedReplica,
        name="replica",
        ray_actor_options=resources.options(),
        health_check_timeout_s=30,
        **_common(settings),
        **count,
    )
    return replicas.bind(settings, release, make_server)


def build_gateways(settings: ClusterSettings, make_gateway: MakeGateway) -> serve.Application:
    """The application of the gateways, which know replicas by the roster."""
    gateways = serve.deployment(
        ServedGateway,
        name="gateway",
        num_replicas=settings.gateways,
        ray_actor_options={"num_cpus": 0, "resources": dict(settings.gateway_resources)},
        **_common(settings),
    )
    return gateways.bind(settings, make_gateway)


def _common(settings: ClusterSettings) -> dict[str, Any]:
    """Options of all deployments."""
    return {
        "health_check_period_s": _HEALTH_S,
        "graceful_shutdown_timeout_s": 2 * settings.drain_s + 20,  # for its models, and for its requests
        "graceful_shutdown_wait_loop_s": 0.1,
        "max_surge_percent": _SURGE_PERCENT,
    }


def bring_up(
    settings: ClusterSettings, resources: ReplicaResources, make_server: MakeServer, make_gateway: MakeGateway
) -> None:
    """Start the fleet, or have one that runs be as the settings say: its replicas are replaced one after the other, its
    gateways only if their own settings have changed, because clients know their addresses.

    Ray must have been initialised.
    """
    serve.start(proxy_location="Disabled")  # requests do not come by Ray
    roster = find_roster(settings)
    release = time.time()
    gateways_change = ray.get(roster.configure.remote(settings, release), timeout=60)
    targets = [serve.RunTarget(build_replicas(settings, release, resources, make_server), settings.name, None)]
    gateways_name = _gateways_name(settings.name)
    if gateways_change or gateways_name not in serve.status().applications:
        targets.append(serve.RunTarget(build_gateways(settings, make_gateway), gateways_name, None))
    serve.run_many(targets, wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)


def _gateways_name(name: str) -> str:
    return f"{name}-gateways"


def fleet_status(name: str) -> dict[str, Any]:
    """Who belongs to a fleet, for people and programs: members, gateways, models that have a place and that have none
    (both empty if all replicas have all models), and what Ray says of the applications.

    Raises:
        LookupError: there is no fleet of this name.
    """
    try:
        roster = ray.get_actor(f"{name}-roster", namespace=NAMESPACE)
    except ValueError as error:
        raise _no_fleet(name) from error
    asked = [roster.members.remote(), roster.gateways.remote(), roster.layout.remote()]
    members, gateways, layout = ray.get(asked, timeout=30)
    applications = serve.status().applications
    return {
        "members": {
            member: {
                "address": told.address,
                "node": told.node,
                "process": told.process,
                "draining": told.draining,
                "ready": sorted(told.ready),
                "changing": sorted(told.changing),
                "failed": dict(told.failed),
            }
            for member, told in members.items()
        },
        "gateways": {
            gateway: {"listening": dict(told.listening), "linked": sorted(told.linked)}
            for gateway, told in gateways.items()
        },
        "planned": sorted({model for models in layout.on.values() for model in models}),
        "unplaced": dict(layout.unplaced),
        "applications": {
            title: {
                "status": applications[title].status.value,
                "message": applications[title].message,
                "deployments": {
                    key: {"replicas": dict(each.replica_states), "message": each.message}
                    for key, each in applications[title].deployments.items()
                },
            }
            for title in (name, _gateways_name(name))
            if title in applications
        },
    }


def _no_fleet(name: str) -> LookupError:
    return LookupError(f"there is no fleet '{name}' on this cluster")


def wait_until_up(settings: ClusterSettings, tell: Callable[[str], None], timeout_s: float) -> bool:
    """Wait until the fleet is as its settings say: all replaced that was to be, with its gateways and its least number
    of replicas, and with models; whether it is by then.

    Args:
        tell: called with a line for people, whenever something has changed.
        timeout_s: for all of it, seconds.

    Raises:
        RuntimeError: Ray has given up; the text is Ray's.
    """
    last = ""
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        status = fleet_status(settings.name)
        for each in status["applications"].values():
            if each["status"] == ApplicationStatus.DEPLOY_FAILED.value:
                raise RuntimeError("\n".join([each["message"], *_complaints(each)]))
        progress, is_up = _look_at(status, settings)
        if progress != last:
            tell(progress)
            last = progress
        if is_up:
            return True
        time.sleep(0.2)
    return False


def _complaints(application: dict[str, Any]) -> list[str]:
    """The last line of what Ray says of each deployment, which ends with a traceback."""
    texts = [deployment["message"].strip() for deployment in application["deployments"].values()]
    return [text.splitlines()[-1] for text in texts if text]


def _look_at(status: dict[str, Any], settings: ClusterSettings) -> tuple[str, bool]:
    """How far a fleet has come, for people; whether it is as its settings say."""
    ready = {name: set(each["ready"]) for name, each in status["members"].items() if not each["draining"]}
    models = set[str]().union(*ready.values())
    failed = {model for each in status["members"].values() for model in each["failed"]}
    gateways = [each for each in status["gateways"].values() if ready.keys() <= set(each["linked"])]
    applications = [each["status"] == ApplicationStatus.RUNNING.value for each in status["applications"].values()]
    progress = (
        f"{len(ready)} of {settings.scaling.least} replicas, {len(gateways)} of {settings.gateways} gateways, "
        f"{len(models)} models ready" + (f", not loaded: {', '.join(sorted(failed))}" if failed else "")
    )
    planned = set(status["planned"])
    return progress, (
        len(applications) == 2
        and all(applications)
        and len(ready) >= settings.scaling.least
        and len(gateways) >= settings.gateways
        and bool(models)
        and (settings.room is None or models | failed >= planned != set())
    )


def take_down(name: str) -> None:
    """End a fleet: gateways and replicas answer what they have first.

    Raises:
        LookupError: there is no fleet of this name.
    """
    found = [each for each in (_gateways_name(name), name) if each in serve.status().applications]
    for each in found:
        serve.delete(each)
    try:
        ray.kill(ray.get_actor(f"{name}-roster", namespace=NAMESPACE))
    except ValueError as error:  # it is not there
        if not found:
            raise _no_fleet(name) from error
