"""`trireme cluster`: a fleet on Ray (docs/cluster.md)."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .parser import CommandError

if TYPE_CHECKING:
    from ...cluster.settings import ClusterSettings
    from ...engine.config.model import ModelConfig

_FAILED = 1
_UP_S = 600.0
_REACH_S = 5.0


def add_cluster_command(commands: Any) -> None:
    """Add the sub-command to those of `argparse`."""
    parser = commands.add_parser("cluster", help="run a fleet of servers on a Ray cluster")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--address", help="of the Ray cluster; default RAY_ADDRESS, or the one of this machine")
    up = actions.add_parser("up", parents=[common], help="start a fleet, or have one that runs be as the file says")
    up.add_argument("file", type=Path, help="what the fleet is to be (TOML)")
    up.add_argument("--wait-secs", type=float, default=_UP_S, help="until all replicas are ready; default %(default)g")
    for action, text in {"status": "show who belongs to a fleet, as JSON", "down": "end a fleet"}.items():
        actions.add_parser(action, parents=[common], help=text).add_argument("name", nargs="?", default="trireme")
    parser.set_defaults(run=run_cluster)


def run_cluster(given: argparse.Namespace) -> int:
    """Do what the command line says; returns the exit code."""
    from ...engine.errors import TriremeError

    try:
        return _run(given)
    except ImportError as error:
        return _complain(f"'{error.name}' is not installed; pip install 'trireme-server[ray]'")
    except (TriremeError, LookupError, RuntimeError) as error:
        return _complain(str(error))


def _run(given: argparse.Namespace) -> int:
    from ...cluster.settings import load_settings

    if given.action == "up" and not given.file.exists():
        remedy = 'write it, with at least: [cluster] and below it: model-repository = ["models"]; see docs/cluster.md'
        raise CommandError(f"there is no file {given.file}", remedy)
    settings = load_settings(given.file) if given.action == "up" else None
    import ray  # pyright: ignore[reportMissingImports]

    from ...cluster import application

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    address = given.address or os.environ.get("RAY_ADDRESS", "auto")
    try:
        _check_reachable(address)
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except OSError as error:  # ConnectionError is one
        return _complain(f"there is no Ray cluster at '{address}' ({error}); start one with: ray start --head")
    if settings is not None:
        return _up(application, settings, given.wait_secs)
    if given.action == "down":
        application.take_down(given.name)
    else:
        sys.stdout.write(json.dumps(application.fleet_status(given.name), indent=2) + "\n")
    return 0


def _check_reachable(address: str) -> None:
    """OSError if nothing listens there, for which Ray takes minutes to say so. Other forms of addresses are Ray's."""
    host, separator, port = address.rpartition(":")
    if separator and port.isdecimal() and "/" not in address:
        with socket.create_connection((host, int(port)), timeout=_REACH_S):
            pass


def _complain(text: str) -> int:
    sys.stderr.write(f"trireme cluster: {text}\n")
    return _FAILED


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _up(application: Any, settings: ClusterSettings, wait_s: float) -> int:
    from ...cluster.resources import replica_resources
    from .server_thread import GatewayThread, ServerThread

    resources = replica_resources(settings, _configs(settings))
    _tell(f"starting '{settings.name}': each replica has {resources.options()}")
    application.bring_up(settings, resources, ServerThread, GatewayThread)
    if not application.wait_until_up(settings, _tell, wait_s):
        return _complain(f"not all replicas were ready after {wait_s:g} s; see: trireme cluster status {settings.name}")
    for gateway in application.fleet_status(settings.name)["gateways"].values():
        _tell("ask " + ", ".join(f"{title} at {address}" for title, address in sorted(gateway["listening"].items())))
    return 0


def _configs(settings: ClusterSettings) -> Iterator[ModelConfig]:
    """The models' configurations, of repositories that can be read here without fetching anything."""
    from ...engine.clock import SystemClock
    from ...engine.errors import TriremeError
    from ...engine.options import ServerOptions
    from ...engine.repository.agents import AgentRegistry
    from ...engine.repository.cloud.addresses import is_store_address
    from ...engine.repository.opening import open_repositories

    directories = [Path(text) for text in settings.repositories if not is_store_address(text)]
    options = ServerOptions(model_repository=tuple(directories))
    with contextlib.suppress(TriremeError):
        for model in open_repositories(options, os.environ, SystemClock()).scan().models:
            with contextlib.suppress(TriremeError):  # replicas say what is wrong with it
                yield model.open(options, None, AgentRegistry())[1]
