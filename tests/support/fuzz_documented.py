"""Requests that schemathesis draws from the OpenAPI document, right ones and wrong ones, and what the document says of
the answers: status, media type, schema."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import schemathesis
from fuzz_http import Sent, allowed, check_form
from fuzz_target import COMPLAINT, Finding
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed
from schemathesis import APIOperation, GenerationMode
from schemathesis.checks import content_type_conformance, response_schema_conformance
from schemathesis.core.result import Ok
from serve_process import ServeProcess

from trireme.api.http.openapi import document

PATIENCE_S = 20.0
FLAGS = ("--model-control-mode", "explicit", "--load-model", "*", "--allow-client-shm", "true")
"""What the server is to be started with, so that everything can be asked of it."""

_INPUTS = [
    {"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": [1] * 16},
    {"name": "INPUT1", "datatype": "INT32", "shape": [1, 16], "data": [2] * 16},
]


def document_for(models: Sequence[str]) -> dict[str, Any]:
    """The document, with the models that there are."""
    made = json.loads(json.dumps(document()))
    for item in made["paths"].values():
        for parameter in item["parameters"]:
            if parameter["name"] == "model":
                parameter["schema"] = {"enum": [*models, "absent"]}
            elif parameter["name"] == "version":
                parameter["schema"] = {"enum": ["1", "2", "99999999999999999999"]}
    return made


def fuzz_documented(server: ServeProcess, models: Sequence[str], *, examples: int, seed: int) -> Counter[int]:
    """Draw `examples` right and as many wrong requests for each operation; how often each status was answered.

    Raises:
        Finding: what must not happen has.
    """
    schema = schemathesis.openapi.from_dict(document_for(models))
    url = f"http://127.0.0.1:{server.http_port}"
    statuses: Counter[int] = Counter()
    for result in schema.get_all_operations():
        assert isinstance(result, Ok), "the document is right"
        for mode in GenerationMode:
            _fuzz_operation(result.ok(), mode, url, examples, seed, statuses)
        _check_server(server)
    return statuses


def _fuzz_operation(
    operation: APIOperation, mode: GenerationMode, url: str, examples: int, seed: int, statuses: Counter[int]
) -> None:
    if mode is GenerationMode.NEGATIVE and not (operation.path_parameters or operation.body or operation.headers):
        return  # there is nothing that could be wrong

    @with_seed(seed)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        response = case.call(base_url=url, timeout=PATIENCE_S, headers={"Connection": "close"})
        statuses[response.status_code] += 1
        request = response.request
        body = request.body if isinstance(request.body, bytes) else b""
        sent = Sent(request.method or "", request.path_url.partition("?")[0], body=body)
        if response.status_code not in allowed(sent):
            raise Finding(f"{response.status_code} {response.content[:500]!r} to {sent}")
        check_form(response.status_code, response.content, sent)
        if str(response.status_code) in operation.definition.raw["responses"]:
            case.validate_response(response, checks=[content_type_conformance, response_schema_conformance])

    ask()


def _check_server(server: ServeProcess) -> None:
    """It answers, and has nothing to regret in its log."""
    if complaint := COMPLAINT.search(server.log):
        raise Finding(server.log[max(0, complaint.start() - 3_000) : complaint.start() + 6_000])
    server.ask("POST", "/v2/repository/models/simple/load")
    status, answer = server.ask("POST", "/v2/models/simple/infer", {"inputs": _INPUTS})
    if status != 200 or answer["outputs"][0]["data"] != [3] * 16:
        raise Finding(f"the canary is told {status} {answer}")
