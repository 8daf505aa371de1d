"""Encoders of transformers behind a real server, and the clients that users have."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
import tritonclient.grpc as grpcclient
from serve_process import PATIENCE_S, ServeProcess, serve_process
from small_encoders import CLASSIFIERS, ENCODERS, make_tokenizer, random_network, write_encoder

pytestmark = pytest.mark.slow

TEXTS = ["a fox", "by the river", "under the old bridge"]


@pytest.fixture(scope="module")
def networks() -> dict[str, Any]:
    return {
        "vectors": random_network(ENCODERS["bert"]),
        "ranks": random_network(CLASSIFIERS["bert"], num_labels=1),
        "labels": random_network(CLASSIFIERS["roberta"], num_labels=3),
    }


@pytest.fixture(scope="module")
def server(networks: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """Models without a configuration."""
    repository = tmp_path_factory.mktemp("models")
    modules = {"vectors": ("pooling_mode_cls_token", "normalize")}
    for name, network in networks.items():
        write_encoder(repository / name / "1", network, modules=modules.get(name, ()))
    with serve_process(repository, "--openai-on-http=true") as running:
        yield running


@pytest.fixture(scope="module")
def expected(networks: dict[str, Any]) -> np.ndarray:
    import torch

    vectors = []
    for text in TEXTS:
        with torch.no_grad():
            states = networks["vectors"](input_ids=torch.tensor([make_tokenizer().encode(text).ids]))
        vectors.append(torch.nn.functional.normalize(states.last_hidden_state[0, 0], dim=0).numpy())
    return np.array(vectors)


@pytest.fixture
def client(server: ServeProcess) -> Iterator[openai.OpenAI]:
    address = f"http://127.0.0.1:{server.http_port}/v1"
    with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as client:
        yield client


def post(server: ServeProcess, path: str, body: Any) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=PATIENCE_S)
    try:
        connection.request("POST", path, json.dumps(body))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_the_openai_package_gets_embeddings(client: openai.OpenAI, expected: np.ndarray) -> None:
    """As numbers and in base64, of strings and of tokens, with the tokens counted."""
    tokens: Any = [make_tokenizer().encode(text).ids for text in TEXTS]
    for texts in (TEXTS, tokens):
        answer = client.embeddings.create(model="vectors", input=texts)
        found = np.array([each.embedding for each in answer.data])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        assert answer.usage.prompt_tokens == sum(map(len, tokens))
        assert [each.index for each in answer.data] == [0, 1, 2]
    answer = client.embeddings.create(model="vectors", input=tokens[0], encoding_format="float")
    np.testing.assert_allclose(answer.data[0].embedding, expected[0], rtol=1e-4, atol=1e-5)
    with pytest.raises(openai.BadRequestError, match="a text has 102 tokens; expected at most 64"):
        client.embeddings.create(model="vectors", input=["a", "a" * 100])
    with pytest.raises(openai.BadRequestError, match="token 999 in a text; expected 0 to 32"):
        client.embeddings.create(model="vectors", input=[999])
    assert [model.id for model in client.models.list()] == ["ranks", "vectors"]


def test_vectors_are_shortened(client: openai.OpenAI, expected: np.ndarray) -> None:
    """To the dimensions that are asked for, and to the length 1."""
    for form in ({}, {"encoding_format": "float"}):
        answer = client.embeddings.create(model="vectors", input=TEXTS, dimensions=5, **form)  # type: ignore[arg-type]
        found = np.array([each.embedding for each in answer.data])
        shortened = expected[:, :5] / np.linalg.norm(expected[:, :5], axis=1, keepdims=True)
        np.testing.assert_allclose(found, shortened, rtol=1e-4, atol=1e-5)
    answer = client.embeddings.create(model="vectors", input=TEXTS[0], dimensions=32)
    np.testing.assert_allclose(answer.data[0].embedding, expected[0], rtol=1e-4, atol=1e-5)
    for wrong in (0, 33):
        with pytest.raises(openai.BadRequestError, match="'dimensions'") as caught:
            client.embeddings.create(model="vectors", input=TEXTS, dimensions=wrong)
        assert caught.value.param == "dimensions"


def test_raw_http_gets_base64(server: ServeProcess, expected: np.ndarray) -> None:
    status, answer = post(
        server, "/v1/embeddings", {"model": "vectors", "input": TEXTS[0], "encoding_format": "base64"}
    )
    assert status == 200
    found = np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), "<f4")
    np.testing.assert_allclose(found, expected[0], rtol=1e-4, atol=1e-5)


def test_documents_are_ranked(server: ServeProcess, networks: dict[str, Any]) -> None:
    import torch

    scores = []
    for text in TEXTS:
        row = make_tokenizer().encode("where", text)
        with torch.no_grad():
            answer = networks["ranks"](
                input_ids=torch.tensor([row.ids]), token_type_ids=torch.tensor([row.type_ids])
            ).logits
        scores.append(answer.sigmoid().item())
    order = sorted(range(3), key=lambda place: -scores[place])
    status, answer = post(server, "/v1/rerank", {"model": "ranks", "query": "where", "documents": TEXTS})
    assert status == 200
    assert [each["index"] for each in answer["results"]] == order
    assert [each["relevance_score"] for each in answer["results"]] == pytest.approx([scores[place] for place in order])
    assert [each["document"]["text"] for each in answer["results"]] == [TEXTS[place] for place in order]
    assert answer["usage"]["total_tokens"] == sum(len(make_tokenizer().encode("where", text).ids) for text in TEXTS)
    body = {"model": "ranks", "query": "where", "documents": TEXTS, "top_n": 1, "return_documents": False}
    status, answer = post(server, "/v1/rerank", body)
    assert [list(each) for each in answer["results"]] == [["index", "relevance_score"]]
    status, answer = post(server, "/v1/rerank", {"model": "vectors", "query": "where", "documents": TEXTS})
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


def test_tritonclient_gets_scores_and_labels(server: ServeProcess, networks: dict[str, Any]) -> None:
    import torch

    texts = grpcclient.InferInput("text_input", [3, 1], "BYTES")
    texts.set_data_from_numpy(np.array([[text.encode()] for text in TEXTS], object))
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        answer: Any = client.infer("labels", [texts])
    rows = [make_tokenizer().encode(text).ids for text in TEXTS]
    with torch.no_grad():
        logits = torch.stack([networks["labels"](input_ids=torch.tensor([row])).logits[0] for row in rows])
    np.testing.assert_allclose(answer.as_numpy("scores"), logits.softmax(-1), rtol=1e-4, atol=1e-5)
    labels = [label.decode() for (label,) in answer.as_numpy("label").tolist()]
    assert labels == [f"LABEL_{place}" for place in logits.argmax(dim=-1).tolist()]


def test_generate_answers_too(server: ServeProcess, expected: np.ndarray) -> None:
    status, answer = server.ask("POST", "/v2/models/vectors/generate", {"text_input": TEXTS[0]})
    assert status == 200
    np.testing.assert_allclose(answer["embedding"], expected[0], rtol=1e-4, atol=1e-5)
    assert answer["num_tokens"] == len(make_tokenizer().encode(TEXTS[0]).ids)
