"""What OpenAI's clients can ask of a network that is computed here: each thing that a request says, and what is said of
what cannot be (docs/openai.md, docs/generation.md)."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from counting_network import ALPHABET
from serve_process import PATIENCE_S, ServeProcess, serve_process
from small_encoders import CONTEXT, ENCODERS, random_network, write_encoder
from small_llama import NEW, PROMPT, write_adapter, write_llama

pytestmark = pytest.mark.slow

CHAT: Any = [{"role": "user", "content": PROMPT}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServeProcess, str]]:
    repository = tmp_path_factory.mktemp("models")
    text = write_llama(repository / "writer" / "1")
    (repository / "writer" / "config.pbtxt").write_text('backend: "generation"\n')
    for number, name in enumerate(("pirate", "lawyer")):
        write_adapter(repository / "writer" / "1" / "adapters" / name, number)
    write_encoder(repository / "vectors" / "1", random_network(ENCODERS["bert"]))
    with serve_process(repository, "--openai-on-http=true", "--front-ends=1") as server:
        yield server, text.removeprefix(PROMPT)


@pytest.fixture
def client(served: tuple[ServeProcess, str]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"http://127.0.0.1:{served[0].http_port}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S
    ) as client:
        yield client


def completed(client: openai.OpenAI, **asked: Any) -> str:
    asked = {"model": "writer", "prompt": PROMPT, "max_tokens": NEW, "temperature": 0} | asked
    return client.completions.create(**asked).choices[0].text


def test_prompts_may_be_tokens(client: openai.OpenAI, served: tuple[ServeProcess, str]) -> None:
    tokens = [ALPHABET.index({" ": "Ġ"}.get(letter, letter)) for letter in PROMPT]
    assert completed(client, prompt=tokens) == served[1]
    answer = client.completions.create(model="writer", prompt=[tokens, tokens[:4]], max_tokens=NEW, temperature=0)
    assert [choice.text for choice in answer.choices] == [served[1], completed(client, prompt=PROMPT[:4])]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(tokens) + 4
    with pytest.raises(openai.BadRequestError, match=r"token 5000 in the prompt; expected 0 to") as caught:
        completed(client, prompt=[5000])
    assert caught.value.param == "prompt"


def test_a_seed_gives_the_same_text_whatever_else_is_computed(served: tuple[ServeProcess, str]) -> None:
    url = f"http://127.0.0.1:{served[0].http_port}/v1"
    asked: dict[str, Any] = {"model": "writer", "max_tokens": 30, "temperature": 1.5}

    async def all_texts() -> tuple[str, list[str], list[str]]:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", timeout=PATIENCE_S) as client:

            async def text(prompt: str, seed: int) -> str:
                stream = await client.completions.create(prompt=prompt, seed=seed, stream=True, **asked)
                return "".join([piece.choices[0].text async for piece in stream])

            alone = await text(PROMPT, 7)
            others = [text(PROMPT[: 1 + number % 9], number) for number in range(20)]
            among = await asyncio.gather(*others, *[text(PROMPT, 7) for _ in range(3)])
            return alone, among[-3:], among[:-3]

    alone, same, others = asyncio.run(all_texts())
    assert same == [alone] * 3
    assert len({alone, *others}) == 21


def test_adapters_are_models_whose_texts_are_their_own(client: openai.OpenAI, served: tuple[ServeProcess, str]) -> None:
    """They are what the model gives for `lora_name`."""
    given = {"max_tokens": NEW, "temperature": 0}
    texts = {"writer": completed(client)}
    for name in ("pirate", "lawyer"):
        body = {"text_input": PROMPT, "sampling_parameters": json.dumps({**given, "lora_name": name})}
        status, answer = served[0].ask("POST", "/v2/models/writer/generate", body)
        assert status == 200
        texts[name] = answer["text_output"].removeprefix(PROMPT)
        assert completed(client, model=name) == completed(client, model=f"writer:{name}") == texts[name]
        stream = client.chat.completions.create(model=name, messages=CHAT, stream=True, **given)  # type: ignore[call-overload]
        assert "".join(piece.choices[0].delta.content or "" for piece in stream) == texts[name]
    assert len(set(texts.values())) == 3
    with pytest.raises(openai.NotFoundError) as caught:
        completed(client, model="writer:cook")
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


def test_a_bias_decides(client: openai.OpenAI) -> None:
    token = ALPHABET.index("q")
    assert completed(client, logit_bias={str(token): 100}, max_tokens=4) == "qqqq"
    with pytest.raises(openai.BadRequestError, match="a logit bias for token 5000; expected 0 to") as caught:
        completed(client, logit_bias={"5000": 1})
    assert (caught.value.param, caught.value.code) == ("logit_bias", "invalid_value")


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_of_several_tokens(client: openai.OpenAI, served: tuple[ServeProcess, str], stream: bool) -> None:
    """Each byte is a token."""
    pairs = (served[1][at : at + 2] for at in range(4, len(served[1])))
    stop = next(pair for pair in pairs if pair.isascii())
    before = served[1][: served[1].index(stop)]
    asked: dict[str, Any] = {"model": "writer", "prompt": PROMPT, "max_tokens": NEW, "temperature": 0, "stop": stop}
    answer: Any = client.completions.create(**asked, stream=stream)
    pieces = list(answer) if stream else [answer]
    assert "".join(piece.choices[0].text for piece in pieces) == before
    assert pieces[-1].choices[0].finish_reason == "stop"


def test_log_probabilities_and_choices(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "writer", "messages": CHAT, "max_tokens": 3}
    answer = client.chat.completions.create(**asked, temperature=0, logprobs=True, top_logprobs=4)
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert len(found.content) == 3
    for token in found.content:
        assert len(token.top_logprobs) == 4
        assert token.top_logprobs[0].logprob == token.logprob == max(each.logprob for each in token.top_logprobs)
        assert sum(math.exp(each.logprob) for each in token.top_logprobs) < 1
    several = client.chat.completions.create(**asked, temperature=1.5, n=8, seed=1)
    assert len({choice.message.content for choice in several.choices}) > 1
    again = client.chat.completions.create(**asked, temperature=1.5, n=8, seed=1)
    assert [choice.message.content for choice in again.choices] == [each.message.content for each in several.choices]


def test_a_stream_ends_with_its_usage(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    *pieces, last = client.chat.completions.create(
        model="writer", messages=CHAT, max_tokens=5, stream=True, stream_options=options
    )
    assert all(piece.usage is None for piece in pieces)
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.choices) == (len(PROMPT), 5, [])


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_longer_than_the_context_has_the_code_that_clients_know(client: openai.OpenAI, stream: bool) -> None:
    """They cut their messages, and try again."""
    long = "a" * 200
    messages: Any = [{"role": "user", "content": long}]
    with pytest.raises(openai.BadRequestError, match="more than the model's context of 128") as caught:
        client.chat.completions.create(model="writer", messages=messages, stream=stream)
    assert (caught.value.param, caught.value.code) == ("messages", "context_length_exceeded")
    for asked in ({"prompt": long}, {"prompt": "a" * 2_000_000}, {"prompt": "a", "max_tokens": 1000}):
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model="writer", stream=stream, **asked)  # type: ignore[call-overload]
        assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")


def test_so_has_an_embedding_of_such_a_text(client: openai.OpenAI) -> None:
    texts = ("a" * (CONTEXT + 1), "a" * 2_000_000)
    for text in (*texts, [5] * (CONTEXT + 1)):
        with pytest.raises(openai.BadRequestError, match="expected at most") as caught:
            client.embeddings.create(model="vectors", input=text)
        assert (caught.value.param, caught.value.code) == ("input", "context_length_exceeded")


def test_an_empty_prompt_is_named(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="expected 1 or more of both") as caught:
        completed(client, prompt="")
    assert (caught.value.param, caught.value.code) == ("prompt", "invalid_value")
