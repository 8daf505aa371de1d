"""The part of the session that is about ModelInfer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from google.protobuf.message import Message
from grpc_calls import CHOICES, FLOATS, FOUR, Call, failed, infer, moody, output, pb, plain, request, strings, tensor

SIXTEEN = np.arange(16, dtype=np.int32).tobytes()
PAIR = [tensor("INPUT0", "INT32", [1, 16], int=range(16)), tensor("INPUT1", "INT32", [1, 16], int=[1] * 16)]
RAW_PAIR = [tensor("INPUT0", "INT32", [1, 16]), tensor("INPUT1", "INT32", [1, 16])]
ROW = tensor("INPUT0", "FP32", [1, 4], fp32=[0.1, 4.0, 3.0, -2.0])
TYPED = tensor("INPUT0", "FP32", [2, 2], fp32=[1, 2, 3, 4])
TEXT = pb.InferParameter(string_param="r")
SIZE = pb.InferParameter(int64_param=16)

FIELDS = {
    "bool": [True, False],
    "int": [-1, 300],
    "int64": [-(2**63), 2**63 - 1],
    "uint": [1, 65536 + 255],
    "uint64": [0, 2**64 - 1],
    "fp32": [1.5, float("inf")],
    "fp64": [0.1, 5e-324],
    "bytes": [b"ab", "é\0".encode()],
}
"""Two values for every field of contents, some of which do not fit the smaller datatypes that it serves."""

RAW = {
    "BOOL": b"\1\0",
    "UINT8": b"\0\xff",
    "UINT16": b"\0\0\xff\xff",
    "UINT32": b"\0" * 4 + b"\xff" * 4,
    "UINT64": b"\0" * 8 + b"\xff" * 8,
    "INT8": b"\x80\x7f",
    "INT16": b"\0\x80\xff\x7f",
    "INT32": b"\0\0\0\x80" + b"\xff" * 4,
    "INT64": b"\0" * 7 + b"\x80" + b"\xff" * 8,
    "FP16": b"\0\x3c\0\x7e",
    "FP32": b"\0\0\x80\x3f\0\0\xc0\x7f",
    "FP64": b"\0" * 15 + b"\x80",
    "BYTES": strings(b"", "é\0".encode()),
    "BF16": b"\x80\x3f\x01\x40",
}
"""Two elements of every datatype."""


def valid() -> Iterator[Call]:
    yield infer("raw add_sub", request("add_sub", RAW_PAIR, [SIXTEEN, SIXTEEN], id="7"))
    yield infer("typed add_sub", request("add_sub", PAIR))
    yield infer("versioned", plain(version="1"))
    yield infer("with an id", plain(id="é 7"))
    yield infer("batch of two", request("ranked", [tensor("INPUT0", "FP32", [2, 4], fp32=range(8))]))
    yield infer("inputs swapped", request("add_sub", PAIR[::-1]))
    yield infer("raw inputs swapped", request("add_sub", RAW_PAIR[::-1], [SIXTEEN, bytes(64)]))
    yield infer("variable dims", request("wide", [tensor("INPUT0", "FP32", [3, 4], fp32=[0.5] * 12)]))
    yield infer("no elements, raw", request("wide", [tensor("INPUT0", "FP32", [0, 4])], [b""]))
    yield infer("no elements, typed", request("wide", [tensor("INPUT0", "FP32", [0, 4], empty=True)]))
    yield infer("more raw contents than inputs", request("plain", [FOUR], [FLOATS, FLOATS]))
    yield infer(
        "input parameters that mean nothing", request("plain", [tensor("INPUT0", "FP32", [2, 2], CHOICES)], [FLOATS])
    )
    yield infer("a model in a mood", moody(5))
    yield infer("a model that fails", moody(1))
    yield infer("a model that misses something", moody(2, id="x"))


def types() -> Iterator[Call]:
    """Every datatype raw, and from every field of contents."""
    for datatype, raw in RAW.items():
        model = f"type_{datatype.lower()}"
        yield infer(f"{datatype} raw", request(model, [tensor("INPUT0", datatype, [2])], [raw]))
        for field, values in FIELDS.items():
            typed = tensor("INPUT0", datatype, [2], **{field: values})
            yield infer(f"{datatype} from {field}_contents", request(model, [typed]))
        yield infer(f"{datatype} into another model", request("plain", [tensor("INPUT0", datatype, [2, 2])], [raw * 2]))
    for count in (0, 1, 3):
        some = tensor("INPUT0", "FP32", [2], fp32=[1.0] * count, empty=True)
        yield infer(f"{count} of two numbers", request("type_fp32", [some]))
        some = tensor("INPUT0", "BYTES", [2], bytes=[b"a"] * count, empty=True)
        yield infer(f"{count} of two strings", request("type_bytes", [some]))
        some = tensor("INPUT0", "INT8", [2], int=[1] * count, empty=True)
        yield infer(f"{count} of two small numbers", request("type_int8", [some]))
    yield infer("strings without characters", request("type_bytes", [tensor("INPUT0", "BYTES", [2], bytes=[b"", b""])]))
    lies = [b"\x09\0\0\0abc", b"\1\0", strings(b"a") + b"\5\0", strings(b"a"), strings(b"a", b"b", b"c"), b""]
    for index, lie in enumerate(lies):
        yield infer(f"lying strings {index}", request("type_bytes", [tensor("INPUT0", "BYTES", [2])], [lie]))


def bad_inputs() -> Iterator[Call]:
    """Where the data are, or are not."""
    yield infer("no data", request("plain", [FOUR]))
    yield infer("no elements and no data", request("wide", [tensor("INPUT0", "FP32", [0, 4])]))
    yield infer("second input without data", request("add_sub", RAW_PAIR, [SIXTEEN]))
    yield infer("contents and raw", request("plain", [TYPED], [FLOATS]))
    yield infer("empty contents and raw", request("plain", [tensor("INPUT0", "FP32", [2, 2], empty=True)], [FLOATS]))
    yield infer("one typed, one raw", request("add_sub", [PAIR[0], RAW_PAIR[1]], [SIXTEEN]))
    yield infer("one raw, one typed", request("add_sub", [RAW_PAIR[0], PAIR[1]], [SIXTEEN]))
    two = {
        "right, then wrong": {"fp32": [1, 2, 3, 4], "fp64": [1]},
        "wrong, then right": {"bool": [True], "fp32": [1, 2, 3, 4]},
        "wrong, then wrong": {"int": [1], "fp64": [1]},
    }
    for name, contents in two.items():
        yield infer(f"two fields: {name}", request("plain", [tensor("INPUT0", "FP32", [2, 2], **contents)]))
    for datatype in ("FP99", "", "fp32", "TYPE_FP32", "STRING"):
        yield infer(f"datatype {datatype!r}, raw", request("plain", [tensor("INPUT0", datatype, [2, 2])], [FLOATS]))
        typed = tensor("INPUT0", datatype, [2, 2], fp32=[1, 2, 3, 4])
        yield infer(f"datatype {datatype!r}, typed", request("plain", [typed]))
    yield from _bad_regions("in", lambda bad: request("plain", [tensor("INPUT0", "FP32", [2, 2], bad)]))
    shared = {"shared_memory_region": TEXT, "shared_memory_byte_size": SIZE}
    yield infer("in: region and contents", request("plain", [tensor("INPUT0", "FP32", [2, 2], shared, fp32=[1])]))
    yield infer("in: region and raw", request("plain", [tensor("INPUT0", "FP32", [2, 2], shared)], [FLOATS]))


def _bad_regions(where: str, message: Callable[[dict[str, Message]], Message]) -> Iterator[Call]:
    """Tensors said to be in shared memory, in the wrong way; `message` makes a request of a tensor's parameters."""
    integer = CHOICES["int"]
    cases: dict[str, dict[str, Message]] = {
        "region": {"shared_memory_region": TEXT},
        "region and size": {"shared_memory_region": TEXT, "shared_memory_byte_size": SIZE},
        "region, size and offset": {
            "shared_memory_region": TEXT,
            "shared_memory_byte_size": SIZE,
            "shared_memory_offset": SIZE,
        },
        "region as a number": {"shared_memory_region": integer, "shared_memory_byte_size": SIZE},
        "size as text": {"shared_memory_region": TEXT, "shared_memory_byte_size": TEXT},
        "size as a double": {"shared_memory_region": TEXT, "shared_memory_byte_size": CHOICES["double"]},
        "offset as text": {
            "shared_memory_region": TEXT,
            "shared_memory_byte_size": SIZE,
            "shared_memory_offset": TEXT,
        },
        "size alone": {"shared_memory_byte_size": SIZE},
        "offset alone": {"shared_memory_offset": SIZE},
        "text for a size alone": {"shared_memory_byte_size": TEXT},
    }
    for name, parameters in cases.items():
        yield infer(f"{where}: {name}", message(parameters))


def bad_core() -> Iterator[Call]:
    yield infer("unknown model", request("nothing", [FOUR], [FLOATS]))
    yield infer("no model", request("", [FOUR], [FLOATS]))
    yield infer("input twice", request("plain", [FOUR, FOUR], [FLOATS, FLOATS], id="x"))
    yield infer("one input missing", request("add_sub", PAIR[:1], id="x"))
    yield infer("no input at all", request("add_sub"))
    yield infer("one input too many", request("plain", [FOUR, tensor("X", "FP32", [2, 2])], [FLOATS, FLOATS]))
    yield infer("unexpected name", request("plain", [tensor("X", "FP32", [2, 2])], [FLOATS]))
    yield infer("no name", request("plain", [tensor("", "FP32", [2, 2])], [FLOATS]))
    yield infer("rank", request("plain", [tensor("INPUT0", "FP32", [4])], [FLOATS]))
    yield infer("too few bytes", request("plain", [FOUR], [FLOATS[:12]]))
    yield infer("too many bytes", request("plain", [FOUR], [FLOATS + b"1234"]))
    yield infer("part of an element", request("plain", [FOUR], [FLOATS[:-1]]))
    yield infer("unset dimension", request("plain", [tensor("INPUT0", "FP32", [-1, 2])], [FLOATS]))
    yield infer("unset variable dimension", request("wide", [tensor("INPUT0", "FP32", [-1, 4])], [FLOATS]))
    yield infer("negative dimension", request("plain", [tensor("INPUT0", "FP32", [-2, 2])], [FLOATS]))
    yield infer("shape with batch", request("ranked", [tensor("INPUT0", "FP32", [1, 5], fp32=[1] * 5)]))
    yield infer("batch dimension forgotten", request("ranked", [tensor("INPUT0", "FP32", [4], fp32=[1] * 4)]))
    yield infer("empty shape", request("ranked", [tensor("INPUT0", "FP32", [], fp32=[1])]))
    yield infer("empty shape without batching", request("plain", [tensor("INPUT0", "FP32", [], fp32=[1])]))
    yield infer("batch too large", request("ranked", [tensor("INPUT0", "FP32", [9, 4], fp32=[1] * 36)]))
    uneven = [tensor("INPUT0", "FP32", [1, 2], fp32=[1, 2]), tensor("INPUT1", "FP32", [2, 2], fp32=[1, 2, 3, 4])]
    yield infer("batch sizes differ", request("pair", uneven))


def parameters() -> Iterator[Call]:
    """Every parameter with every kind of value."""
    names = (
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "triton_enable_empty_final_response",
    )
    for name in (*names, "triton_x", "triton_", "binary_data_output", "headers", "mine", ""):
        for kind, value in CHOICES.items():
            yield infer(f"parameter {name!r} of kind {kind}", plain(parameters={name: value}))


def outputs() -> Iterator[Call]:
    def ranked(*asked: Message) -> Message:
        return request("ranked", [ROW], outputs=asked)

    yield infer("one output of two", request("add_sub", PAIR, outputs=[output("OUTPUT1")]))
    yield infer("outputs swapped", request("add_sub", PAIR, outputs=[output("OUTPUT1"), output("OUTPUT0")]))
    yield infer("output twice", ranked(output("OUTPUT0"), output("OUTPUT0")))
    yield infer("unknown output", ranked(output("X")))
    yield infer("output without a name", ranked(output("")))
    yield infer(
        "output parameters that mean nothing", ranked(output("OUTPUT0", mine=TEXT, binary_data=CHOICES["bool"]))
    )
    for kind, value in CHOICES.items():
        yield infer(f"classification of kind {kind}", ranked(output("OUTPUT0", classification=value)))
    for count in (1, 2, 9):
        best = output("OUTPUT0", classification=pb.InferParameter(int64_param=count))
        yield infer(f"best {count}", ranked(best))
    best = [output("OUTPUT0", classification=pb.InferParameter(int64_param=2))]
    two = tensor("INPUT0", "FP32", [2, 4], fp32=[1, 2, 3, 4, 8, 7, 6, 5])
    yield infer("best of a batch", request("ranked", [two], outputs=best))
    yield infer(
        "best of integers", request("ranked_int", [tensor("INPUT0", "INT32", [4], int=[3, 1, 9, 7])], outputs=best)
    )
    text = "class result not available for output due to unsupported type 'BYTES'"
    yield infer(
        "best of strings",
        request("type_bytes", [tensor("INPUT0", "BYTES", [2], bytes=[b"a", b"b"])], outputs=best),
        newer="docs/reference/http-inference.md#classification; the reference build dies of it",
        expected=failed("INVALID_ARGUMENT", text),
        recorded=False,
    )
    yield from _bad_regions("out", lambda bad: ranked(output("OUTPUT0", **bad)))
    both = output("OUTPUT0", shared_memory_region=TEXT, shared_memory_byte_size=SIZE, classification=SIZE)
    yield infer("out: region and classification", ranked(both))


def order() -> Iterator[Call]:
    """Requests with two faults: the one that is found first is reported."""
    bad_parameter = {"priority": TEXT}
    bad_output = [output("X", classification=TEXT)]
    yield infer("version, then model", request("nothing", version="x"))
    yield infer("model, then parameter", request("nothing", parameters=bad_parameter))
    yield infer("parameter, then data", request("plain", [FOUR], parameters=bad_parameter))
    yield infer("data, then output", request("plain", [FOUR], outputs=bad_output))
    yield infer("field, then output", request("plain", [tensor("INPUT0", "FP32", [2, 2], int=[1])], outputs=bad_output))
    yield infer("inputs in turn", request("add_sub", [tensor("INPUT0", "INT32", [1, 16], fp32=[1]), RAW_PAIR[1]]))
    yield infer("input twice, then its data", request("plain", [FOUR, FOUR], [FLOATS]))
    yield infer("input twice, then output", request("plain", [FOUR, FOUR], [FLOATS, FLOATS], bad_output))
    yield infer(
        "parameter, then input twice", request("plain", [FOUR, FOUR], [FLOATS, FLOATS], parameters=bad_parameter)
    )
    yield infer("output parameter, then output name", request("plain", [TYPED], outputs=bad_output))
    yield infer("output name, then missing input", request("add_sub", PAIR[:1], outputs=[output("X")]))
    shape = tensor("INPUT0", "FP32", [3], fp32=[1, 2])
    yield infer("output name, then shape", request("plain", [shape], outputs=[output("X")]))
    yield infer("datatype, then shape", request("plain", [tensor("INPUT0", "INT32", [3], int=[1])]))
    yield infer("shape, then size", request("plain", [shape]))
    region = {"shared_memory_region": TEXT, "shared_memory_byte_size": SIZE}
    lost = tensor("INPUT0", "FP32", [3], region)
    yield infer("region, then shape", request("plain", [lost]))
