"""The OpenAPI document says what there is: every route, and nothing else."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema_rs
import pytest
import schemathesis

from trireme.api.cli.main import main
from trireme.api.http.openapi import document
from trireme.api.http.routes import ROUTES, Router

SAMPLES = {"{model}": "some model", "{version}": "7", "{repository}": "repo", "{region}": "r", "{route}": "r"}


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    """Path, method and description of each operation."""
    return [
        (path, method.upper(), described)
        for path, item in document()["paths"].items()
        for method, described in item.items()
        if method != "parameters"
    ]


def sample(path: str) -> bytes:
    for part, value in SAMPLES.items():
        path = path.replace(part, value)
    assert "{" not in path
    return path.encode()


def test_it_is_an_openapi_document() -> None:
    made = json.loads(json.dumps(document()))
    assert made["openapi"].startswith("3.1")
    for schema in made["components"]["schemas"].values():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
    loaded = schemathesis.openapi.from_dict(made)
    assert len([*loaded.get_all_operations()]) == len(operations())
    text = json.dumps(made)
    for name in re.findall('"#/components/schemas/([^"]*)"', text):
        assert name in made["components"]["schemas"]
    for name in made["components"]["schemas"]:
        assert f'"#/components/schemas/{name}"' in text, "nothing refers to it"


@pytest.mark.parametrize(("path", "method", "described"), operations(), ids=lambda value: str(value)[:60])
def test_every_operation_has_its_route(path: str, method: str, described: dict[str, Any]) -> None:
    match = Router().match(sample(path))
    assert match is not None
    assert method in match.route.handlers
    assert described["tags"] == [match.route.category]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.pattern.pattern.decode())
def test_every_route_is_there_in_all_of_its_forms(route: Any) -> None:
    """With and without each optional part, by every kind, with every method."""
    pattern = route.pattern.pattern
    forms = 2 ** len(re.findall(rb"\)\)\?|\)\?", pattern)) * (2 if b"(?P<kind>" in pattern else 1)
    router = Router()
    for method in route.handlers:
        found = [path for path, verb, _ in operations() if verb == method and _route(router, path) is route]
        assert len(found) == forms, found
    assert {verb for path, verb, _ in operations() if _route(router, path) is route} == set(route.handlers)


def _route(router: Router, path: str) -> Any:
    match = router.match(sample(path))
    return None if match is None else match.route


def test_names_are_told_once() -> None:
    names = [described["operationId"] for _, _, described in operations()]
    assert len(set(names)) == len(names)


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["openapi"]) == 0
    assert json.loads(capsys.readouterr().out) == document()
