"""Encoders behind a server: what they answer, to whom, and when."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from python_models import until
from served_encoders import LookedAtNetwork, answer, asks, asks_tokens, open_encoders, parameter, values, write_model
from small_encoders import (
    ALPHABET,
    BEGIN,
    CLASSIFIERS,
    CONTEXT,
    ENCODERS,
    SEPARATE,
    UNKNOWN,
    make_tokenizer,
    random_network,
    write_encoder,
)

from trireme.actors import InferenceServer
from trireme.engine.errors import (
    CancelledError,
    InternalError,
    InvalidArgumentError,
    TriremeError,
    UnavailableError,
)
from trireme.engine.metrics.encoding import encoding_families
from trireme.engine.metrics.page import write_text
from trireme.engine.request import InferenceRequest


@pytest.fixture(scope="module")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, ENCODERS["bert"])
    return repository


async def test_a_text_becomes_a_vector(embedding: Path) -> None:
    async with open_encoders(embedding) as server:
        config = server.describe("letters").config
        assert (config.backend, config.max_batch_size, config.decoupled) == ("generation", 128, False)
        response = await answer(server, asks("a fox", "by the river"))
        assert values(response).shape == (2, 32)
        assert values(response, "num_tokens").tolist() == [[7], [14]]
        assert [tensor.name for tensor in response.outputs] == ["num_tokens", "embedding"]
        (one,) = (await answer(server, asks("a fox", requested_outputs=("embedding",)))).outputs
        np.testing.assert_allclose(one.array[0], values(response)[0], rtol=1e-4, atol=1e-5)


async def test_tokens_are_taken_as_they_are(embedding: Path) -> None:
    tokens = make_tokenizer().encode("a fox").ids
    assert (tokens[0], tokens[-1]) == (BEGIN, SEPARATE)
    async with open_encoders(embedding) as server:
        expected = values(await answer(server, asks("a fox")))
        found = values(await answer(server, asks_tokens(input_ids=[tokens])))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        padded = asks_tokens(
            input_ids=[[*tokens, 0, 0], [BEGIN, 9, 9, 9, 9, 9, 9, 9, SEPARATE]],
            attention_mask=[[1] * len(tokens) + [0, 0], [1] * 9],
        )
        response = await answer(server, padded)
        np.testing.assert_allclose(values(response)[:1], expected, rtol=1e-4, atol=1e-5)
        assert values(response, "num_tokens").tolist() == [[7], [9]]


async def test_without_a_batch_dimension_a_request_has_one_text(tmp_path: Path) -> None:
    config = (
        'input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }\n'
        'output { name: "embedding" data_type: TYPE_FP32 dims: [ 32 ] }'
    )
    write_model(tmp_path, ENCODERS["bert"], config)
    async with open_encoders(tmp_path) as server:
        response = await answer(server, asks("a fox", batched=False))
        assert values(response).shape == (32,)


async def test_a_classifier_gives_scores_and_a_label(tmp_path: Path) -> None:
    names = ["good", "bad", "ugly"]
    write_model(tmp_path, CLASSIFIERS["distilbert"], id2label=dict(enumerate(names)), num_labels=3)
    async with open_encoders(tmp_path) as server:
        response = await answer(server, asks("a fox", "by the river", "z"))
        scores = values(response, "scores")
        assert scores.shape == (3, 3)
        np.testing.assert_allclose(scores.sum(axis=1), 1, rtol=1e-5)
        labels = [label.decode() for (label,) in values(response, "label").tolist()]
        assert labels == [names[place] for place in scores.argmax(axis=1)]


async def test_a_pair_gets_a_score(tmp_path: Path) -> None:
    write_model(tmp_path, CLASSIFIERS["bert"], num_labels=1)
    async with open_encoders(tmp_path) as server:
        response = await answer(server, asks("a fox", "a fox", pairs=("by the river", "in a house")))
        scores = values(response, "score")
        assert scores.shape == (2, 1)
        assert scores[0] != pytest.approx(scores[1])
        assert values(response, "num_tokens").tolist() == [[20], [18]]


async def test_requests_that_come_meanwhile_share_the_next_step(embedding: Path) -> None:
    """Within the budget of tokens; each gets its own vector."""
    entered, opened = threading.Event(), threading.Event()

    def hold_up(_texts: object) -> None:
        entered.set()
        assert opened.wait(60)

    texts = ["a", "a fox", "by the river", "under the old bridge", "in a hollow tree", "z"]
    async with open_encoders(embedding) as server:
        expected = [values(await answer(server, asks(text)))[0] for text in texts]
        LookedAtNetwork.steps = ()
        LookedAtNetwork.before = staticmethod(hold_up)
        found: dict[str, np.ndarray] = {}

        async def ask(text: str) -> None:
            found[text] = values(await answer(server, asks(text)))[0]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, texts[0])
            assert await trio.to_thread.run_sync(entered.wait, 60)
            for text in texts[1:]:
                nursery.start_soon(ask, text)
            await until(lambda: server.model_statistics()[0].inflight == len(texts))
            opened.set()
        assert [len(step) for step in LookedAtNetwork.steps] == [1, 5]
        np.testing.assert_allclose([found[text] for text in texts], expected, rtol=1e-4, atol=1e-5)


async def test_no_step_has_more_tokens_than_it_may(tmp_path: Path) -> None:
    write_model(tmp_path, ENCODERS["bert"], parameter("max_tokens_per_step", 40))
    async with open_encoders(tmp_path) as server:
        texts = ["a" * (number % 30) for number in range(50)]
        response = await answer(server, asks(*texts))
        steps = [sum(len(text.ids) for text in step) for step in LookedAtNetwork.steps]
        assert max(steps) <= 40
        assert len(steps) < 30
        assert values(response, "num_tokens").ravel().tolist() == [len(text) + 2 for text in texts]
        expected = values(await answer(server, asks(texts[29])))
        np.testing.assert_allclose(values(response)[29:30], expected, rtol=1e-4, atol=1e-5)


async def test_long_texts_are_refused_or_cut(tmp_path: Path) -> None:
    write_model(tmp_path, ENCODERS["bert"])
    async with open_encoders(tmp_path) as server:
        with pytest.raises(InvalidArgumentError, match="a text has 102 tokens; expected at most 64, or the parameter"):
            await answer(server, asks("a" * 100))
        response = await answer(server, asks("a" * 100, "b", parameters={"truncate": True}))
        assert values(response, "num_tokens").tolist() == [[CONTEXT], [3]]
        expected = values(await answer(server, asks("a" * (CONTEXT - 2))))
        np.testing.assert_allclose(values(response)[:1], expected, rtol=1e-4, atol=1e-5)
        with pytest.raises(InvalidArgumentError, match="parameter 'truncate' is 1; expected true or false"):
            await answer(server, asks("a", parameters={"truncate": 1}))
    (tmp_path / "letters" / "config.pbtxt").write_text(f'backend: "generation"\n{parameter("truncate", "true")}\n')
    async with open_encoders(tmp_path) as server:
        response = await answer(server, asks("a" * 100))
        assert values(response, "num_tokens").tolist() == [[CONTEXT]]
        with pytest.raises(InvalidArgumentError, match="a text has 102 tokens"):
            await answer(server, asks("a" * 100, parameters={"truncate": False}))


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (InferenceRequest("letters"), "expected one of 'text_input' and 'input_ids', got none"),
        (asks_tokens(input_ids=[[1, 999]]), "token 999 in a text; expected 0 to 32"),
        (asks_tokens(input_ids=[[-1]]), "token -1 in a text; expected 0 to 32"),
        (asks_tokens(input_ids=[[5] * 65]), "a text has 65 tokens; expected at most 64"),
        (asks_tokens(input_ids=[[5, 6]], attention_mask=[[0, 0]]), "a text has no tokens; expected 1 or more"),
        (
            asks_tokens(input_ids=[[5, 6]], attention_mask=[[0, 1]]),
            "'attention_mask' has ones behind zeros; expected padding at the end only",
        ),
        (
            asks_tokens(input_ids=[[5, 6]], attention_mask=[[1]]),
            r"'attention_mask' has the shape [1, 1]; expected that of 'input_ids', [1, 2]",
        ),
        (asks_tokens(input_ids=[[5, 6]], token_type_ids=[[0, 2]]), "'token_type_ids' has other values than 0 and 1"),
        (asks(pairs=("a",)), "expected one of 'text_input' and 'input_ids', got none"),
        (asks_tokens(attention_mask=[[1]]), "expected one of 'text_input' and 'input_ids', got none"),
    ],
)
async def test_a_wrong_request_is_refused_with_its_reason_and_alone(
    embedding: Path, request_: InferenceRequest, why: str
) -> None:
    async with open_encoders(embedding) as server:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(answer, server, asks("a fox"))
            with pytest.raises(InvalidArgumentError) as caught:
                await answer(server, request_)
        assert caught.value.message.startswith(why)


async def test_what_is_no_text_is_refused(embedding: Path) -> None:
    async with open_encoders(embedding) as server:
        request = asks("a")
        request.inputs[0].array[0, 0] = b"\xff"
        with pytest.raises(InvalidArgumentError, match="'text_input' is not UTF-8: invalid start byte at byte 0"):
            await answer(server, request)


async def test_results_that_are_no_numbers_cost_their_request_alone(tmp_path: Path) -> None:
    network = random_network(ENCODERS["bert"])
    network.embeddings.word_embeddings.weight.data[UNKNOWN] = float("nan")
    write_encoder(tmp_path / "letters" / "1", network)
    async with open_encoders(tmp_path) as server:
        failures: list[str] = []

        async def fail() -> None:
            with pytest.raises(InternalError) as caught:
                await answer(server, asks("a", "ü"))
            failures.append(caught.value.message)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            assert np.isfinite(values(await answer(server, asks("a fox")))).all()
        assert failures == ["the model's result is not numbers (NaN or infinite)"]


async def test_a_step_that_fails_costs_the_requests_in_it_and_no_later_ones(embedding: Path) -> None:
    def fail(_texts: object) -> None:
        raise InternalError("a step of 3 tokens failed: out of memory")

    async with open_encoders(embedding) as server:
        for error in (
            InternalError("a step of 3 tokens failed: out of memory"),
            ValueError("a step of 3 tokens failed"),
        ):
            LookedAtNetwork.before = staticmethod(lambda _texts, error=error: (_ for _ in ()).throw(error))
            with pytest.raises(InternalError, match="a step of 3 tokens failed"):
                await answer(server, asks("a"))
        LookedAtNetwork.before = staticmethod(lambda _texts: None)
        assert values(await answer(server, asks("a"))).shape == (1, 32)


class Held:
    """A model whose step is under way, with a request in it, until it is let go."""

    def __init__(self, server: InferenceServer, nursery: trio.Nursery) -> None:
        self.server = server
        self.outcomes: dict[str, Any] = {}
        self._nursery = nursery
        self._entered, self._opened = threading.Event(), threading.Event()
        LookedAtNetwork.before = staticmethod(self._hold_up)

    def _hold_up(self, _texts: object) -> None:
        self._entered.set()
        assert self._opened.wait(60)

    async def ask(self, name: str, request: InferenceRequest) -> None:
        async def run() -> None:
            try:
                self.outcomes[name] = await answer(self.server, request)
            except TriremeError as error:
                self.outcomes[name] = error

        before = self.server.model_statistics()[0].inflight
        self._nursery.start_soon(run)
        await until(lambda: self.server.model_statistics()[0].inflight > before or name in self.outcomes)

    async def until_entered(self) -> None:
        assert await trio.to_thread.run_sync(self._entered.wait, 60)

    def let_go(self) -> None:
        self._opened.set()


PRIORITIES = "dynamic_batching { priority_levels: 2 default_priority_level: 2 %s }"


async def test_lower_levels_go_first(tmp_path: Path) -> None:
    write_model(tmp_path, ENCODERS["bert"], PRIORITIES % "" + parameter("max_tokens_per_step", 10))
    async with open_encoders(tmp_path) as server, trio.open_nursery() as nursery:
        held = Held(server, nursery)
        await held.ask("first", asks("a"))
        await held.until_entered()
        for number in range(3):
            await held.ask(f"late {number}", asks("b" * 7, priority=2))
        await held.ask("early", asks("c" * 7, priority=1))
        held.let_go()
        await until(lambda: len(held.outcomes) == 5)
        order = [ALPHABET[step[0].ids[1]] for step in LookedAtNetwork.steps]
        assert order == ["a", "c", "b", "b", "b"]


async def test_who_is_too_late_is_refused(tmp_path: Path) -> None:
    queue = "default_queue_policy { default_timeout_microseconds: 3600000000 allow_timeout_override: true }"
    write_model(tmp_path, ENCODERS["bert"], f"dynamic_batching {{ {queue} }}")
    async with open_encoders(tmp_path) as server, trio.open_nursery() as nursery:
        held = Held(server, nursery)
        await held.ask("first", asks("a"))
        await held.until_entered()
        await held.ask("late", asks("b", timeout_us=1000))
        deadline_s = trio.current_time() + 0.001
        await until(lambda: trio.current_time() > deadline_s)
        held.let_go()
        await until(lambda: len(held.outcomes) == 2)
        assert isinstance(held.outcomes["late"], UnavailableError)
        assert held.outcomes["late"].message == "Request timeout expired"
        assert held.outcomes["first"].outputs
        assert len(LookedAtNetwork.steps) == 1


async def test_who_leaves_is_not_computed(embedding: Path) -> None:
    async with open_encoders(embedding) as server, trio.open_nursery() as nursery:
        held = Held(server, nursery)
        await held.ask("first", asks("a"))
        await held.until_entered()
        reply = await server.admit(asks("b", "c"))
        reply.cancel()
        await held.ask("last", asks("d"))
        held.let_go()
        await until(lambda: len(held.outcomes) == 2)
        with pytest.raises(CancelledError):
            async for _ in reply.responses():
                pass
        assert [len(step) for step in LookedAtNetwork.steps] == [1, 1]
        await until(lambda: not server.model_statistics()[0].inflight)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("model_transaction_policy { decoupled: true }", "model_transaction_policy.decoupled is true; expected false"),
        (
            "output { name: 'score' data_type: TYPE_FP32 dims: 1 }",
            "output 'score' of type FP32; expected some of embedding (FP32), num_tokens (UINT32)",
        ),
        (parameter("pooling", "middle"), "parameter 'pooling' is middle; expected some of cls, max, mean, last"),
        (parameter("max_running", 0), "parameter 'max_running' is 0; expected 1 or more"),
        (parameter("dtype", "int8"), "parameter 'dtype' is int8; expected one of auto, float32, bfloat16, float16"),
        (parameter("truncate", "often"), "failed to convert 'often' to boolean"),
    ],
)
async def test_a_model_that_cannot_be_is_not_loaded(tmp_path: Path, lines: str, why: str) -> None:
    write_model(tmp_path, ENCODERS["bert"], lines)
    async with open_encoders(tmp_path, exit_on_error=False) as server:
        (row,) = server.repository_index()
        assert why in row.reason


async def test_an_architecture_for_something_else_is_not_loaded(tmp_path: Path) -> None:
    write_model(tmp_path, ENCODERS["bert"])
    path = tmp_path / "letters" / "1" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": ["BertForQuestionAnswering"]}))
    async with open_encoders(tmp_path, exit_on_error=False) as server:
        (row,) = server.repository_index()
        assert "its architecture is BertForQuestionAnswering; expected one that ends with" in row.reason


async def test_parameters_go_before_files(tmp_path: Path) -> None:
    write_model(tmp_path, ENCODERS["bert"], parameter("pooling", "cls,mean") + parameter("normalize", "true"))
    async with open_encoders(tmp_path) as server:
        found = values(await answer(server, asks("a fox")))
        assert found.shape == (1, 64)
        assert np.linalg.norm(found) == pytest.approx(1)


@pytest.mark.parametrize(("lines", "dtype"), [("", "auto"), (parameter("dtype", "bfloat16"), "bfloat16")])
async def test_the_network_is_told_its_type(tmp_path: Path, lines: str, dtype: str) -> None:
    write_model(tmp_path, ENCODERS["bert"], lines)
    async with open_encoders(tmp_path):
        assert LookedAtNetwork.dtype == dtype


async def test_without_a_tokenizer_there_are_tokens(tmp_path: Path) -> None:
    write_model(tmp_path, ENCODERS["bert"])
    (tmp_path / "letters" / "1" / "tokenizer.json").unlink()
    async with open_encoders(tmp_path) as server:
        assert values(await answer(server, asks_tokens(input_ids=[[5, 6]]))).shape == (1, 32)
        with pytest.raises(InvalidArgumentError, match=r"the model has no tokenizer .*; send 'input_ids'"):
            await answer(server, asks("a"))


async def test_a_full_step_is_computed_before_it_is_ready(tmp_path: Path) -> None:
    write_model(tmp_path, ENCODERS["bert"], parameter("max_tokens_per_step", 2 * CONTEXT + 1))
    async with open_encoders(tmp_path):
        (step,) = LookedAtNetwork.first_steps
        assert [len(text.ids) for text in step] == [CONTEXT, CONTEXT]


async def test_its_configuration_says_what_is_computed_before(tmp_path: Path) -> None:
    write_model(tmp_path, ENCODERS["bert"], parameter("warm_up", 0))
    async with open_encoders(tmp_path):
        assert LookedAtNetwork.first_steps == ()
    warm_up = """
        model_warmup {
          name: "one" batch_size: 2
          inputs { key: "input_ids" value { data_type: TYPE_INT64 dims: 7 zero_data: true } }
        }
    """
    write_model(tmp_path, ENCODERS["bert"], warm_up)
    async with open_encoders(tmp_path):
        assert [[len(text.ids) for text in step] for step in LookedAtNetwork.first_steps] == [[7, 7]]


async def test_steps_and_waits_are_counted(embedding: Path) -> None:
    entered, opened = threading.Event(), threading.Event()

    def hold_up(_texts: object) -> None:
        entered.set()
        assert opened.wait(60)

    async with open_encoders(embedding) as server:
        (entry,) = server.statistics()
        encoded = entry.statistics.encoded
        assert encoded is not None
        await answer(server, asks("a fox", "by the river"))
        assert (encoded.texts, encoded.step_tokens.total) == (2, 7 + 14)
        assert encoded.wait.buckets()[-1][1] == 1, "a request has several texts"
        LookedAtNetwork.before = staticmethod(hold_up)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer, server, asks("a"))
            assert await trio.to_thread.run_sync(entered.wait, 60)
            nursery.start_soon(answer, server, asks("b", "c"))
            await until(lambda: server.model_statistics()[0].inflight == 2)
            page = write_text(encoding_families(server.statistics()))
            opened.set()
        labels = '{model="letters",version="1"}'
        assert f"trireme_encoding_running{labels} 1\n" in page
        assert f"trireme_encoding_texts_total{labels} 3\n" in page
        assert f"trireme_encoding_step_tokens_count{labels} 2\n" in page
        assert encoded.texts == 5
    assert encoded.instances == {}
