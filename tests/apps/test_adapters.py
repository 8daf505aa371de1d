"""What other libraries have trained, served in one line."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import trireme
from trireme import FP32, DeclarationError
from trireme.apps.config_text import config_text
from trireme.apps.declared.declaration import declaration_of

X, Y = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[Y]


def configuration(adapted: Any) -> str:
    found = declaration_of(adapted)
    assert found is not None
    return config_text(found)


def test_estimators_of_scikit_learn() -> None:
    classifier = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, NAMES)
    regression = LinearRegression().fit(X[:, :3], X[:, 3])
    several = LinearRegression().fit(X[:, :2], X[:, 2:])
    texts = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(["good day", "bad night"], [1, 0])
    models = [
        trireme.adapt(classifier, name="iris", max_batch_size=8, queue_delay="1ms"),
        trireme.adapt(regression, name="width", element=FP32),
        trireme.adapt(several, name="petals"),
        trireme.adapt(PCA(2).fit(X), name="two"),
        trireme.adapt(texts, name="mood"),
    ]
    assert "max_queue_delay_microseconds: 1000" in configuration(models[0])
    assert 'input { name: "features" data_type: TYPE_FP32 dims: [ 3 ] }' in configuration(models[1])
    with trireme.Server(models=models) as server:
        answer = server.model("iris")(features=X[::50])
        assert [each.decode() for each in answer["label"].ravel()] == classifier.predict(X[::50]).tolist()
        np.testing.assert_array_equal(answer["probabilities"], classifier.predict_proba(X[::50]))
        answer = server.model("width")(features=X[:5, :3].astype(np.float32))
        np.testing.assert_allclose(answer["prediction"].ravel(), regression.predict(X[:5, :3]), rtol=1e-5)
        np.testing.assert_array_equal(
            server.model("petals")(features=X[:5, :2])["prediction"], several.predict(X[:5, :2])
        )
        assert server.model("two")(features=X[:5])["transformed"].shape == (5, 2)
        answer = server.model("mood")(text=[["a bad day"], ["a good night"]])
        assert answer["label"].tolist() == texts.predict(["a bad day", "a good night"]).reshape(-1, 1).tolist()


def test_what_cannot_be_adapted_is_told() -> None:
    with pytest.raises(DeclarationError, match=r"builtins\.dict cannot be adapted: it is no scikit-learn estimator"):
        trireme.adapt({})
    with pytest.raises(DeclarationError, match=r"model 'PCA': PCA cannot answer a row of .*\n  fit it first"):
        trireme.adapt(PCA(2))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("xgboost") is None, reason="xgboost is not installed")
def test_xgboost() -> None:
    import xgboost  # pyright: ignore[reportMissingImports]

    classifier = xgboost.XGBClassifier(n_estimators=3).fit(X, Y)
    booster = classifier.get_booster()
    models = [trireme.adapt(classifier, name="iris"), trireme.adapt(booster, name="booster", element=FP32)]
    with trireme.Server(models=models) as server:
        answer = server.model("iris")(features=X[::50])
        assert answer["label"].ravel().tolist() == classifier.predict(X[::50]).tolist()
        np.testing.assert_allclose(answer["probabilities"], classifier.predict_proba(X[::50]), rtol=1e-6)
        answer = server.model("booster")(features=X[::50].astype(np.float32))
        np.testing.assert_allclose(answer["prediction"], booster.predict(xgboost.DMatrix(X[::50])), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("lightgbm") is None, reason="lightgbm is not installed")
def test_lightgbm() -> None:
    import lightgbm  # pyright: ignore[reportMissingImports]

    regressor = lightgbm.LGBMRegressor(n_estimators=3, verbose=-1).fit(X[:, :3], X[:, 3])
    models = [trireme.adapt(regressor, name="width"), trireme.adapt(regressor.booster_, name="booster")]
    with trireme.Server(models=models) as server:
        for name in ("width", "booster"):
            answer = server.model(name)(features=X[:5, :3])
            expected: Any = regressor.predict(X[:5, :3])
            np.testing.assert_allclose(answer["prediction"].ravel(), expected, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_pipelines_of_hugging_face(tmp_path: Any) -> None:
    """A tiny model with random weights, made here."""
    import torch
    import transformers

    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *"abcdefghijklmnopqrstuvwxyz",
        *(f"##{c}" for c in "abcdefgh"),
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tokenizer = transformers.BertTokenizer(str(tmp_path / "vocab.txt"))
    torch.manual_seed(1)
    size: dict[str, Any] = {
        "num_labels": 3,
        "vocab_size": len(words),
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    config = transformers.BertConfig(**size, intermediate_size=16)
    classifier = transformers.BertForSequenceClassification(config).eval()
    mood = transformers.pipeline("text-classification", model=classifier, tokenizer=tokenizer, device="cpu")
    tokens = transformers.pipeline("feature-extraction", model=classifier, tokenizer=tokenizer, device="cpu")
    with trireme.Server(models=[trireme.adapt(mood, name="mood"), trireme.adapt(tokens)]) as server:
        answer = server.model("mood")(text=[["a good day"], ["bad"]])
        expected = mood(["a good day", "bad"])
        assert [each.decode() for each in answer["label"].ravel()] == [each["label"] for each in expected]
        np.testing.assert_allclose(answer["score"].ravel(), [each["score"] for each in expected], rtol=1e-5)
        (said,) = server.model("feature_extraction")(text=[["a day"]])["answer"].ravel()
        np.testing.assert_allclose(json.loads(said), tokens(["a day"])[0], rtol=1e-5)
