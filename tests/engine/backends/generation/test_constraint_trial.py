"""Constraints that are hostile, or slow to read: nobody else has anything of it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import trio
from counting_network import ALPHABET, asks, open_letters, refused, said, whole, write_model, write_tokenizer
from python_models import until

from trireme.engine.backends.generation import constraint_trial
from trireme.engine.backends.generation.asked_constraints import read_constraint
from trireme.engine.backends.generation.constraint_trial import ConstraintTrial
from trireme.engine.backends.generation.constraints import Constraints
from trireme.engine.backends.generation.tokenizer import Tokenizer
from trireme.engine.errors import CancelledError, InternalError, InvalidArgumentError


@pytest.fixture
def constraints(tmp_path: Path) -> Constraints:
    write_tokenizer(tmp_path)
    return Constraints(Tokenizer(tmp_path), len(ALPHABET))


def tried(constraints: Constraints, **given: Any) -> None:
    constraint = read_constraint("structured_outputs", given)
    assert constraint is not None
    constraints.read(constraint, ConstraintTrial())


def chain(length: int) -> dict[str, Any]:
    """A schema that is not deep, whose references are."""
    links: dict[str, Any] = {f"d{number}": {"items": {"$ref": f"#/$defs/d{number + 1}"}} for number in range(length)}
    return {"$defs": {**links, f"d{length}": {}}, "$ref": "#/$defs/d0"}


def rules(length: int) -> str:
    return "start: r0\n" + "".join(f'r{at}: "a" r{at + 1} | "b"\n' for at in range(length)) + f'r{length}: "x"\n'


@pytest.mark.parametrize("given", [{"json": chain(1300)}, {"grammar": rules(2500)}], ids=["references", "rules"])
def test_what_takes_too_much_ends_a_process_of_its_own(constraints: Constraints, given: Any) -> None:
    """Each of these would end the server if it was read there."""
    with pytest.raises(InvalidArgumentError, match="reading it takes more memory than it may") as caught:
        tried(constraints, **given)
    assert caught.value.about == "structured_outputs"


def test_what_takes_too_long_ends_it_as_well(constraints: Constraints, monkeypatch: pytest.MonkeyPatch) -> None:
    """This would take the server half a minute."""
    monkeypatch.setattr(constraint_trial, "_MEMORY_BYTES", 64 << 30)
    monkeypatch.setattr(constraint_trial, "_PATIENCE_S", 600.0)
    with pytest.raises(InvalidArgumentError, match="reading it takes more time than it may"):
        tried(constraints, json={"type": "integer", "multipleOf": 9_999_991})


@pytest.mark.parametrize(
    "given",
    [
        {"json": chain(50)},
        {"grammar": rules(50)},
        {"regex": "(a|b)*a(a|b){30}c"},
        {"json": {"enum": [f"value {number}" for number in range(3000)]}},
    ],
)
def test_what_is_usual_is_read(constraints: Constraints, given: Any) -> None:
    tried(constraints, **given)


def test_what_is_wrong_is_said_as_the_library_says_it(constraints: Constraints) -> None:
    with pytest.raises(InvalidArgumentError, match=r"cannot be used: .*unclosed group"):
        tried(constraints, regex="(a")
    with pytest.raises(InvalidArgumentError, match=r"cannot be used: .*Expected token"):
        tried(constraints, grammar="start: (")
    with pytest.raises(InvalidArgumentError, match=r"cannot be used: .*Unimplemented keys"):
        tried(constraints, json={"if": {}})


def test_a_trial_that_was_cancelled_is_over(constraints: Constraints, monkeypatch: pytest.MonkeyPatch) -> None:
    constraint = read_constraint("structured_outputs", {"json": {"type": "integer", "multipleOf": 9_999_991}})
    assert constraint is not None
    trial = ConstraintTrial()
    trial.cancel()
    with pytest.raises(CancelledError):
        constraints.read(constraint, trial)
    monkeypatch.setattr(constraint_trial, "_SECONDS", 600)  # so that only its being cancelled ends it
    running = ConstraintTrial()
    errors: list[BaseException] = []

    def read() -> None:
        try:
            constraints.read(constraint, running)
        except CancelledError as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    running.cancel()
    thread.join(60)
    assert len(errors) == 1


def test_a_trial_that_cannot_be_is_no_fault_of_the_client(
    constraints: Constraints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(InternalError, match="there can be no process that reads constraints"):
        tried(constraints, regex="a+")
    tried(constraints, choice=["a", "b"])  # which needs none


# Behind a server.


class HeldUp:
    """In place of trials: they wait until they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.cancelled = 0
        self.entered = threading.Event()
        self.go = threading.Event()

        def run(trial: ConstraintTrial, *_given: object) -> None:
            self.count += 1
            self.entered.set()
            assert self.go.wait(60)
            if trial._cancelled:
                self.cancelled += 1
                raise CancelledError("it was cancelled")

        monkeypatch.setattr(ConstraintTrial, "run", run)

    async def until_entered(self) -> None:
        assert await trio.to_thread.run_sync(self.entered.wait, 60)


async def test_texts_go_on_while_a_constraint_is_read_once_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path)
    held = HeldUp(monkeypatch)
    asked: dict[str, Any] = {
        "max_tokens": 2,
        "structured_outputs": {"regex": "xy+"},
    }
    found: list[list[str]] = []
    async with open_letters(tmp_path) as server:

        async def ask() -> None:
            (response,) = await whole(server, asks("a", flags=("exclude_input_in_output",), **asked))
            found.append(said(response))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
            await held.until_entered()
            (response,) = await whole(server, asks("abc", max_tokens=4))
            assert said(response) == ["abcdefg"]
            assert found == []
            held.go.set()
        assert found == [["xy"]] * 3
        await ask()
        assert held.count <= 2, "those that came when it was being read wait for that"


async def test_a_constraint_is_read_no_further_when_nobody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path)
    held = HeldUp(monkeypatch)
    async with open_letters(tmp_path) as server:
        reply = await server.admit(asks("a", structured_outputs={"regex": "x+"}))
        await held.until_entered()
        reply.cancel()
        await until(lambda: reply.final)
        held.go.set()
        (response,) = await whole(server, asks("a", max_tokens=1, structured_outputs={"regex": "y+"}))
        assert said(response) == ["ay"]
        assert (held.count, held.cancelled) == (2, 1)


async def test_what_is_hostile_costs_its_request_alone(tmp_path: Path) -> None:
    write_model(tmp_path)
    async with open_letters(tmp_path) as server:
        errors: list[str] = []

        async def ask() -> None:
            errors.append(await refused(server, asks("a", structured_outputs={"json": json.dumps(chain(1300))})))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            (response,) = await whole(server, asks("abc", max_tokens=4))
            assert said(response) == ["abcdefg"]
        assert errors == ["the constraint cannot be used: reading it takes more memory than it may"]
