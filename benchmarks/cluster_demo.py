"""A fleet on a Ray cluster of two nodes on this machine, and what it bears: `make demo-cluster`.

Unmodified tritonclient asks through two gateways over HTTP, gRPC and streams all the time, while replicas are added,
killed, lost with their node, replaced by others, and taken away. Prints what happens, and what was answered; ends with
1 if a request failed that should not have, or was not answered.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import ray  # pyright: ignore[reportMissingImports]
import tritonclient.grpc
import tritonclient.http
from geventhttpclient.response import HTTPConnectionClosed
from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]
from tritonclient.utils import InferenceServerException

from trireme.api.cli.server_thread import GatewayThread, ServerThread
from trireme.cluster import application
from trireme.cluster.resources import replica_resources
from trireme.cluster.roster_actor import NAMESPACE
from trireme.cluster.settings import ClusterSettings, read_settings

ROOT = Path(__file__).parents[1]
NAME = "demo"
SEQUENCES = 200
PAUSE_S = 0.1
"""Of a client between two requests: so long that one replica is enough for all of them on a busy machine, too."""
PATIENCE_S = 240.0
"""How long is waited for what is to happen; only something that is wrong takes so long."""
PARTS = ("life", "many")

WHICH = """
import numpy, triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        answer = pb_utils.Tensor("VERSION", numpy.array([[%d]], numpy.int32))
        return [pb_utils.InferenceResponse([answer]) for _ in requests]
"""
SLOW = """
import time, triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.02 * len(requests))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each.inputs()[0].as_numpy())]) for each in requests]
"""
CONFIG = """
backend: "python"
max_batch_size: 1
input {{ name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }}
output {{ name: "{output}" data_type: TYPE_INT32 dims: [ 1 ] }}
"""


def write_repository(path: Path, version: int) -> Path:
    """Models: one whose answer says which release it is, a slow one, sequences, and a plain one."""
    for name, code, output in (("which", WHICH % version, "VERSION"), ("slow", SLOW, "OUT")):
        (path / name / "1").mkdir(parents=True)
        (path / name / "1" / "model.py").write_text(code)
        (path / name / "config.pbtxt").write_text(CONFIG.format(output=output))
    for name in ("running_sum", "simple"):
        shutil.copytree(ROOT / "model_repository" / name, path / name)
    sums = path / "running_sum" / "config.pbtxt"  # rows for all sequences at one replica, and time for all
    text = sums.read_text().replace("max_batch_size: 64", f"max_batch_size: {SEQUENCES}")
    sums.write_text(text.replace("idle_microseconds: 5000000", "idle_microseconds: 60000000"))
    return path


def write_many(path: Path, count: int) -> Path:
    """So many small models."""
    for number in range(count):
        target = path / f"m{number:02}"
        shutil.copytree(ROOT / "model_repository" / "simple", target)
        config = (target / "config.pbtxt").read_text()
        (target / "config.pbtxt").write_text(config.replace('name: "simple"', f'name: "{target.name}"'))
    return path


class Load:
    """Clients that ask one request after the other, at most ten a second each."""

    def __init__(self, gateways: list[dict[str, str]]) -> None:
        self.outcomes: Counter[str] = Counter()
        self.errors: list[tuple[float, str]] = []
        self.versions: Counter[int] = Counter()
        self._ended = threading.Event()
        clients: list[Callable[[str], None]] = [self._ask_http, self._ask_grpc, self._ask_stream]
        self._threads = [
            threading.Thread(target=self._run, args=(client, gateway[title]), daemon=True)
            for gateway in gateways
            for client, title in zip(
                clients, ("HTTPService", "GRPCInferenceService", "GRPCInferenceService"), strict=True
            )
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """All clients have their last answer, or will not get one."""
        self._ended.set()
        for thread in self._threads:
            thread.join(30)
            self.outcomes["not answered"] += thread.is_alive()

    def _run(self, ask: Callable[[str], None], address: str) -> None:
        while not self._ended.is_set():
            try:
                ask(address)
            except (InferenceServerException, OSError, HTTPConnectionClosed) as error:
                self._note_error(error)

    def _note_error(self, error: BaseException) -> None:
        self.outcomes["failed"] += 1
        self.errors.append((time.monotonic(), str(error)))

    def _note(self, result: Any) -> None:
        self.outcomes["answered"] += 1
        self.versions[int(result.as_numpy("VERSION")[0, 0])] += 1
        self._ended.wait(PAUSE_S)

    def _ask_http(self, address: str) -> None:
        with tritonclient.http.InferenceServerClient(address, network_timeout=30.0) as client:
            while not self._ended.is_set():
                self._note(client.infer("which", [_input(tritonclient.http, 1)]))

    def _ask_grpc(self, address: str) -> None:
        with tritonclient.grpc.InferenceServerClient(address) as client:
            while not self._ended.is_set():
                self._note(client.infer("which", [_input(tritonclient.grpc, 1)], client_timeout=30.0))

    def _ask_stream(self, address: str) -> None:
        answers: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
        with tritonclient.grpc.InferenceServerClient(address) as client:
            client.start_stream(lambda result, error: answers.put((result, error)))
            while not self._ended.is_set():
                client.async_stream_infer("which", [_input(tritonclient.grpc, 1)])
                result, error = answers.get(timeout=30)
                if error is None:
                    self._note(result)
                else:
                    self._note_error(error)


def _input(module: Any, value: int, name: str = "IN") -> Any:
    tensor = module.InferInput(name, [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[value]], np.int32))
    return tensor


def run_sequences(gateways: list[dict[str, str]], count: int) -> list[str]:
    """Interleaved sequences, of which each request goes through another gateway; what was wrong."""
    wrong: list[str] = []
    sums = dict.fromkeys(range(1, count + 1), 0)
    with (
        tritonclient.http.InferenceServerClient(gateways[0]["HTTPService"]) as http,
        tritonclient.grpc.InferenceServerClient(gateways[-1]["GRPCInferenceService"]) as grpc,
    ):
        both: list[tuple[Any, Any]] = [(http, tritonclient.http), (grpc, tritonclient.grpc)]
        for step in range(5):
            for sequence in sums:
                client, module = both[(sequence + step) % 2]
                inputs = [_input(module, sequence + step, "INPUT")]
                flags = {"sequence_id": sequence, "sequence_start": step == 0, "sequence_end": step == 4}
                result = client.infer("running_sum", inputs, **flags)
                sums[sequence] += sequence + step
                answered = int(result.as_numpy("OUTPUT")[0, 0])
                if answered != sums[sequence]:
                    wrong.append(f"sequence {sequence}, step {step}: {answered} instead of {sums[sequence]}")
    return wrong


@contextmanager
def overload(gateways: list[dict[str, str]], clients: int) -> Iterator[Counter[str]]:
    """So many clients ask for the slow model within the block; what they were answered."""
    ended, outcomes = threading.Event(), Counter[str]()

    def ask(address: str) -> None:
        with tritonclient.grpc.InferenceServerClient(address) as client:
            while not ended.is_set():
                try:
                    client.infer("slow", [_input(tritonclient.grpc, 1)], client_timeout=30.0)
                    outcomes["answered"] += 1
                except InferenceServerException as error:
                    outcomes[f"failed: {error}"] += 1

    addresses = [gateways[number % len(gateways)]["GRPCInferenceService"] for number in range(clients)]
    threads = [threading.Thread(target=ask, args=(address,), daemon=True) for address in addresses]
    for thread in threads:
        thread.start()
    try:
        yield outcomes
    finally:
        ended.set()
        for thread in threads:
            thread.join(60)


@contextmanager
def ask_all(gateways: list[dict[str, str]], count: int) -> Iterator[Counter[str]]:
    """A client of each gateway asks for one of the many models after the other within the block; what it was
    answered."""
    ended, outcomes = threading.Event(), Counter[str]()
    values = np.arange(16, dtype=np.int32).reshape(1, 16)
    inputs = [tritonclient.http.InferInput(f"INPUT{which}", [1, 16], "INT32") for which in (0, 1)]
    for tensor in inputs:
        tensor.set_data_from_numpy(values)

    def ask(address: str) -> None:
        with tritonclient.http.InferenceServerClient(address, network_timeout=30.0) as client:
            while not ended.is_set():
                for number in range(count):
                    try:
                        answer = np.asarray(client.infer(f"m{number:02}", inputs).as_numpy("OUTPUT0"))
                    except InferenceServerException as error:
                        outcomes[f"failed: {error}"] += 1
                    else:
                        outcomes["answered" if np.array_equal(answer, 2 * values) else f"wrong: {answer}"] += 1
                    ended.wait(0.01)

    threads = [threading.Thread(target=ask, args=(gateway["HTTPService"],), daemon=True) for gateway in gateways]
    for thread in threads:
        thread.start()
    try:
        yield outcomes
    finally:
        ended.set()
        for thread in threads:
            thread.join(60)


class Demo:
    """One demonstration."""

    def __init__(self, directory: Path, nodes_cpus: int) -> None:
        self._directory = directory
        self._begun_s = time.monotonic()
        self.faults: list[str] = []
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": nodes_cpus, "resources": {"edge": 10}, "include_dashboard": False},
        )
        self._second: Any = self._cluster.add_node(num_cpus=nodes_cpus)
        ray.init(address=self._cluster.address, log_to_driver=False, logging_level="error")

    def say(self, text: str) -> None:
        """A line with the time."""
        print(f"{time.monotonic() - self._begun_s:6.1f} s  {text}", flush=True)

    def check(self, fine: bool, text: str) -> None:
        """Say whether something is as it is to be."""
        self.say(f"{'  ok ' if fine else 'WRONG'}  {text}")
        if not fine:
            self.faults.append(text)

    def up(self, settings: ClusterSettings) -> None:
        """Bring a fleet up, or replace its replicas."""
        application.bring_up(settings, replica_resources(settings, []), ServerThread, GatewayThread)
        if not application.wait_until_up(settings, lambda line: self.say(f"       {line}"), PATIENCE_S):
            self.faults.append("the fleet is not up")

    def status(self) -> dict[str, Any]:
        return application.fleet_status(NAME)

    def members(self) -> dict[str, Any]:
        """Those that do not drain."""
        return {name: each for name, each in self.status()["members"].items() if not each["draining"]}

    def gateways(self) -> list[dict[str, str]]:
        """Their addresses, by service."""
        return [each["listening"] for each in self.status()["gateways"].values()]

    def until(self, true: Callable[[], bool]) -> bool:
        """Wait until something is true; whether it was before patience ended."""
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            if true():
                return True
            time.sleep(0.2)
        self.faults.append(f"something did not happen in {PATIENCE_S:g} s")
        return False

    def settings(self, repository: Path, least: int, most: int) -> ClusterSettings:
        """What the fleet is to be."""
        return read_settings(
            f"""
            [cluster]
            name = "{NAME}"
            model-repository = ["{repository}"]
            flags = ["--log-info=false", "--drain-secs=2"]
            [replicas]
            least = {least}
            most = {most}
            target-queue-ms = 100
            up-secs = 1
            down-secs = 4
            settle-secs = 4
            drain-secs = 10
            cpus = 1
            [gateways]
            count = 2
            http-port = 0
            grpc-port = 0
            flags = ["--log-info=false"]
            resources = {{ edge = 1 }}
            """,
            "demo.toml",
        )

    def run(self, parts: Sequence[str]) -> None:
        """These parts of it."""
        if "life" in parts:
            self._live()
        if "many" in parts:
            self._many()

    def _live(self) -> None:
        first = write_repository(self._directory / "v1", 1)
        second = write_repository(self._directory / "v2", 2)
        self.say("a fleet of one replica and two gateways, on a Ray cluster of two nodes")
        self.up(self.settings(first, 1, 3))
        gateways = self.gateways()
        load = Load(gateways)
        self._scale(gateways)
        self.say("three replicas of the next release: v2 instead of v1, one after the other")
        before = load.outcomes["failed"]
        self.up(self.settings(second, 3, 3))
        self.until(lambda: len(self.members()) == 3)
        since = Counter(load.versions)
        self.until(lambda: load.versions[2] > since[2] + 50)
        old = load.versions[1]
        self.until(lambda: sum(load.versions.values()) > sum(since.values()) + 200)
        self.check(load.versions[1] == old, f"all answers are v2's now ({dict(load.versions)} so far)")
        self.check(load.outcomes["failed"] == before, "no request failed meanwhile")
        self._sequences(gateways)
        self._lose(load)
        load.end()
        self.check(load.outcomes["not answered"] == 0, f"every request was answered: {dict(load.outcomes)}")

    def _scale(self, gateways: list[dict[str, str]]) -> None:
        self.say("24 clients ask a model that takes 20 ms for each request")
        with overload(gateways, 24) as outcomes:
            grown = self.until(lambda: len(self.members()) == 3)
            self.check(grown, f"{len(self.members())} replicas, because requests waited in queues")
        self.check(not outcomes["failed"], f"of those clients' requests none failed: {dict(outcomes)}")
        self.say("they have gone")
        shrunk = self.until(lambda: len(self.members()) == 1)
        self.check(shrunk, f"{len(self.members())} replica is left, because requests do not wait")

    def _sequences(self, gateways: list[dict[str, str]]) -> None:
        wrong = run_sequences(gateways, SEQUENCES)
        self.check(not wrong, f"{SEQUENCES} interleaved sequences through both gateways are right {wrong[:3] or ''}")

    def _lose(self, load: Load) -> None:
        self.say("the roster's process is killed")
        answered, before = load.outcomes["answered"], load.outcomes["failed"]
        ray.kill(ray.get_actor(f"{NAME}-roster", namespace=NAMESPACE), no_restart=False)
        self.until(lambda: load.outcomes["answered"] > answered + 200)
        self.check(load.outcomes["failed"] == before and len(self.members()) == 3, "no request failed meanwhile")
        name, member = next(iter(self.members().items()))
        before = load.outcomes["failed"]
        self.say(f"kill -9 of the replica {name}")
        os.kill(member["process"], signal.SIGKILL)
        self.until(lambda: name not in self.members() and len(self.members()) == 3)
        lost = load.outcomes["failed"] - before
        self.check(lost <= 6, f"{lost} of the 6 requests in flight failed, which were at the lost replica")
        self._say_errors(load, lost)
        before = load.outcomes["failed"]
        where = Counter(each["node"] for each in self.members().values())
        node = self._second.node_id
        self.say(f"the second node is removed, with {where[node]} of 3 replicas")
        self._cluster.remove_node(self._second, allow_graceful=False)
        self._second = self._cluster.add_node(num_cpus=4)
        self.until(lambda: len(self.members()) == 3 and all(self._is_alive(each) for each in self.members().values()))
        lost = load.outcomes["failed"] - before
        most = 6 * where[node]  # its processes end one after the other, and each has what the clients ask then
        self.check(lost <= most, f"{lost} of at most {most} requests that were there failed, and 3 replicas are there")
        self._say_errors(load, lost)

    def _say_errors(self, load: Load, count: int) -> None:
        for text, number in Counter(text for _, text in load.errors[len(load.errors) - count :]).items():
            self.say(f"       {number} times: {text}")

    def _is_alive(self, member: dict[str, Any]) -> bool:
        return Path(f"/proc/{member['process']}").exists()

    def _many(self) -> None:
        self.say("20 models over three replicas with room for 8 each")
        repository = write_many(self._directory / "many", 20)
        settings = self.settings(repository, 3, 3)
        sizes = "".join(f'[models.m{number:02}]\nmemory = "1M"\n' for number in range(20))
        told = read_settings(f'[cluster]\nmodel-repository = ["x"]\n[replicas]\nmemory = "8M"\n{sizes}', "demo.toml")
        settings = replace(settings, room=told.room, models=told.models)
        with self._most_held() as held:
            self.up(settings)
        self.check(max(held.values()) <= 8, f"the replicas hold {sorted(held.values())} models at most")
        self.say("the fleet is replaced, one replica after the other, while all models are asked for")
        with ask_all(self.gateways(), 20) as outcomes, self._most_held() as held:
            self.until(lambda: sum(outcomes.values()) >= 100)
            self.up(settings)
            before = sum(outcomes.values())
            self.until(lambda: sum(outcomes.values()) >= before + 100)
        self.check(outcomes.keys() == {"answered"}, f"of those requests none failed: {dict(outcomes)}")
        self.check(max(held.values()) <= 8, f"none had more than {max(held.values())} models, while they moved")

    @contextmanager
    def _most_held(self) -> Iterator[dict[str, int]]:
        """How many models each replica has had in memory, or was loading or unloading, at most, within the block."""
        most: dict[str, int] = {}
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(0.2):
                try:
                    members = self.status()["members"]
                except LookupError:  # there is no fleet yet
                    continue
                for name, each in members.items():
                    most[name] = max(most.get(name, 0), len({*each["ready"], *each["changing"]}))

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield most
        finally:
            ended.set()
            thread.join(30)

    def close(self) -> None:
        """Take everything down."""
        application.take_down(NAME)
        ray.shutdown()
        self._cluster.shutdown()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="where the faults are written")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to show")
    given = parser.parse_args()
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="trireme-demo-") as directory:
        demo = Demo(Path(directory), 4)
        try:
            demo.run(given.parts)
        finally:
            demo.close()
    if given.json is not None:
        given.json.write_text(json.dumps(demo.faults))
    print("everything is as it is to be" if not demo.faults else f"{len(demo.faults)} things are wrong", flush=True)
    return bool(demo.faults)


if __name__ == "__main__":
    sys.exit(main())
