"""What a model has imported goes with it."""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from trireme.python_backend.child.utils.runner import forget


@pytest.fixture
def importers() -> Iterator[None]:
    """Modules come in whenever the garbage collector may run, which is wherever another thread may have its turn."""
    numbers = itertools.count()
    thresholds = gc.get_threshold()

    def come_in(phase: str, _info: object) -> None:
        if phase == "start":
            name = f"newcomer_{next(numbers)}"
            sys.modules[name] = ModuleType(name)

    gc.callbacks.append(come_in)
    gc.set_threshold(1)
    yield
    gc.set_threshold(*thresholds)
    gc.callbacks.remove(come_in)
    for name in [name for name in sys.modules.copy() if name.startswith("newcomer_")]:
        del sys.modules[name]


@pytest.mark.usefixtures("importers")
def test_others_may_import_while_a_model_is_forgotten() -> None:
    sys.modules["going"] = ModuleType("going")
    sys.modules["going.part"] = ModuleType("going.part")
    sys.modules["goings"] = ModuleType("goings")
    forget("going", "/nowhere")
    left = {name for name in sys.modules.copy() if name.startswith("going")}
    del sys.modules["goings"]
    assert left == {"goings"}
