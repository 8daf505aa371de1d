"""`trireme request-log`: logs of what clients ask, made, read, and played against a server (docs/request_logs.md)."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from .parser import UNREACHABLE, USAGE, CommandError

if TYPE_CHECKING:
    from ...clients.played import PlayedSummary
    from ...engine.logs.generators import ArrivalProcess, RequestKind
    from ...engine.logs.request_log import RequestTraffic

_MOST_REQUESTS = 10_000_000
_ARRIVALS = {
    "poisson": {"rate": "rate_hz"},
    "bursts": {"rate": "rate_hz", "on": "on_s", "off": "off_s", "quiet": "quiet_hz"},
    "diurnal": {"least": "least_hz", "most": "most_hz", "period": "period_s"},
    "steps": {"rates": "rates_hz", "each": "each_s"},
    "closed": {"clients": "clients", "think": "think_s"},
}
_KINDS = {
    "weight": "weight",
    "version": "version",
    "rows": "rows",
    "bytes": "row_nbytes",
    "elements": "elements",
    "priority": "priority",
    "timeout-us": "timeout_us",
    "sequence": "sequence_length",
    "think": "think_s",
    "tenant": "tenant",
    "protocol": "protocol",
}
_TOKENS = {
    "prompt": "prompt",
    "prompt-spread": "prompt_spread",
    "tokens": "new",
    "tokens-spread": "new_spread",
    "max-tokens": "most_new",
    "context": "context",
    "shared": "shared",
}
"""Of requests for generated text."""

_MODEL_HELP = (
    f"what is asked for; may be given several times. Keys: {', '.join([*_KINDS, *_TOKENS])}. Several rows (rows=1/2/8) "
    "are drawn from; bytes are those of a row; sequence is a mean length, think the time between its requests. Of "
    "generated text prompt and tokens are medians, the spreads deviations of their logarithms"
)


def add_request_log_command(commands: Any) -> None:
    """Add the sub-command to those of `argparse`."""
    parser = commands.add_parser("request-log", help="make, read, and play logs of what clients ask")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    show = actions.add_parser("show", help="say how many requests a log has, how unevenly they come, and of what")
    show.add_argument("logs", nargs="+", metavar="LOG", help="the oldest first; - for standard input")
    show.add_argument("--json", action="store_true", help="print it as JSON")
    show.set_defaults(run_action=_show)
    _add_generate(actions)
    convert = actions.add_parser("convert", help="make a log of trace files, or of perf_analyzer's options")
    convert.add_argument("kind", choices=("triton-trace", "perf-analyzer"))
    convert.add_argument("words", nargs=argparse.REMAINDER, help="trace files; or, behind --, perf_analyzer's options")
    _add_output(convert)
    convert.add_argument("--seconds", type=float, default=60.0, help="of what perf_analyzer sends; default 60")
    convert.add_argument("--count", type=int, default=10_000, help="requests of its closed loop; default 10,000")
    convert.add_argument("--seed", type=int, default=1)
    convert.set_defaults(run_action=_convert)
    _add_play(actions)
    parser.set_defaults(run=run_request_log)


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", default="-", help="the log to write; - (the default) for standard output")


def _add_generate(actions: Any) -> None:
    generate = actions.add_parser("generate", help="make a log of clients that are drawn")
    generate.add_argument(
        "--arrivals",
        required=True,
        metavar="PROCESS,KEY=VALUE,...",
        help="poisson,rate=HZ; bursts,rate=HZ,on=S,off=S[,quiet=HZ]; diurnal,least=HZ,most=HZ,period=S; "
        "steps,rates=HZ/HZ/...,each=S; closed,clients=N[,think=S]",
    )
    generate.add_argument(
        "--model",
        required=True,
        action="append",
        metavar="NAME,KEY=VALUE,...",
        help=_MODEL_HELP,
    )
    generate.add_argument("--seconds", type=float, default=60.0, help="default 60")
    generate.add_argument("--count", type=int, default=10_000, help="requests of a closed loop; default 10,000")
    generate.add_argument("--seed", type=int, default=1)
    _add_output(generate)
    generate.set_defaults(run_action=_generate)


def _add_play(actions: Any) -> None:
    play = actions.add_parser("play", help="ask a server what a log says, and tell how it did")
    play.add_argument("logs", nargs="+", metavar="LOG", help="the oldest first; - for standard input")
    play.add_argument("--url", default="http://localhost:8000", help="http:// or grpc://; default %(default)s")
    play.add_argument(
        "--api-key", default=os.environ.get("TRIREME_API_KEY", ""), help="by default the variable TRIREME_API_KEY"
    )
    play.add_argument("--connections", type=int, default=256, help="how many there may be; default %(default)s")
    play.add_argument("--speed", type=float, default=1.0, help="so many times as fast; default 1")
    play.add_argument("--clients", type=int, help="in a closed loop of so many clients, whatever the log's times are")
    play.add_argument("--warm-up", type=float, default=0.0, metavar="SECONDS", help="that do not count; default 0")
    play.add_argument("--objective-ms", type=float, help="what goodput counts; default any time")
    play.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="for the last answers; default 60")
    play.add_argument("--seed", type=int, default=1, help="of the times for which clients think")
    play.add_argument("-o", "--output", help="file for a line of JSON a request; - for standard output")
    play.add_argument("--json", action="store_true", help="print the summary as JSON")
    play.set_defaults(run_action=_play)


def run_request_log(given: argparse.Namespace) -> int:
    """Do what the command line says; returns the exit code."""
    from ...clients.connections import RefusedError
    from ...engine.errors import InvalidArgumentError

    try:
        return given.run_action(given)
    except InvalidArgumentError as error:
        raise CommandError(error.message, code=USAGE) from error
    except RefusedError as error:
        raise CommandError(str(error), code=UNREACHABLE) from error
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}") from error


# ---- show ----


def _read(names: Sequence[str]) -> RequestTraffic:
    from ...engine.logs.request_log import read_traffic

    with ExitStack() as stack:
        files = [sys.stdin if name == "-" else stack.enter_context(Path(name).open(encoding="utf-8")) for name in names]
        try:
            return read_traffic(itertools.chain.from_iterable(files), " ".join(names))
        except UnicodeDecodeError as error:
            raise CommandError(f"{' '.join(names)}: not UTF-8: {error.reason}") from error


def _show(given: argparse.Namespace) -> int:
    from ...engine.logs.request_summary import summarise, summary_lines

    facts = summarise(_read(given.logs))
    if given.json:
        sys.stdout.write(json.dumps(dataclasses.asdict(facts), indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in summary_lines(facts))
    return 0


# ---- generate and convert ----


def _write(traffic: RequestTraffic, name: str) -> int:
    from ...engine.logs.request_log import write_request_log

    with ExitStack() as stack:
        _opened(stack, name).writelines(write_request_log(traffic))
    return 0


def _opened(stack: ExitStack, name: str) -> TextIO:
    return sys.stdout if name == "-" else stack.enter_context(Path(name).open("w", encoding="utf-8"))


def _generate(given: argparse.Namespace) -> int:
    from ...engine.logs.generators import generate, generate_closed
    from ...engine.logs.request_log import LoggedLoop

    kinds = [read_kind(text) for text in given.model]
    arrivals = read_arrivals(given.arrivals)
    if isinstance(arrivals, LoggedLoop):
        return _write(generate_closed(arrivals, kinds, min(given.count, _MOST_REQUESTS), given.seed), given.output)
    steps = max(kind.sequence_length or 1 for kind in kinds)
    if arrivals.most_hz * given.seconds * steps > _MOST_REQUESTS:
        raise CommandError(f"this could be more than {_MOST_REQUESTS} requests, expected fewer", code=USAGE)
    return _write(generate(arrivals, kinds, given.seconds, given.seed), given.output)


def read_arrivals(text: str) -> ArrivalProcess | Any:
    """An arrival process, or a closed loop (`LoggedLoop`), from `PROCESS,KEY=VALUE,...`.

    Raises:
        CommandError, InvalidArgumentError: it is none.
    """
    from ...engine.logs import generators
    from ...engine.logs.request_log import LoggedLoop

    processes = {
        "poisson": generators.PoissonArrivals,
        "bursts": generators.BurstArrivals,
        "diurnal": generators.DiurnalArrivals,
        "steps": generators.StepArrivals,
        "closed": LoggedLoop,
    }
    name, _, rest = text.partition(",")
    if name not in processes:
        raise CommandError(f"--arrivals: found '{name}', expected one of {', '.join(processes)}", code=USAGE)
    return _made(processes[name], {}, rest, _ARRIVALS[name], f"--arrivals {name}")


def read_kind(text: str) -> RequestKind:
    """What is asked for, from `NAME,KEY=VALUE,...`.

    Raises:
        CommandError, InvalidArgumentError: it is none.
    """
    from ...engine.logs.generators import RequestKind, TokenLengths

    name, _, rest = text.partition(",")
    where = f"--model {name}"
    pairs = [pair for pair in rest.split(",") if pair]
    of_tokens = [pair for pair in pairs if pair.partition("=")[0] in _TOKENS]
    values: dict[str, Any] = {"model": name}
    if of_tokens:
        values["tokens"] = _made(TokenLengths, {}, ",".join(of_tokens), _TOKENS, where)
    others = ",".join(pair for pair in pairs if pair not in of_tokens)
    return _made(RequestKind, values, others, {**_KINDS, **dict.fromkeys(_TOKENS, "tokens")}, where)


def _made(kind: Any, values: dict[str, Any], text: str, keys: Mapping[str, str], where: str) -> Any:
    """An object of a class whose fields have the values of `KEY=VALUE,...`."""
    types = {each.name: str(each.type) for each in dataclasses.fields(kind)}
    for pair in filter(None, text.split(",")):
        key, _, value = pair.partition("=")
        if key not in keys:
            raise CommandError(f"{where}: found '{key}', expected one of {', '.join(keys)}", code=USAGE)
        values[keys[key]] = _value(types[keys[key]], value, f"{where}: {key}")
    try:
        return kind(**values)
    except TypeError:
        needed = [key for key, name in keys.items() if name not in values]
        raise CommandError(f"{where}: a value is missing, of {', '.join(needed)}", code=USAGE) from None


def _value(kind: str, text: str, where: str) -> Any:
    """A value of a field of this type, as annotated."""
    try:
        if kind.startswith("tuple[int"):
            return tuple(int(each) for each in text.split("/"))
        if kind.startswith("tuple[float"):
            return tuple(float(each) for each in text.split("/"))
        return {"int": int, "float": float}.get(kind, str)(text)
    except ValueError as error:
        expected = "whole numbers" if "int" in kind else "numbers"
        raise CommandError(f"{where}: found '{text}', expected {expected}", code=USAGE) from error


def _convert(given: argparse.Namespace) -> int:
    from ...engine.logs.perf_analyzer_load import read_perf_analyzer
    from ...engine.logs.triton_traces import read_triton_traces

    words = given.words[1:] if given.words[:1] == ["--"] else given.words
    if given.kind == "perf-analyzer":
        sizes = {"seconds": given.seconds, "count": given.count, "seed": given.seed}
        return _write(read_perf_analyzer(words, lambda name: Path(name).read_text("utf-8"), **sizes), given.output)
    if options := [word for word in words if word.startswith("-")]:
        raise CommandError(f"triton-trace: found '{options[0]}' behind it", "options go before triton-trace", USAGE)
    if not words:
        raise CommandError("triton-trace: expected the names of trace files, found none", code=USAGE)
    return _write(read_triton_traces((name, Path(name).read_text("utf-8")) for name in words), given.output)


# ---- play ----


def _play(given: argparse.Namespace) -> int:
    from ...clients.player import play
    from ...clients.target import LoadTarget
    from ...engine.logs.request_log import LoggedLoop, RequestTraffic

    target = LoadTarget.of(given.url, api_key=given.api_key)
    traffic = _read(given.logs)
    if given.clients is not None:
        think_s = traffic.loop.think_s if traffic.loop is not None else 0.0
        traffic = RequestTraffic(traffic.requests, LoggedLoop(given.clients, think_s))
    sizes = {"connections": given.connections, "speed": given.speed, "timeout_s": given.timeout, "seed": given.seed}
    with ExitStack() as stack:
        output = _opened(stack, given.output) if given.output else None  # what cannot be written is told before
        played = play(traffic, target, **sizes)
        if output is not None:
            output.writelines(played.lines())
    summary = played.summary(None if given.objective_ms is None else given.objective_ms / 1e3, given.warm_up)
    lines: Iterable[str] = [json.dumps(summary.document(), indent=2)] if given.json else played_lines(summary)
    (sys.stderr if given.output == "-" else sys.stdout).writelines(f"{line}\n" for line in lines)
    return 0 if summary.answered else 1


def played_lines(summary: PlayedSummary) -> Iterator[str]:
    """A summary as text."""
    yield f"{summary.requests} requests in {summary.seconds:.3f} s: {summary.offered:.1f} a second"
    yield (
        f"answered {summary.answered} ({summary.throughput:.1f} a second, goodput {summary.goodput:.1f}), refused "
        f"{summary.refused}, without an answer {summary.unanswered}"
    )
    if summary.answered:
        times = ("mean", summary.mean_s), ("p50", summary.p50_s), ("p95", summary.p95_s), ("p99", summary.p99_s)
        yield ", ".join(f"{name} {value * 1e3:.3f} ms" for name, value in (*times, ("most", summary.most_s)))
    if summary.late:
        yield f"{summary.late} were sent more than 1 ms late; their times count from when they were due"
    for reason, count in summary.reasons[:5]:
        yield f"  {count} times: {reason}"
