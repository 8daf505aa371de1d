"""The exchanges that the reference shows take place as shown, on a real server."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from references import REFERENCE, ROOT
from serve_process import serve_process

MODELS = ("simple_identity", "running_sum")
_BLOCK = re.compile(r"^```http\n(.*?)\n```$", re.MULTILINE | re.DOTALL)
_BYTE = re.compile(r"\\x([0-9a-f]{2})")


@dataclass
class Message:
    """A request or a response, as a block of the reference shows it."""

    first: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


def message(block: str) -> Message:
    head, _, body = block.partition("\n\n")
    first, *fields = head.split("\n")
    pairs = (line.partition(": ") for line in fields)
    plain = _BYTE.sub(lambda match: chr(int(match[1], 16)), body)
    return Message(first, {name: value for name, _, value in pairs}, plain.encode("latin-1"))


def exchanges(page: Path) -> list[tuple[Message, Message]]:
    messages = [message(block) for block in _BLOCK.findall(page.read_text())]
    assert len(messages) % 2 == 0, "each request has its response"
    return list(zip(messages[::2], messages[1::2], strict=True))


PAGES = [page for page in sorted(REFERENCE.glob("*.md")) if exchanges(page)]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    repository = tmp_path_factory.mktemp("models")
    for name in MODELS:
        (repository / name).symlink_to(ROOT / "model_repository" / name)
    with serve_process(repository) as server:
        yield server.wait_for(r"Started HTTPService at ([\d.:]+)")[1]


def test_there_are_examples() -> None:
    assert len(PAGES) >= 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_exchanges_take_place_as_shown(page: Path, address: str) -> None:
    """Status, the headers shown, and the body, in the order of the page."""
    connection = http.client.HTTPConnection(address, timeout=60)
    for request, response in exchanges(page):
        method, path = request.first.split(" ")
        connection.request(method, path, request.body, request.headers)
        answer = connection.getresponse()
        body = answer.read()
        assert str(answer.status) == response.first, body
        assert body.rstrip(b"\n") == response.body
        assert {name: answer.headers[name] for name in response.headers} == response.headers
    connection.close()
