"""Texts that take long to be made tokens of: the encoder's other requests go on meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from python_models import until
from served_encoders import answer, asks, open_encoders, values, write_model
from small_encoders import ENCODERS

from trireme.engine.backends.generation.tokenizer import LONG_TEXT, Tokenizer
from trireme.engine.errors import InvalidArgumentError

Encoded = tuple[list[int], list[int]]


class HeldUp:
    """Long texts are held up when tokens are to be made of them.

    Attributes:
        entered: there is one.
        opened: they may go on.
        seen: what they begin with.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self.seen: list[str] = []
        encode_pair = Tokenizer.encode_pair

        def encode(tokenizer: Tokenizer, text: str, other: str | None, most: int | None) -> Encoded:
            if len(text) + len(other or "") > LONG_TEXT:
                self.seen.append(text[0])
                self.entered.set()
                assert self.opened.wait(60)
            return encode_pair(tokenizer, text, other, most)

        monkeypatch.setattr(Tokenizer, "encode_pair", encode)


@pytest.fixture
def held_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldUp]:
    held = HeldUp(monkeypatch)
    yield held
    held.opened.set()


@pytest.mark.parametrize("more", [{}, {"parameters": {"truncate": True}}], ids=["refused", "cut"])
async def test_others_go_on_while_a_long_text_is_made_tokens(
    tmp_path: Path, held_up: HeldUp, more: dict[str, Any]
) -> None:
    write_model(tmp_path, ENCODERS["bert"])
    async with open_encoders(tmp_path) as server, trio.open_nursery() as nursery:
        expected = values(await answer(server, asks("a fox")))
        outcomes: list[Any] = []

        async def ask() -> None:
            try:
                outcomes.append(values(await answer(server, asks("a fox " * 5_000, **more))))
            except InvalidArgumentError as error:
                outcomes.append(error.message)

        nursery.start_soon(ask)
        assert await trio.to_thread.run_sync(held_up.entered.wait, 60)
        for text in ("a fox", "by the river"):
            found = values(await answer(server, asks(text, parameters={"truncate": True})))
            assert found.shape == expected.shape
        assert outcomes == []
        held_up.opened.set()
        await until(lambda: bool(outcomes))
        (outcome,) = outcomes
        if more:
            cut = values(await answer(server, asks("a fox " * 20, **more)))
            np.testing.assert_allclose(outcome, cut, rtol=1e-4, atol=1e-5)
        else:
            assert outcome.startswith("a text has 30002 tokens; expected at most 64")


async def test_one_whose_client_leaves_is_not_made_tokens_of(tmp_path: Path, held_up: HeldUp) -> None:
    write_model(tmp_path, ENCODERS["bert"])
    async with open_encoders(tmp_path) as server:
        replies = []
        for letter in "ab":
            replies.append(await server.admit(asks(letter * 20_000)))
            assert await trio.to_thread.run_sync(held_up.entered.wait, 60)
        await answer(server, asks("a fox"))
        for reply in replies:
            reply.cancel()
        held_up.opened.set()
        await answer(server, asks("a fox"))
        with pytest.raises(InvalidArgumentError, match="a text has 20002 tokens"):
            await answer(server, asks("c" * 20_000))
        assert held_up.seen == ["a", "c"]
