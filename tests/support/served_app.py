"""Apps, Python files with models, and processes that serve them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serve_process import ServeProcess

APP = '''\
import numpy as np

from scales import scale
from trireme import (
    BF16, BOOL, BYTES, FP16, FP32, FP64, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64,
    InvalidArgumentError, model,
)


@model(max_batch_size=32, queue_delay="2ms", instances=2)
def classify(image: FP32[8, 8]) -> {"probabilities": FP32[10]}:
    if image.max() > 1:
        raise InvalidArgumentError("a pixel is brighter than 1")
    sums = image.reshape(len(image), -1)[:, :10] * scale()
    return {"probabilities": sums}


@model(max_batch_size=8, batches="list")
def separately(x: INT32[...]) -> {"sum": INT64[1], "rows": INT32[1]}:
    answers = []
    for each in x:
        if each.min() < 0:
            answers.append(ValueError("a number is negative"))
        else:
            rows = len(each)
            answers.append({"sum": each.sum(axis=1, keepdims=True), "rows": np.full((rows, 1), rows, np.int32)})
    return answers


@model
class Greeter:
    """Counts whom it greets."""

    def __init__(self):
        self.greeted = 0

    async def __call__(self, name: BYTES[1], greeting: BYTES[1] = None) -> {"text": BYTES[1], "greeted": INT64[1]}:
        self.greeted += 1
        word = "hello" if greeting is None else greeting[0].decode()
        return {"text": [f"{word} {name[0].decode()}"], "greeted": [self.greeted]}


@model
def count_down(start: INT64[1]) -> {"number": INT64[1]}:
    for number in range(int(start[0]), 0, -1):
        if number == 13:
            raise RuntimeError("13 brings bad luck")
        yield {"number": [number]}


@model
async def count_up(end: INT64[1]) -> INT64[1]:
    for number in range(int(end[0])):
        yield [number]


@model
def endless(start: INT64[1]) -> INT64[1]:
    number = int(start[0])
    try:
        while True:
            yield [number]
            number += 1
    finally:
        print("the generator was closed")


@model
def wrong_type(x: FP32[1]) -> INT32[1]:
    return x


@model
def wrong_shape(x: FP32[1]) -> {"y": FP32[2]}:
    return {"y": x}


@model
def broken(x: FP32[1]) -> FP32[1]:
    return deeper(x)


def deeper(x):
    return x / {}


@model(in_process=True)
def inside(x: FP64[...]) -> FP64[...]:
    return -x


@model
def every_type(
    bool_: BOOL[2], u1: UINT8[2], u2: UINT16[2], u4: UINT32[2], u8: UINT64[2], i1: INT8[2], i2: INT16[2],
    i4: INT32[2], i8: INT64[2], f2: FP16[2], f4: FP32[2], f8: FP64[2], b2: BF16[2], text: BYTES[2],
) -> {
    "bool_": BOOL[2], "u1": UINT8[2], "u2": UINT16[2], "u4": UINT32[2], "u8": UINT64[2], "i1": INT8[2],
    "i2": INT16[2], "i4": INT32[2], "i8": INT64[2], "f2": FP16[2], "f4": FP32[2], "f8": FP64[2], "b2": BF16[2],
    "text": BYTES[2],
}:
    given = dict(locals())
    return {name: array if name in ("bool_", "text") else array + 1 for name, array in given.items()}
'''

SCALES = "def scale():\n    return 1\n"


def write_app(directory: Path, text: str = APP, **others: str) -> Path:
    """An app's file, with modules beside it."""
    for name, each in {"scales": SCALES, **others}.items():
        (directory / f"{name}.py").write_text(each)
    path = directory / "app.py"
    path.write_text(text)
    return path


class AppProcess(ServeProcess):
    """A running `trireme serve` of what the words say, on free ports."""

    def __init__(self, *words: str) -> None:
        ports = [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
        self._start(["serve", "--front-ends=0", *ports, *words])


@contextmanager
def app_process(*words: Path | str, wait: bool = True) -> Iterator[AppProcess]:
    """An `AppProcess` whose ports are open, unless it is not to be waited for."""
    server = AppProcess(*map(str, words))
    try:
        if wait:
            server.wait_for("Started Metrics Service")
        yield server
    finally:
        server.end()
