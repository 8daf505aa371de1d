"""With ``--allow-code-upload=false`` a load request brings data, and nothing that could be run."""

from __future__ import annotations

import pickle

import pytest

from trireme.engine.errors import InvalidArgumentError
from trireme.engine.repository.uploads import refuse_code

DATA = b"\x08\x07\x12\x04"


@pytest.mark.parametrize(
    "path",
    [
        "1/model.py",
        "1/MODEL.PY",
        "model.pyc",
        "1/lib.so",
        "1/lib.so.1",
        "1/model.pt",
        "1/model.pt2",
        "1/weights.pkl",
        "1/model.plan",
        "1/model.savedmodel/saved_model.pb",
        "env.tar.gz",
        "1/run.sh",
        "1/no_ending",
        "",
    ],
)
def test_files_that_may_hold_code_are_refused_by_name(path: str) -> None:
    key = f"file:{path}"
    with pytest.raises(InvalidArgumentError) as caught:
        refuse_code("m", {"config": "{}", "file:1/labels.txt": b"a", key: DATA})
    assert caught.value.message.startswith(f"load failed for model 'm': '{key}' may hold code, and ")
    assert "--allow-code-upload=false" in caught.value.message


@pytest.mark.parametrize(
    "content",
    [b"\x7fELF\x02\x01", b"#!/bin/sh\n", b"PK\x03\x04", b"\x1f\x8b\x08", pickle.dumps([1]), pickle.dumps([1], 2)],
)
def test_and_by_how_they_begin(content: bytes) -> None:
    with pytest.raises(InvalidArgumentError):
        refuse_code("m", {"file:1/model.bin": content})


@pytest.mark.parametrize("path", ["1/model.onnx", "1/model.xml", "1/model.bin", "labels.txt", "1/x.NPY", "a.json"])
def test_data_passes(path: str) -> None:
    refuse_code("m", {"config": '{"backend":"onnxruntime"}', f"file:{path}": DATA})
