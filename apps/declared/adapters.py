"""`adapt`: models of what other libraries have trained, in one line. No library is imported for it but what the object
itself needs.

    classify = trireme.adapt(joblib.load("iris.joblib"), name="iris")

What the outputs are is found out by asking the object once, for a row of zeros or an empty text.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .declaration import MARK
from .errors import DeclarationError, Problem, calling_place
from .model import declare
from .types import BYTES, FP64, UINT8, ElementType, TensorType, element_type_of

__trireme_hides_frames__ = True

_BATCH = 256
Predict = Callable[[Any], Mapping[str, Any]]
"""From the rows of all requests to outputs by name."""


class Adapted:
    """An object that can be called as a function with annotations can, and is a model.

    Attributes:
        target: what was adapted.
    """

    def __init__(self, target: Any, convert: Callable[[np.ndarray], Any], predict: Predict) -> None:
        self.target, self._convert, self._predict = target, convert, predict

    def __call__(self, **inputs: np.ndarray) -> Mapping[str, Any]:
        """The outputs for the rows of the one input."""
        (rows,) = inputs.values()
        return self._predict(self._convert(rows))


def adapt(
    target: Any, *, name: str = "", element: ElementType = FP64, max_batch_size: int = _BATCH, **options: Any
) -> Adapted:
    """A model of a scikit-learn estimator or pipeline, an XGBoost or LightGBM model (their estimators as well as a
    Booster), or a Hugging Face `pipeline`. The model has one input, ``features`` (numbers), ``text`` or ``image``, and
    the outputs are, by what the object can do, ``label`` and ``probabilities``; ``prediction``; ``transformed``;
    ``label`` and ``score``; ``text``; or ``answer``, which is JSON.

    Args:
        name: of the model; default is that of the object's class, or the pipeline's task.
        element: data type of an input of numbers.
        options: see `model`.

    Raises:
        DeclarationError: it is none of these, or has not been fitted.
    """
    library = type(target).__module__.partition(".")[0]
    if library == "transformers" and hasattr(target, "task"):
        return _of_pipeline(target, name or target.task.replace("-", "_"), max_batch_size, options)
    name = name or type(target).__name__
    if type(target).__name__ == "Booster" and library in ("xgboost", "lightgbm"):
        features = target.num_features() if library == "xgboost" else target.num_feature()
        matrix = importlib.import_module("xgboost").DMatrix if library == "xgboost" else np.asarray
        given, convert = ("features", element[int(features)]), matrix
        methods = {"prediction": target.predict}
    elif hasattr(target, "predict") or hasattr(target, "transform"):
        given, convert = _input_of_estimator(target, name, element)
        methods = _methods_of_estimator(target)
    else:
        raise DeclarationError(
            Problem(
                f"{type(target).__module__}.{type(target).__qualname__} cannot be adapted: it is no scikit-learn "
                "estimator, no XGBoost or LightGBM model and no Hugging Face pipeline",
                "write a function with @model that calls it",
                *calling_place(),
            )
        )

    def predict(rows: Any) -> Mapping[str, Any]:
        return {output: _rows(method(rows)) for output, method in methods.items()}

    return _made(Adapted(target, convert, predict), name, given, predict, max_batch_size, options)


def _made(
    adapted: Adapted,
    name: str,
    given: tuple[str, TensorType],
    predict: Predict,
    max_batch_size: int,
    options: Mapping[str, Any],
) -> Adapted:
    """With a declaration, whose outputs are those of a row of zeros."""
    dims = [1, *(max(dim, 1) for dim in given[1].dims)]
    row = np.full(dims, b"", object) if given[1].element is BYTES else np.zeros(dims, given[1].element.dtype)
    try:
        outputs = {
            output: element_type_of(each.dtype)[each.shape[1:]] for output, each in adapted(**{given[0]: row}).items()
        }
    except Exception as error:
        raise DeclarationError(
            Problem(
                f"{type(adapted.target).__name__} cannot answer a row of {given[1]}: {type(error).__name__}: {error}",
                "fit it first, or write a function with @model that calls it",
                *calling_place(),
                name,
            )
        ) from error
    declaration = declare(
        adapted,
        name=name,
        max_batch_size=max_batch_size,
        inputs=dict([given]),
        outputs=outputs,
        **options,
    )
    setattr(adapted, MARK, declaration)
    return adapted


def _rows(value: Any) -> np.ndarray:
    """An array with a dimension for the rows, and at least one more. Names of classes are texts."""
    if hasattr(value, "toarray"):  # sparse
        value = value.toarray()
    array = np.asarray(value)
    if array.dtype.kind in "OSU":
        array = np.array([str(each) for each in array.ravel()], object).reshape(array.shape)
    return array.reshape(-1, 1) if array.ndim == 1 else array


# -- Estimators: scikit-learn, and what has its interface


def _input_of_estimator(
    target: Any, name: str, element: ElementType
) -> tuple[tuple[str, TensorType], Callable[[np.ndarray], Any]]:
    """Numbers, as a table with the names of the columns if the estimator knows them; or texts."""
    features = getattr(target, "n_features_in_", None)
    if features is None:
        return ("text", BYTES[1]), _texts
    columns = getattr(target, "feature_names_in_", None)
    if columns is None:
        return ("features", element[int(features)]), np.asarray
    frame = importlib.import_module("pandas").DataFrame
    return ("features", element[int(features)]), lambda rows: frame(rows, columns=columns)


def _methods_of_estimator(target: Any) -> dict[str, Callable[[Any], Any]]:
    if not hasattr(target, "predict"):
        return {"transformed": target.transform}
    if not hasattr(target, "classes_"):
        return {"prediction": target.predict}
    methods = {"label": target.predict}
    if hasattr(target, "predict_proba"):
        methods["probabilities"] = target.predict_proba
    return methods


def _texts(rows: np.ndarray) -> list[str]:
    return [each.decode() if isinstance(each, bytes) else str(each) for each in rows.ravel()]


# -- Pipelines of Hugging Face


def _of_pipeline(target: Any, name: str, max_batch_size: int, options: Mapping[str, Any]) -> Adapted:
    images = target.task.startswith("image-")
    given = ("image", UINT8[..., ..., 3]) if images else ("text", BYTES[1])

    def convert(rows: np.ndarray) -> Sequence[Any]:
        if not images:
            return _texts(rows)
        image = importlib.import_module("PIL.Image")
        return [image.fromarray(row) for row in rows]

    def predict(rows: Any) -> Mapping[str, Any]:
        return _named([_first(each) for each in target(rows)])

    return _made(Adapted(target, convert, predict), name, given, predict, max_batch_size, options)


def _first(answer: Any) -> Any:
    """The best of several answers to one row."""
    return answer[0] if isinstance(answer, list) and answer and isinstance(answer[0], dict) else answer


def _named(answers: Sequence[Any]) -> Mapping[str, Any]:
    """Outputs by what the answers to all rows have."""
    first = answers[0]
    if isinstance(first, dict) and {"label", "score"} == set(first):
        labels = np.array([[str(each["label"])] for each in answers], object)
        return {"label": labels, "score": np.array([[each["score"]] for each in answers], np.float32)}
    texts = [key for key in first if key.endswith("_text")] if isinstance(first, dict) else []
    if len(texts) == 1 and isinstance(first[texts[0]], str):
        return {"text": np.array([[each[texts[0]]] for each in answers], object)}
    return {"answer": np.array([[json.dumps(each, default=_plain)] for each in answers], object)}


def _plain(value: Any) -> Any:
    """What JSON has in place of numbers and arrays of libraries."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
