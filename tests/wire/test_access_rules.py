"""`trireme serve --access-config`, asked by Triton's clients; whether front ends are processes of their own or not."""

from __future__ import annotations

import json
import queue
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from beside_one_process import wait_until
from ruled_server import key_of, rules_text
from serve_process import PATIENCE_S, ServeProcess, serve_process
from tritonclient.utils import InferenceServerException

MODELS = Path(__file__).parents[2] / "model_repository"
MODEL = "simple_identity"
SCARCE = 'infer = ["*"]\nlimits = { requests-per-second = 0.001, burst = 1 }'


class Ruled(NamedTuple):
    """A server, its access file, its audit log."""

    server: ServeProcess
    rules: Path
    audit: Path

    def told(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.audit.read_text().splitlines()]


@pytest.fixture(scope="module", params=[0, 1])
def ruled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ruled]:
    folder = tmp_path_factory.mktemp("ruled")
    shutil.copytree(MODELS / MODEL, folder / "models" / MODEL)
    rules, audit = folder / "rules.toml", folder / "audit.jsonl"
    rules.write_text(
        rules_text(infers='infer = ["simple*"]', reader='read = ["*"]', keeper='manage = ["*"]', scarce=SCARCE)
    )
    flags = ("--front-ends", str(request.param), "--model-control-mode=explicit", f"--load-model={MODEL}")
    with serve_process(folder / "models", *flags, f"--access-config={rules}", f"--audit-log={audit}") as server:
        yield Ruled(server, rules, audit)
        server.process.terminate()
        assert server.wait() == 0, server.log


def client_of(ruled: Ruled, protocol: Any) -> Any:
    port = ruled.server.http_port if protocol is httpclient else ruled.server.grpc_port
    patience = {"network_timeout": PATIENCE_S} if protocol is httpclient else {}
    return protocol.InferenceServerClient(f"127.0.0.1:{port}", **patience)


def inputs(protocol: Any) -> list[Any]:
    array = np.array([["a"]], np.object_)
    return [protocol.InferInput("INPUT0", [1, 1], "BYTES").set_data_from_numpy(array)]


def told(ask: Any, caller: str, **headers: str) -> str:
    """What a client is told; empty if it may."""
    try:
        ask(headers={"x-api-key": key_of(caller), **headers} if caller else headers)
    except InferenceServerException as error:
        return error.message()
    return ""


@pytest.mark.parametrize("protocol", [httpclient, grpcclient])
def test_rights_and_their_lack_are_told_alike(ruled: Ruled, protocol: Any) -> None:
    with client_of(ruled, protocol) as client:
        infer = partial(client.infer, MODEL, inputs(protocol))
        for _ in range(2):
            assert told(infer, "infers") == ""
            assert told(infer, "reader") == f"caller 'reader' does not have the right 'infer' on model '{MODEL}'"
            assert told(infer, "").startswith("a credential is needed")
        assert told(infer, "", **{"x-api-key": "trk_infers_x"}) == "the API key is not known"
        assert told(infer, "", authorization=f"Bearer {key_of('infers')}") == ""
        metadata = partial(client.get_model_metadata, MODEL)
        assert told(metadata, "reader") == ""
        assert told(metadata, "infers") == f"caller 'infers' does not have the right 'read' on model '{MODEL}'"
        load = partial(client.load_model, MODEL)
        assert told(load, "reader") == f"caller 'reader' does not have the right 'manage' on model '{MODEL}'"
        assert told(load, "keeper") == ""
        assert client.is_server_ready()
    wait_until(lambda: any(each["outcome"] == "allowed" for each in ruled.told()))
    assert {each["caller"] for each in ruled.told() if each["outcome"] == "allowed"} == {"keeper"}


def test_streams(ruled: Ruled) -> None:
    with client_of(ruled, grpcclient) as client:
        answers: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: answers.put(error or result), headers={"x-api-key": key_of("infers")})
        for _ in range(2):
            client.async_stream_infer(MODEL, inputs(grpcclient))
            assert answers.get(timeout=PATIENCE_S).as_numpy("OUTPUT0").tolist() == [[b"a"]]
        client.stop_stream()
        client.start_stream(lambda result, error: answers.put(error or result))
        assert "a credential is needed" in str(answers.get(timeout=PATIENCE_S))


def test_limits_hold_over_all_protocols_together(ruled: Ruled) -> None:
    reached = "caller 'scarce' has reached its limit of 0.001 requests a second"
    with client_of(ruled, grpcclient) as one, client_of(ruled, httpclient) as other:
        assert told(partial(one.infer, MODEL, inputs(grpcclient)), "scarce") == ""
        assert told(partial(one.infer, MODEL, inputs(grpcclient)), "scarce").startswith(reached)
        assert told(partial(other.infer, MODEL, inputs(httpclient)), "scarce").startswith(reached)


def test_metrics_need_the_right_to_read_all(ruled: Ruled) -> None:
    url = f"http://127.0.0.1:{ruled.server.metrics_port}/metrics"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url, timeout=PATIENCE_S)
    assert refused.value.code == 401
    asked = urllib.request.Request(url, headers={"X-API-Key": key_of("reader")})
    with urllib.request.urlopen(asked, timeout=PATIENCE_S) as page:
        text = page.read().decode()
    assert 'trireme_refused_total{reason="unauthenticated"}' in text
    assert text.count('trireme_caller_in_flight{caller="infers"} 0\n') == 1


def test_new_rules_hold_on_open_connections(ruled: Ruled) -> None:
    """A faulty file changes nothing. Comes last: the rules are others then."""
    before = ruled.rules.read_text()
    with client_of(ruled, grpcclient) as client:
        infer = partial(client.infer, MODEL, inputs(grpcclient))
        assert told(infer, "infers") == ""
        try:
            ruled.rules.write_text("[[callers]]\nnam = 1\n")
            ruled.server.wait_for("nam")
            assert told(infer, "infers") == ""
            ruled.rules.write_text(rules_text(reader='read = ["*"]', others='infer = ["*"]'))
            wait_until(lambda: told(infer, "infers") == "the API key is not known")
            assert told(infer, "others") == ""
        finally:
            ruled.rules.write_text(before)
