"""What a person at a terminal sees of a start: warnings and errors while models load, then one block with the
addresses, the models and a request to copy; and what every start says of models that do not load: what to do.

Without a terminal, with a log file or verbose lines, and with ``--log-format``, the log has Triton's lines instead.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from ...engine.description import IndexEntry, ModelDescription, ModelState
from ...engine.errors import TriremeError
from ...engine.options import ServerOptions
from ...engine.version import VERSION
from ..logging import PeopleFormatter, log_bare
from .flags import ParsedFlags
from .load_log import is_load_failure
from .samples import sample_inputs
from .tables import OnLoad

if TYPE_CHECKING:
    from ...actors import InferenceServer
    from .app_serving import ServedApps
    from .http_flags import HttpSettings
    from .services import Listening

logger = logging.getLogger("trireme.serve")

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_MOST_MODELS = 20
_MOST_SAMPLE_ELEMENTS = 256
_EVERYWHERE = {"0.0.0.0": "localhost", "::": "localhost"}
_TITLES = {"HTTPService": "HTTP", "GRPCInferenceService": "gRPC", "Metrics Service": "Metrics"}  # in this order


def start_view(flags: ParsedFlags, environment: Mapping[str, str]) -> StartView | None:
    """The view, if a person watches the start and has not asked for Triton's lines."""
    asked = "log-format" in flags or flags["log-file"] or flags["log-verbose"] > 0
    if asked or not (sys.stdout.isatty() and sys.stderr.isatty()):
        return None
    return StartView(color="NO_COLOR" not in environment and environment.get("TERM") != "dumb")


class _Loaded(NamedTuple):
    began_s: float
    took_s: float


class StartView(PeopleFormatter):
    """The view of one start; afterwards it makes short log lines.

    Args:
        color: use the terminal's colours.
        now_s: seconds since some moment.
    """

    def __init__(self, *, color: bool, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._color, self._now_s = color, now_s
        self._started = False
        self._loads: dict[tuple[str, int], _Loaded] = {}
        self._findings: dict[str, list[str]] = {}

    # ---- the log ----

    def shows(self, record: logging.LogRecord) -> bool:
        """Until the block is there, only what went wrong, but for loads, which the block tells of. No tables."""
        if getattr(record, "bare", False):
            return True
        if getattr(record, "table", False):
            return False
        if record.levelno < logging.WARNING and record.getMessage().startswith("TRITONBACKEND_"):
            return False
        return self._started or (record.levelno >= logging.WARNING and not is_load_failure(record))

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if getattr(record, "bare", False):
            return message
        if record.exc_info:
            message = f"{message}\n{self.formatException(record.exc_info)}"
        if detail := getattr(record, "detail", ""):
            message = f"{message}\n{detail}"
        if record.levelno >= logging.ERROR:
            return f"{self._styled('error:', 'red', 'bold')} {message}"
        if record.levelno >= logging.WARNING:
            return f"{self._styled('warning:', 'yellow', 'bold')} {message}"
        return f"{self._styled(f'{datetime.fromtimestamp(record.created):%H:%M:%S}', 'dim')} {message}"

    # ---- the block ----

    def following(self, on_load: OnLoad) -> OnLoad:
        """What to call when a version changes its state, which `on_load` is told, too."""

        def update(model: str, version: int, state: str) -> None:
            key, now_s = (model, version), self._now_s()
            if state == ModelState.LOADING.value:
                self._loads[key] = _Loaded(now_s, 0.0)
            elif key in self._loads and state == ModelState.READY.value:
                self._loads[key] = _Loaded(self._loads[key].began_s, now_s - self._loads[key].began_s)
            on_load(model, version, state)

        return update

    def note_failure(self, model: str, lines: Sequence[str]) -> None:
        """Why a model did not load, for the block."""
        self._findings.setdefault(model, []).extend(lines)

    def show_failed(self, entries: Sequence[IndexEntry]) -> None:
        """The models of a start that failed."""
        log_bare("\n".join(["", *self._models(entries), ""]), logging.ERROR)

    def show_started(
        self, server: InferenceServer, addresses: Sequence[Listening], http: HttpSettings | None, *, console: bool
    ) -> None:
        """The whole block; from now on the log shows what happens.

        Args:
            console: there is one on the metrics port.
        """
        scheme = "http" if http is None or http.service.tls is None else "https"
        log_bare("\n".join(self.block(server, addresses, scheme, console=console)))
        self._started = True

    def block(
        self, server: InferenceServer, addresses: Sequence[Listening], scheme: str, *, console: bool = False
    ) -> Iterator[str]:
        """Its lines."""
        yield ""
        yield f"{self._styled(f'Trireme {VERSION}', 'bold')} is serving"
        http = ""
        for name, host, port in sorted(
            ((_TITLES.get(title, title), host, port) for title, host, port in addresses), key=_order
        ):
            place = f"{_EVERYWHERE.get(host, f'[{host}]' if ':' in host else host)}:{port}"
            url = {"HTTP": f"{scheme}://{place}", "Metrics": f"http://{place}/metrics"}.get(name, place)
            http = http or (url if name == "HTTP" else "")
            note = "  on all addresses" if host in _EVERYWHERE else ""
            yield f"  {name:<8} {self._styled(url, 'cyan')}{self._styled(note, 'dim')}"
            if name == "Metrics" and console:
                page = self._styled(f"http://{place}/console", "cyan")
                yield f"  {'Console':<8} {page}{self._styled('  in a browser', 'dim')}"
        yield ""
        yield from self._models(server.repository_index() if server.started else [])
        if http:
            yield ""
            yield "Try it:"
            yield f"  {_curl(server, http)}"
        yield ""
        yield self._styled("Ctrl-C ends it.", "dim")

    def _models(self, entries: Sequence[IndexEntry]) -> Iterator[str]:
        if not entries:
            yield self._styled("No models: put one into the repository, or make some with: trireme init", "yellow")
            return
        ready = [each for each in entries if each.state is ModelState.READY]
        others = [each for each in entries if each.state is not ModelState.READY]
        shown = [*others, *ready][:_MOST_MODELS]
        width = max(len(each.name) for each in shown)
        for entry in sorted(shown, key=lambda each: (each.name, each.version)):
            yield from self._model(entry, width)
        if len(entries) > len(shown):
            yield f"  and {len(entries) - len(shown)} more that are ready"

    def _model(self, entry: IndexEntry, width: int) -> Iterator[str]:
        version = f"version {entry.version}" if entry.version else ""
        loaded = self._loads.get((entry.name, int(entry.version or 0)))
        if entry.state is ModelState.READY:
            took = f"{loaded.took_s:6.2f} s" if loaded is not None else ""
            state = self._styled("ready", "green")
            yield f"  {entry.name:<{width}}  {version:<10} {state}  {self._styled(took, 'dim')}"
        elif entry.name in self._findings or entry.state is not None:
            yield f"  {entry.name:<{width}}  {version:<10} {self._styled('failed', 'red', 'bold')}"
            columns = min(shutil.get_terminal_size().columns, 120)
            for line in self._findings.get(entry.name, [entry.reason]):
                yield from textwrap.wrap(
                    line,
                    columns,
                    initial_indent="      ",
                    subsequent_indent="        ",
                    break_long_words=False,
                    break_on_hyphens=False,
                )
        else:
            yield f"  {entry.name:<{width}}  {version:<10} {self._styled('not loaded', 'dim')}"

    def _styled(self, text: str, *styles: str) -> str:
        if not (self._color and text):
            return text
        return f"\x1b[{';'.join(_STYLES[style] for style in styles)}m{text}\x1b[0m"


def _curl(server: InferenceServer, url: str) -> str:
    """A request to the ready model with the least to send; its metadata, if all want much, or want streams."""
    best: tuple[tuple[bool, int], str] | None = None
    first = ""
    for entry in server.repository_index(ready_only=True) if server.started else []:
        try:
            model = server.describe(entry.name)
        except TriremeError:  # unloaded meanwhile
            continue
        first = first or model.name
        if _answers_one_request(model):
            shapes = [(each.name, each.datatype.name, model.client_shape(each)) for each in model.config.input]
            inputs = sample_inputs(shapes)
            size = sum(len(each["data"]) for each in inputs)
            cost = any(-1 in each.dims for each in model.config.input), size  # of any size may not mean of one
            if size <= _MOST_SAMPLE_ELEMENTS and (best is None or cost < best[0]):
                body = json.dumps({"inputs": inputs}, separators=(",", ":")).replace("'", "'\\''")
                best = cost, f"curl {url}/v2/models/{model.name}/infer -d '{body}'"
    if best is not None:
        return best[1]
    return f"curl {url}/v2/models/{first}" if first else f"curl {url}/v2"


def _order(address: Listening) -> int:
    names = list(_TITLES.values())
    return names.index(address[0]) if address[0] in names else len(names)


def _answers_one_request(model: ModelDescription) -> bool:
    return not (model.config.decoupled or model.config.has_sequence_batching)


# ---- what to do about models that do not load ----


def tell_failures(
    options: ServerOptions,
    index: Sequence[IndexEntry],
    failures: Mapping[str, str],
    view: StartView | None,
    apps: ServedApps | None = None,
) -> None:
    """Say of each model that did not load what to do about it: in the block, or as a line of the log."""
    reasons = {each.name: each.reason for each in index if each.state is ModelState.UNAVAILABLE and each.reason}
    reasons = {**reasons, **failures}
    if not reasons:
        return
    from .findings import configuration_findings, load_findings

    found: dict[str, list] = {}
    with contextlib.suppress(OSError):
        found = {name: each for name, each in configuration_findings(options).items() if name in reasons}
    told = [finding for each in found.values() for finding in each]
    told += load_findings(options, reasons, found)
    for finding in told if apps is None else map(apps.told, told):
        if view is not None:
            view.note_failure(finding.model, list(finding.lines()))
        else:
            logger.info("%s: %s; to do: %s", finding.place, finding.text, finding.remedy)


def tell_remedy(text: str, view: StartView | None) -> None:
    """Say what to do about an error of a start."""
    from .remedies import remedy

    if view is None:
        logger.info("to do: %s", remedy(text))
    else:
        log_bare(f"  to do: {remedy(text)}", logging.ERROR)
