"""The decoupled models that come with Trireme, asked as people ask them: on tritonclient's streams, and for events."""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

Stream = Callable[..., list[Any]]


class Asker:
    """A stream, and what comes back on it."""

    def __init__(self, client: grpc.InferenceServerClient) -> None:
        self._client = client
        self._came: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: self._came.put(error or result))

    def ask(self, model: str, request_id: str = "", parameters: dict[str, Any] | None = None, **inputs: Any) -> None:
        """Ask for everything, and to be told of the end."""
        self.send(model, inputs, request_id=request_id, parameters=parameters, enable_empty_final_response=True)

    def send(self, model: str, inputs: dict[str, np.ndarray], **options: Any) -> None:
        tensors = []
        for name, array in inputs.items():
            datatype = {"int32": "INT32", "uint32": "UINT32", "object": "BYTES"}[str(array.dtype)]
            tensors.append(grpc.InferInput(name, list(array.shape), datatype).set_data_from_numpy(array))
        self._client.async_stream_infer(model, tensors, **options)

    def next(self) -> Any:
        return self._came.get(timeout=20)

    def came_until_the_end(self) -> list[Any]:
        """What came after the last `next`, when the server has closed its side of the stream, too."""
        self._client.stop_stream()
        return list(self._came.queue)

    def rest(self) -> list[dict[str, list[Any]]]:
        """The outputs of each response up to the end of one request."""
        responses: list[dict[str, list[Any]]] = []
        while True:
            result = self.next()
            if isinstance(result, Exception):
                raise result
            response = result.get_response()
            if response.outputs:
                names = [output.name for output in response.outputs]
                responses.append({name: result.as_numpy(name).tolist() for name in names})
            if response.parameters["triton_final_response"].bool_param:
                return responses


@pytest.fixture
def asker(live: Any) -> Iterator[Asker]:
    with grpc.InferenceServerClient(live.grpc_url) as client:
        yield Asker(client)
        client.stop_stream(cancel_requests=True)


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def uint32(*values: int) -> np.ndarray:
    return np.array(values, np.uint32)


def text(value: str) -> np.ndarray:
    return np.array([value.encode()], object)


def test_repeat_answers_once_a_number(asker: Asker) -> None:
    """As tritonclient's `simple_grpc_custom_repeat` and the decoupled example's `repeat_client` ask."""
    asker.ask("repeat_int32", IN=int32(4, 2, 0, 1), DELAY=uint32(1, 2, 3, 4), WAIT=uint32(5))
    assert asker.rest() == [{"OUT": [number], "IDX": [index]} for index, number in enumerate([4, 2, 0, 1])]


def test_custom_repeat_as_its_client_asks(asker: Asker) -> None:
    """One output by name, and nothing said of an end: there are as many answers as numbers, in their order."""
    numbers = np.arange(100, 110, dtype=np.int32)
    inputs = {"IN": numbers, "DELAY": np.full(10, 10, np.uint32), "WAIT": uint32(10)}
    asker.send("repeat_int32", inputs, outputs=[grpc.InferRequestedOutput("OUT")])
    results = [asker.next() for _ in numbers]
    assert [result.as_numpy("OUT").tolist() for result in results] == [[number] for number in numbers.tolist()]
    assert [output.name for result in results for output in result.get_response().outputs] == ["OUT"] * 10
    assert asker.came_until_the_end() == []


def test_square_as_its_client_asks(asker: Asker) -> None:
    """Four requests at once, told apart by their ids; of the one without a response nothing is heard."""
    values = [4, 2, 0, 1]
    for place, value in enumerate(values):
        outputs = [grpc.InferRequestedOutput("OUT")]
        asker.send("square_int32", {"IN": int32(value)}, request_id=str(place), outputs=outputs)
    came = [asker.next() for _ in range(sum(values))]
    told = sorted((result.get_response().id, result.as_numpy("OUT").tolist()) for result in came)
    assert told == sorted((str(place), [value]) for place, value in enumerate(values) for _ in range(value))
    assert asker.came_until_the_end() == []


def test_repeat_of_nothing_is_no_response(asker: Asker) -> None:
    asker.ask("repeat_int32", IN=int32(), DELAY=uint32(), WAIT=uint32(0))
    assert asker.rest() == []


def test_repeat_takes_the_next_request_while_it_answers(asker: Asker) -> None:
    asker.ask("repeat_int32", "slow", IN=int32(1, 2), DELAY=uint32(0, 5000), WAIT=uint32(0))
    assert asker.next().get_response().id == "slow"
    asker.ask("repeat_int32", "fast", IN=int32(7), DELAY=uint32(0), WAIT=uint32(0))
    assert asker.next().get_response().id == "fast"


def test_repeat_wants_as_many_delays_as_numbers(asker: Asker) -> None:
    asker.ask("repeat_int32", IN=int32(1, 2), DELAY=uint32(1), WAIT=uint32(0))
    with pytest.raises(InferenceServerException, match=r"expected IN and DELAY shape to match, got \[2\] and \[1\]"):
        asker.rest()


@pytest.mark.parametrize("number", [4, 1, 0])
def test_square_answers_n_times(asker: Asker, number: int) -> None:
    asker.ask("square_int32", IN=int32(number))
    assert asker.rest() == [{"OUT": [number]}] * number


def events(live: Any, **members: Any) -> list[dict[str, Any]]:
    """What `generate_stream` of the storyteller sends."""
    url = f"http://{live.url}/v2/models/storyteller/generate_stream"
    request = urllib.request.Request(url, json.dumps(members).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        lines = [line.decode().rstrip("\n") for line in response]
    assert all(line == "" or line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines if line]


def test_story_comes_word_by_word_as_events(live: Any) -> None:
    told = events(live, text_input="The keeper ", length=60, seed=1)
    assert len(told) > 5
    words = [event["text_output"] for event in told]
    assert all(word[-1].isspace() for word in words)
    assert 60 <= len("".join(words)) < 100
    assert events(live, text_input="The keeper ", length=60, seed=1) == told


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_shows_the_words_as_they_come(live: Any) -> None:
    """The first one while the story, which is long, is still being told."""
    url = f"http://{live.url}/v2/models/storyteller/generate_stream"
    body = json.dumps({"text_input": "The sea ", "length": 10_000})
    with subprocess.Popen(["curl", "-sN", "-d", body, url], stdout=subprocess.PIPE, text=True) as curl:
        assert curl.stdout is not None
        first = json.loads(curl.stdout.readline().removeprefix("data: "))
        assert curl.poll() is None
        curl.kill()
    assert first["text_output"].strip()


def test_story_is_the_same_on_a_stream(live: Any, asker: Asker) -> None:
    asker.ask("storyteller", text_input=text("The keeper "), parameters={"length": 60, "seed": 1})
    told = [response["text_output"][0].decode() for response in asker.rest()]
    assert told == [event["text_output"] for event in events(live, text_input="The keeper ", length=60, seed=1)]


def test_stories_are_told_side_by_side(asker: Asker) -> None:
    """A long one does not keep a short one waiting."""
    asker.ask("storyteller", "long", text_input=text("The sea "), parameters={"length": 10_000})
    assert asker.next().get_response().id == "long"
    asker.ask("storyteller", "short", text_input=text("The cat "), parameters={"length": 5})
    ended = []
    while len(ended) < 2:
        response = asker.next().get_response()
        if response.parameters["triton_final_response"].bool_param:
            ended.append(response.id)
    assert ended == ["short", "long"]


def test_bad_settings_are_an_event_and_a_bad_request(live: Any) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        events(live, text_input="x", length=0)
    assert caught.value.code == 400
    assert caught.value.read().decode() == (
        'data: {"error":"storyteller: length must be from 1 to 10000, and temperature from 0 to 10"}\n\n'
    )


def test_listener_who_goes_away_ends_the_story(live: Any) -> None:
    """There are sixteen tellers, and twenty listeners leave: tellers who went on waiting for them would be missed."""
    body = json.dumps({"text_input": "The sea ", "length": 10_000}).encode()
    for _ in range(20):
        url = f"http://{live.url}/v2/models/storyteller/generate_stream"
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=20) as response:
            assert response.readline().startswith(b"data: ")
    assert len(events(live, text_input="The cat ", length=5)) > 0
