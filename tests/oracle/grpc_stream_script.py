"""The part of the session that is about ModelStreamInfer."""

from __future__ import annotations

from collections.abc import Iterator

from grpc_calls import CHOICES, FOUR, Call, failed, infer, moody, output, plain, repeat, request, stream, tensor

EMPTY_FINAL = {"triton_enable_empty_final_response": CHOICES["bool"]}
AS_STATUS = (("triton_grpc_error", "true"),)
UNKNOWN = request("nothing", id="unknown")


def plain_streams() -> Iterator[Call]:
    """Models that answer once, and requests that are refused: everything in order."""
    yield stream("empty stream")
    yield stream("stream of one", plain(id="1"))
    yield stream("stream without ids", plain(), plain())
    yield stream("stream of three models", plain(id="1"), moody(7, id="2"), plain(id="3"))
    yield stream("refused in the middle", plain(id="1"), UNKNOWN, plain(id="3"))
    yield stream("refused without an id", request("nothing"))
    yield stream("an empty message in a stream", b"", plain(id="2"))
    refused = {
        "version not a number": plain(id="a", version="x"),
        "unknown version": plain(id="a", version="9"),
        "no inputs": request("plain", id="a"),
        "no data": request("plain", [FOUR], id="a"),
        "bad shape": request("plain", [tensor("INPUT0", "FP32", [3], fp32=[1, 2, 3])], id="a"),
        "bad parameter": plain(id="a", parameters={"mine": CHOICES["uint"]}),
        "empty final response not a bool": plain(
            id="a", parameters={"triton_enable_empty_final_response": CHOICES["int"]}
        ),
        "unexpected output": request("plain", [FOUR], [b""], [output("X")], id="a"),
    }
    for name, message in refused.items():
        yield stream(f"refused in a stream: {name}", message, plain(id="b"))
    for version in ("", "1", "+1"):
        yield stream(f"versions in a stream: {version!r}", moody(0, id="a", version=version))
        yield stream(f"failed in a stream, version {version!r}", moody(1, id="a", version=version), plain(id="b"))
    yield stream("failed otherwise", moody(2, id="a"))
    yield stream("failed without an id", moody(1))
    yield stream("an empty final response that is not needed", plain(id="1", parameters=EMPTY_FINAL))
    best = [output("OUTPUT0", classification=CHOICES["int"])]
    ranked = request("ranked", [tensor("INPUT0", "FP32", [1, 4], fp32=[1, 4, 3, 2])], outputs=best, id="c")
    yield stream("best in a stream", ranked)


def decoupled_streams() -> Iterator[Call]:
    yield infer("decoupled, unary", repeat(1, 0))
    yield infer("decoupled, unary, bad inputs", request("repeat"))
    yield infer("decoupled, unary, unknown version", repeat(1, 0, version="9"))
    for end in (0, 1, 2):
        for count in (0, 1, 3):
            for asked, parameters in (("", None), (", empty final response", EMPTY_FINAL)):
                message = repeat(count, end, id="r", parameters=parameters)
                yield stream(f"{count} answers, end {end}{asked}", message)
    yield stream("answers, version as asked", repeat(1, 0, id="r", version="1", parameters=EMPTY_FINAL))
    yield stream("answers without an id", repeat(1, 0, parameters=EMPTY_FINAL))
    mixed = (repeat(3, 0, id="r"), plain(id="p"), repeat(2, 1, id="s"))
    yield stream("answers of both kinds", *mixed, interleaved=True)
    yield stream("decoupled, refused", request("repeat", id="r"), repeat(1, 1, id="s"))


def ending_streams() -> Iterator[Call]:
    """With ``triton_grpc_error: true`` the first failed execution ends the stream."""
    yield stream("status: all well", plain(id="1"), plain(id="2"), metadata=AS_STATUS)
    yield stream("status: refused", UNKNOWN, plain(id="2"), metadata=AS_STATUS)
    yield stream("status: failed", moody(0, id="1"), moody(1, id="2"), UNKNOWN, metadata=AS_STATUS)
    yield stream("status: failed otherwise", moody(2, id="1"), metadata=AS_STATUS)
    yield stream("status: refused, then failed", UNKNOWN, moody(1, id="2"), metadata=AS_STATUS)
    for value in ("True", "false", "1", ""):
        metadata = (("triton_grpc_error", value),)
        yield stream(f"status: not asked for by {value!r}", moody(1, id="1"), plain(id="2"), metadata=metadata)
    answers = [
        {
            "infer_response": {
                "model_name": "repeat",
                "model_version": "1",
                "id": "r",
                "parameters": {"triton_final_response": {"bool_param": False}},
                "outputs": [{"name": "OUT", "datatype": "INT32", "shape": ["1"]}],
                "raw_output_contents": [number],
            }
        }
        for number in ("AAAAAA==", "AQAAAA==")
    ]
    yield stream(
        "status: answers, then failed",
        repeat(2, 2, id="r"),
        metadata=AS_STATUS,
        newer="docs/reference/grpc.md#streams; the reference build dies of it",
        expected=failed("INTERNAL", "it failed", answers),
        recorded=False,
    )
    yield stream(
        "not a protobuf in a stream",
        plain(id="1"),
        b"\xff\xff\xff",
        plain(id="2"),
        newer="plainly wrong: the reference build ends such a stream with OK and loses what follows without a word",
        expected=failed("INTERNAL", "Unable to parse request", [_answer_of_plain("1")]),
    )


def _answer_of_plain(request_id: str) -> dict[str, object]:
    return {
        "infer_response": {
            "model_name": "plain",
            "model_version": "1",
            "id": request_id,
            "parameters": {"triton_final_response": {"bool_param": True}},
            "outputs": [{"name": "OUTPUT0", "datatype": "FP32", "shape": ["2", "2"]}],
            "raw_output_contents": ["AACAPwAAAEAAAEBAAACAQA=="],
        }
    }
