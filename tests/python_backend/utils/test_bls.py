"""Requests to other models: failures are responses, and only a model that serves may ask."""

from __future__ import annotations

import pytest
from recording_host import ListedResponses, RecordingHost

from trireme.python_backend.child.utils.context import ModelContext
from trireme.python_backend.child.utils.errors import ErrorCode, HostError, TritonModelException
from trireme.python_backend.child.utils.request import InferenceRequest, ResponseIterator
from trireme.python_backend.child.utils.response import InferenceResponse, error_response

FIRST, SECOND, EMPTY = InferenceResponse(), InferenceResponse(), InferenceResponse()
REFUSAL = "Failed for execute the inference request. Model 'x' is not ready."
TOLD = f"Model x - Error when running inference: {REFUSAL}"


@pytest.fixture
def serving(model: ModelContext) -> ModelContext:
    model.serving = True
    return model


def request() -> InferenceRequest:
    return InferenceRequest(model_name="x", inputs=[], requested_output_names=[])


def told(response: InferenceResponse) -> tuple[int, str]:
    error = response.error()
    assert error is not None
    return error.code(), error.message()


@pytest.mark.usefixtures("model")
async def test_model_that_does_not_serve_may_not_ask() -> None:
    for call in (request().exec, request().async_exec):
        with pytest.raises(TritonModelException) as caught:
            await call()
        assert str(caught.value) == "BLS is only supported during the 'execute' function."


@pytest.mark.usefixtures("serving")
def test_response_is_returned(host: RecordingHost) -> None:
    host.answers["x"] = ListedResponses([FIRST])
    asked = request()
    assert asked.exec() is FIRST
    assert host.calls == [("infer", asked, False)]


@pytest.mark.usefixtures("serving")
async def test_response_can_be_awaited(host: RecordingHost) -> None:
    host.answers["x"] = ListedResponses([FIRST])
    assert await request().async_exec() is FIRST


@pytest.mark.usefixtures("serving")
async def test_request_is_made_before_it_is_awaited(host: RecordingHost) -> None:
    host.answers["x"] = ListedResponses([FIRST])
    awaitable = request().async_exec()
    assert len(host.calls) == 1
    assert await awaitable is FIRST


@pytest.mark.usefixtures("serving")
async def test_refusal_is_a_response_with_an_internal_error(host: RecordingHost) -> None:
    for decoupled in (False, True):
        host.answers["x"] = ListedResponses([HostError(REFUSAL)])
        answer = request().exec(decoupled)
        assert told(next(answer) if decoupled else answer) == (ErrorCode.INTERNAL, TOLD)
        host.answers["x"] = ListedResponses([HostError(REFUSAL)])
        answer = await request().async_exec(decoupled)
        assert told(await answer.__anext__() if decoupled else answer) == (ErrorCode.INTERNAL, TOLD)


@pytest.mark.usefixtures("serving")
def test_error_of_the_other_model_stands_as_it_is(host: RecordingHost) -> None:
    host.answers["x"] = ListedResponses([error_response("not here", ErrorCode.NOT_FOUND)])
    assert told(request().exec()) == (ErrorCode.NOT_FOUND, "not here")


@pytest.mark.usefixtures("serving")
def test_iterator_starts_over_once_it_is_finished(host: RecordingHost) -> None:
    host.answers["x"] = ListedResponses([FIRST, SECOND, EMPTY])
    responses = request().exec(decoupled=True)
    assert isinstance(responses, ResponseIterator)
    assert next(responses) is FIRST
    assert list(responses) == [SECOND, EMPTY]
    assert list(responses) == list(responses) == [FIRST, SECOND, EMPTY]


@pytest.mark.usefixtures("serving")
def test_iterator_goes_on_where_a_loop_has_left_it(host: RecordingHost) -> None:
    """Also when it starts over."""
    host.answers["x"] = ListedResponses([FIRST, SECOND, EMPTY])
    responses = request().exec(decoupled=True)
    for _ in range(3):
        for response in responses:
            assert response is FIRST
            break
        assert next(responses) is SECOND
        assert list(responses) == [EMPTY]


@pytest.mark.usefixtures("serving")
async def test_iterator_can_be_looped_over_by_a_coroutine(host: RecordingHost) -> None:
    host.answers["x"] = ListedResponses([FIRST, SECOND])
    responses = await request().async_exec(decoupled=True)
    assert [response async for response in responses] == [FIRST, SECOND]
    assert [response async for response in responses] == [FIRST, SECOND]
    assert list(responses) == [FIRST, SECOND]


@pytest.mark.usefixtures("serving")
def test_iterator_of_a_refusal_has_one_element(host: RecordingHost) -> None:
    host.answers["x"] = ListedResponses([HostError(REFUSAL)])
    responses = request().exec(decoupled=True)
    assert [told(response) for response in responses] == [(ErrorCode.INTERNAL, TOLD)]
    assert len(list(responses)) == 1


@pytest.mark.usefixtures("serving")
def test_iterator_can_be_cancelled(host: RecordingHost) -> None:
    host.answers["x"] = listed = ListedResponses([FIRST])
    request().exec(decoupled=True).cancel()
    assert listed.cancelled


@pytest.mark.usefixtures("serving")
async def test_awaiting_that_is_cancelled_gives_the_request_up(host: RecordingHost) -> None:
    class Never(ListedResponses):
        async def __anext__(self) -> InferenceResponse:
            raise KeyboardInterrupt

    host.answers["x"] = listed = Never([])
    with pytest.raises(KeyboardInterrupt):
        await request().async_exec()
    assert listed.cancelled


@pytest.mark.usefixtures("serving")
async def test_awaiting_to_the_end_cancels_nothing(host: RecordingHost) -> None:
    host.answers["x"] = listed = ListedResponses([FIRST])
    await request().async_exec()
    assert not listed.cancelled


@pytest.mark.usefixtures("serving")
async def test_awaiting_an_iterator_waits_for_the_first_response(host: RecordingHost) -> None:
    """Which is still the first to be seen."""
    host.answers["x"] = listed = ListedResponses([FIRST, SECOND])
    responses = await request().async_exec(decoupled=True)
    assert list(listed.left) == [SECOND]
    assert [next(responses), next(responses)] == [FIRST, SECOND]
