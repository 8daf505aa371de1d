"""What the process of a model says is believed only as far as it can be checked."""

from __future__ import annotations

from typing import Any

import pytest

from trireme.engine.backends.services import Services
from trireme.python_backend.calls import Calls
from trireme.python_backend.child.codec import MessageError


def tells_nothing(head: tuple[Any, ...], *_: object) -> None:
    pytest.fail(f"the process was told {head}")


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("load_model", (5, "", {})),
        ("load_model", ("a", "")),
        ("unload_model", (None, False)),
        ("is_model_ready", ("a", 1)),
        ("create_family", ("a", None, "counter")),
        ("metric_increment", (1, "a")),
        ("infer", ((), True)),
        ("infer", ((None, -1, "", 0, 0, 0, {}, (), None, ()), True)),
        ("load_model", ("a", "", {"file:1/x": ("a", 1)})),
        ("infer", (("a", -1, "", 0, 0, None, {}, (), None, ()), True)),
    ],
)
def test_a_call_with_arguments_of_other_types_is_a_broken_message(method: str, arguments: tuple[Any, ...]) -> None:
    """It would be an error in the server's own tasks, later, and the end of them."""
    calls = Calls(Services(), tells_nothing, tells_nothing, lambda key: None)
    with pytest.raises(MessageError, match=method):
        calls.call(memoryview(b""), None, (), 1, method, arguments)
