"""Prompts that are long, far too long, or more than there is memory for."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio
from counting_network import asks, open_letters, refused, said, whole, write_model, write_tokenizer

from trireme.engine.backends.generation.tokenizer import LONG_TEXT, Tokenizer


def test_a_long_text_has_the_tokens_of_a_short_one(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    tokenizer = Tokenizer(tmp_path)
    short = tokenizer.encode("a fox ")
    count = LONG_TEXT // 6 + 1
    assert tokenizer.encode("a fox " * count) == short * count
    ids, _ = tokenizer.encode_pair("a fox " * count, None, None)
    assert ids == short * count
    ids, kinds = tokenizer.encode_pair("a fox " * count, "a fox ", None)
    assert (ids, len(kinds)) == (short * (count + 1), len(ids))


async def test_texts_go_on_while_a_long_prompt_is_made_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path)
    entered, opened = threading.Event(), threading.Event()
    encode = Tokenizer.encode

    def held_up(tokenizer: Tokenizer, text: str) -> list[int]:
        if len(text) > LONG_TEXT:
            entered.set()
            assert opened.wait(60)
        return encode(tokenizer, text)

    monkeypatch.setattr(Tokenizer, "encode", held_up)
    async with open_letters(tmp_path) as server:
        errors: list[str] = []

        async def ask() -> None:
            errors.append(await refused(server, asks("a" * 1_000_000)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            assert await trio.to_thread.run_sync(entered.wait, 60)
            (response,) = await whole(server, asks("abc", max_tokens=4))
            assert said(response) == ["abcdefg"]
            assert errors == []
            opened.set()
        (error,) = errors
        assert error.startswith(
            "the prompt has 1000000 tokens and 1 are to follow, which is more than the model's context"
        )


async def test_one_whose_client_leaves_is_not_made_tokens_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path)
    entered, opened = threading.Event(), threading.Event()
    encode, long = Tokenizer.encode, list[str]()

    def held_up(tokenizer: Tokenizer, text: str) -> list[int]:
        if len(text) > LONG_TEXT:
            long.append(text[0])
            entered.set()
            assert opened.wait(60)
        return encode(tokenizer, text)

    monkeypatch.setattr(Tokenizer, "encode", held_up)
    async with open_letters(tmp_path) as server:
        replies = []
        for letter in "ab":
            replies.append(await server.admit(asks(letter * 20_000)))
            assert await trio.to_thread.run_sync(entered.wait, 60)
        (response,) = await whole(server, asks("abc", max_tokens=4))
        assert said(response) == ["abcdefg"]
        for reply in replies:
            reply.cancel()
        opened.set()
        (response,) = await whole(server, asks("abc", max_tokens=4))
        assert said(response) == ["abcdefg"]
        assert len(await refused(server, asks("c" * 20_000))) > 0
        assert long == ["a", "c"]


async def test_what_is_far_too_long_is_not_looked_at(tmp_path: Path) -> None:
    write_model(tmp_path)
    async with open_letters(tmp_path) as server:
        assert await refused(server, asks("a" * 1_048_577)) == (
            "a text has 1048577 characters; expected at most 1048576 for a context of 64 tokens"
        )


async def test_memory_for_one_block_only(tmp_path: Path) -> None:
    """What fits into it is served in turn; what does not is refused."""
    write_model(tmp_path, kv_tokens=4, block_tokens=4, max_running=4)
    async with open_letters(tmp_path) as server:
        texts: list[str] = []

        async def go_on() -> None:
            (response,) = await whole(server, asks("ab", max_tokens=2))
            texts.append(said(response)[0])

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(go_on)
        assert texts == ["abcd"] * 5
        assert "memory" in await refused(server, asks("abc", max_tokens=2))
        (response,) = await whole(server, asks("ab", ignore_eos=True))
        assert said(response) == ["abcd"], "without a limit, as long as there is room"
