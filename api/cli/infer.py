"""`trireme infer`: one request to a model of a running server, and its answer as a table, or its answers as they come
(docs/command-line.md#infer)."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .parser import USAGE, CommandError, nearest
from .server_options import add_server_options, connect_to

if TYPE_CHECKING:
    from .remote import GotTensor, ModelInfo, SentTensor, ServerConnection

_MOST_CLASSES = 5
_MOST_VALUES = 8
_LONGEST_TEXT = 60


def add_infer_command(commands: Any) -> None:
    """Add the sub-command to those of `argparse`."""
    parser = commands.add_parser(
        "infer",
        help="ask a model of a running server, and show its outputs",
        description="Inputs come from --input and --json; those that are not given are made up from the metadata.",
    )
    parser.add_argument("model")
    parser.add_argument("--version", default="", dest="model_version", help="of the model; default the latest")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="[NAME=]VALUE",
        help="JSON such as [1,2,3], a .npy or .json file, an image, or text; the name may be left out if there is one",
    )
    parser.add_argument(
        "--json", metavar="FILE", help='inputs by name, or a whole request ("inputs": […]); - for stdin'
    )
    parser.add_argument("--parameter", action="append", default=[], metavar="NAME=VALUE", help="of the request")
    parser.add_argument("--count", type=int, default=1, help="send it so often, for latencies; default 1")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="of the outputs; default table")
    parser.add_argument("--save", type=Path, metavar="DIR", help="write each output into a .npy file there")
    add_server_options(parser)
    parser.set_defaults(run=run_infer)


def run_infer(given: argparse.Namespace) -> int:
    """Do what the command line says; returns the exit code."""
    if given.count < 1:
        raise CommandError(f"--count is {given.count}", "write 1 or more", USAGE)
    server = connect_to(given)
    try:
        model = server.model(given.model, given.model_version)
        inputs, made_up = _inputs(given, model)
        parameters = dict(_parameters(given))
        if model.config.get("model_transaction_policy", {}).get("decoupled"):
            return _stream(given, server, model, inputs, made_up, parameters)
        latencies_ms = []
        outputs: list[GotTensor] = []
        for _ in range(given.count):
            began_s = time.perf_counter()
            outputs = server.infer(model.name, given.model_version, inputs, parameters=parameters, outputs=())
            latencies_ms.append((time.perf_counter() - began_s) * 1e3)
        classes = _classes(server, model, given.model_version, inputs, parameters)
    finally:
        server.close()
    if given.save is not None:
        _save(given.save, outputs)
    if given.format == "json":
        document = {
            "model": model.name,
            "latency_ms": latencies_ms,
            "made_up": made_up,
            "outputs": [_as_json(each, classes.get(each.name)) for each in outputs],
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in _report(model, made_up, outputs, classes, latencies_ms)))
    return 0


def _stream(
    given: argparse.Namespace,
    server: ServerConnection,
    model: ModelInfo,
    inputs: Sequence[SentTensor],
    made_up: Sequence[str],
    parameters: dict[str, Any],
) -> int:
    """Show the answers of a decoupled model as they come."""
    if given.count > 1:
        raise CommandError(f"model '{model.name}' answers any number of times", "leave --count out", USAGE)
    if made_up and given.format == "table":
        sys.stdout.write(_made_up_line(made_up))
    answers: list[dict[str, Any]] = []
    began_s = time.perf_counter()
    for number, outputs in enumerate(server.stream(model, given.model_version, inputs, parameters=parameters), start=1):
        after_ms = (time.perf_counter() - began_s) * 1e3
        if given.save is not None:
            _save(given.save, outputs, f".{number}")
        if given.format == "json":
            answers.append({"after_ms": after_ms, "outputs": [_as_json(each, None) for each in outputs]})
        else:
            shown = ", ".join(f"{each.name} {_shown(each)}" for each in outputs)
            sys.stdout.write(f"{number}: {shown} (after {after_ms:.2f} ms)\n")
            sys.stdout.flush()
    if given.format == "json":
        document = {"model": model.name, "made_up": made_up, "answers": answers}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    return 0


def _made_up_line(names: Sequence[str]) -> str:
    return f"made up: {', '.join(names)} (give values with --input)\n"


# ---- what is sent ----


def _inputs(given: argparse.Namespace, model: ModelInfo) -> tuple[list[SentTensor], list[str]]:
    """The inputs, and the names of those that were made up."""
    from .input_values import made_up, sent_tensor

    names = [each.name for each in model.inputs]
    values: dict[str, Any] = {}
    if given.json is not None:
        values = _document(given.json)
    for text in given.input:
        name, value = _named(text, names)
        values[name] = _value(value)
    for name in values:
        if name not in names:
            near = nearest(name, names)
            remedy = f"did you mean: {' or '.join(near)}?" if near else f"it has: {', '.join(names)}"
            raise CommandError(f"model '{model.name}' has no input '{name}'", remedy, USAGE)
    sent = [sent_tensor(each, values[each.name], batches=model.batches) for each in model.inputs if each.name in values]
    missing = [each for each in model.inputs if each.name not in values and not each.optional]
    rows = sent[0].shape[0] if sent and model.batches else 1
    return [*sent, *(made_up(each, rows) for each in missing)], [each.name for each in missing]


def _named(text: str, names: Sequence[str]) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if equals and (name in names or name.isidentifier()):
        return name, value
    if len(names) == 1:
        return names[0], text
    raise CommandError(
        f"--input {text} does not say which input it is", f"write NAME=VALUE; of {', '.join(names)}", USAGE
    )


def _value(text: str) -> Any:
    """A path if there is such a file, else JSON, else text."""
    path = Path(text.removeprefix("@"))
    if text.startswith("@") or path.suffix.lower() in (
        ".npy",
        ".json",
        ".png",
        ".jpg",
        ".jpeg",
        ".bmp",
        ".gif",
        ".webp",
    ):
        if not os.path.isfile(path):  # which takes any text
            raise CommandError(f"there is no file '{path}'", "correct the path", USAGE)
        return path
    try:
        return json.loads(text)
    except ValueError:
        return text


def _document(place: str) -> dict[str, Any]:
    """Values by the names of inputs."""
    try:
        text = sys.stdin.read() if place == "-" else Path(place).read_text(encoding="utf-8")
        document = json.loads(text)
    except OSError as error:
        raise CommandError(f"cannot read '{place}': {error.strerror}", "correct the path", USAGE) from error
    except ValueError as error:
        raise CommandError(f"'{place}' is no JSON: {error}", 'write {"INPUT": [[1, 2]]}', USAGE) from error
    if isinstance(document, dict) and isinstance(document.get("inputs"), list):
        try:
            return {each["name"]: {"shape": each.get("shape"), "data": each["data"]} for each in document["inputs"]}
        except (TypeError, KeyError) as error:
            raise CommandError(
                f"an input in '{place}' lacks {error}", 'write {"name": "X", "shape": [1, 2], "data": [1, 2]}', USAGE
            ) from error
    if not isinstance(document, dict):
        raise CommandError(f"'{place}' is no JSON object", 'write {"INPUT": [[1, 2]]}', USAGE)
    return document


def _parameters(given: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    for text in given.parameter:
        name, equals, value = text.partition("=")
        if not equals:
            raise CommandError(f"--parameter is {text}", "write NAME=VALUE", USAGE)
        try:
            yield name, json.loads(value)
        except ValueError:
            yield name, value


def _classes(
    server: ServerConnection, model: ModelInfo, version: str, inputs: Sequence[SentTensor], parameters: dict[str, Any]
) -> dict[str, list[list[str]]]:
    """Of outputs with labels, for each row the likeliest, by a request more. A sequence would notice that."""
    labelled = model.labelled()
    if not labelled or model.has_sequences:
        return {}
    found = server.infer(model.name, version, inputs, parameters=parameters, outputs=labelled, classes=_MOST_CLASSES)
    return {
        each.name: [[_class(text) for text in row] for row in each.array.reshape(-1, each.array.shape[-1])]
        for each in found
        if each.array.size
    }


def _class(text: bytes) -> str:
    value, index, *label = text.decode(errors="replace").split(":", 2)
    return f"{label[0] if label else index} {float(value):.4g}"


# ---- what is shown ----


def _report(
    model: ModelInfo,
    made_up: Sequence[str],
    outputs: Sequence[GotTensor],
    classes: dict[str, list[list[str]]],
    latencies_ms: Sequence[float],
) -> Iterator[str]:
    from .text_table import text_table

    if made_up:
        yield _made_up_line(made_up).rstrip()
    rows = [
        (each.name, each.datatype, "×".join(map(str, each.array.shape)) or "scalar", _shown(each)) for each in outputs
    ]
    yield from text_table(("output", "type", "shape", "values"), rows)
    for name, found in classes.items():
        for number, row in enumerate(found):
            yield f"{name}[{number}]: {', '.join(row)}"
    ordered = sorted(latencies_ms)
    if len(ordered) == 1:
        yield f"latency: {ordered[0]:.2f} ms"
    else:
        middle, high = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
        yield f"latency of {len(ordered)}: least {ordered[0]:.2f}, median {middle:.2f}, p99 {high:.2f} ms"


def _shown(tensor: GotTensor) -> str:
    """The first values, and how many there are."""
    flat = tensor.array.reshape(-1)
    words = [_word(each) for each in flat[:_MOST_VALUES]]
    more = f" … ({flat.size} values)" if flat.size > _MOST_VALUES else ""
    return f"{' '.join(words)}{more}"


def _word(value: Any) -> str:
    if isinstance(value, bytes):
        text = value.decode(errors="replace")
        return repr(text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…")
    return f"{value:.5g}" if hasattr(value, "dtype") and value.dtype.kind == "f" else str(value)


def _as_json(tensor: GotTensor, classes: Sequence[Sequence[str]] | None) -> dict[str, Any]:
    flat = tensor.array.reshape(-1)
    data = [each.decode(errors="replace") if isinstance(each, bytes) else each.item() for each in flat]
    found = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.array.shape), "data": data}
    return {**found, "classes": list(classes)} if classes else found


def _save(directory: Path, outputs: Sequence[GotTensor], suffix: str = "") -> None:
    import numpy as np

    try:
        directory.mkdir(parents=True, exist_ok=True)
        for each in outputs:
            array = each.array.astype("S") if each.array.dtype == object else each.array
            np.save(directory / f"{each.name.replace('/', '_')}{suffix}.npy", array)
    except OSError as error:
        raise CommandError(f"cannot write to '{directory}': {error.strerror}", "name another directory") from error
