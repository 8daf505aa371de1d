"""A gateway whose replicas are the pods of a Service: an API server says which, and clients ask all the while."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from authority import Authority
from fleet_clients import FLAGS, asking, write_identity
from kubernetes_api import SERVICE, FakeApiServer, endpoint, endpoint_slice, write_account
from serve_process import GatewayProcess, ServeProcess, serve_process


class Cluster(NamedTuple):
    """An API server with a service account, and the models of its pods."""

    api: FakeApiServer
    folder: Path
    repository: Path

    def gateway(self) -> GatewayProcess:
        path = self.folder / "fleet.toml"
        path.write_text(
            f'[gateway]\nwait-secs = 20\n[kubernetes]\nservice = "{SERVICE}"\nserver = "{self.api.address}"\n'
            'token-file = "token"\nca-file = "ca.crt"\n'
        )
        return GatewayProcess(path)

    def pod(self, stack: ExitStack) -> ServeProcess:
        return stack.enter_context(serve_process(self.repository, *FLAGS, wait=False))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    authority = Authority(tmp_path)
    write_account(tmp_path, authority)
    write_identity(tmp_path / "models")
    with FakeApiServer(authority).running() as api:
        yield Cluster(api, tmp_path, tmp_path / "models")


def slice_of(name: str, pod: ServeProcess, **conditions: bool) -> dict[str, object]:
    """With one pod: on this machine each has a port of its own."""
    return endpoint_slice(f"{SERVICE}-{name}", endpoint(name, "127.0.0.1", **conditions), port=pod.grpc_port)


def test_pods_come_and_go_and_so_does_the_api_server(cluster: Cluster) -> None:
    """A gateway begins without its role, and says what is missing; then while no pod is ready. From then on no request
    fails but those that a killed pod had."""
    api = cluster.api
    with ExitStack() as stack:
        pods = {name: cluster.pod(stack) for name in ("web-0", "web-1")}
        for name, pod in pods.items():
            api.put(slice_of(name, pod, ready=False, serving=False))
        api.verbs.clear()
        gateway = cluster.gateway()
        stack.callback(gateway.end)
        gateway.wait_for("it answers 403 to list: .* needs a Role in the namespace models with the verbs get, list")
        assert gateway.ask("GET", "/v2/health/ready")[0] == 400
        api.verbs |= {"list", "watch"}
        gateway.wait_for("has 2 pods, and none is ready")
        assert gateway.ask("GET", "/v2/health/ready")[0] == 400
        for name, pod in pods.items():
            api.put(slice_of(name, pod))
            gateway.wait_for(f"replica {name} at .* is connected")
        while gateway.ask("GET", "/v2/health/ready")[0] != 200:
            pass
        with asking(gateway) as clients:
            # One is replaced: it terminates, drains and ends, after another one is there.
            pods["web-2"] = cluster.pod(stack)
            api.put(slice_of("web-2", pods["web-2"], ready=False, serving=False))
            api.put(slice_of("web-2", pods["web-2"]))
            gateway.wait_for(r"replica web-2 at \S+ is connected")
            api.put(slice_of("web-0", pods["web-0"], ready=False, terminating=True))
            gateway.wait_for("replicas of the Service replicas: web-1, web-2")
            pods["web-0"].process.send_signal(signal.SIGTERM)
            assert pods["web-0"].wait() == 0
            api.remove(f"{SERVICE}-web-0")
            clients.more()
            assert clients.errors == []
            # The watch is cut off; the token is another one by now; and the API server has forgotten what was.
            api.tokens = {"second"}
            api.disconnect()
            gateway.wait_for("the API server of Kubernetes: it answers 401 to watch.*; the fleet stays as it was")
            clients.more()
            (cluster.folder / "token").write_text("second")
            gateway.wait_for("(?s)(the API server of Kubernetes answers again.*){2}")
            lists = api.asked.count("list")
            api.forget()
            api.until(lists + 1, "list")
            # A pod is killed, and its slice taken away.
            assert clients.errors == []
            pods["web-1"].process.kill()
            gateway.wait_for("replica web-1 at .* is not connected")
            api.remove(f"{SERVICE}-web-1")
            gateway.wait_for("replicas of the Service replicas: web-2")
            clients.more()
            assert len(clients.errors) <= len(clients.threads)
            killed = len(clients.errors)
            pods["web-3"] = cluster.pod(stack)
            api.put(slice_of("web-3", pods["web-3"]))
            gateway.wait_for("replicas of the Service replicas: web-2, web-3")
            gateway.wait_for(r"replica web-3 at \S+ is connected")
            clients.more()
            assert len(clients.errors) == killed
        page = gateway.metrics()
        assert 'trireme_fleet_replica_state{replica="web-3",state="ready"} 1' in page
        assert 'replica="web-0"' not in page
        assert api.watching == 1
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.wait() == 0
