"""What a start shows: at a terminal, how the loading of models goes; and the tables that it logs of repository agents,
backends, models and options (docs/reference/logs.md)."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import zip_longest
from typing import TYPE_CHECKING

from ...engine.backends.interface import Backend
from ...engine.backends.registry import ENTRY_POINT_GROUP, OWN
from ...engine.description import IndexEntry, ModelState
from ...engine.options import ServerOptions
from ...engine.plugins import Plugins
from ...engine.repository.cloud.addresses import shown_address
from ..http2.limits import KeepaliveOptions
from ..logging import LineHandler, LogStreams
from .values import INT32_MAX

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from ...actors import InferenceServer

Row = Sequence[str]


def table(header: Row, rows: Sequence[Row]) -> str:
    """Columns as wide as their widest cell, framed, each line ended; a cell may have several lines."""
    rows = [line for row in rows for line in zip_longest(*(cell.splitlines() for cell in row), fillvalue="")]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    border = "+" + "+".join("-" * (width + 2) for width in widths) + "+"

    def line(row: Row) -> str:
        return "|" + "|".join(f" {cell:<{width}} " for cell, width in zip(row, widths, strict=True)) + "|"

    lines = [border, line(header), border, *map(line, rows), border]
    return "".join(f"{each}\n" for each in lines)


def startup_tables(server: InferenceServer, index: Sequence[IndexEntry] | None = None) -> Iterator[str]:
    """What is there, in Triton's order; of a server that could not start, only its options. `index` is shown in place
    of the present one."""
    if not server.started:
        yield table(("Option", "Value"), list(_options(server)))
        return
    entries = server.repository_index() if index is None else index
    yield table(("Repository Agent", "Path"), server.agents_used())
    yield table(("Backend", "Path", "Config"), _backends(server))
    yield table(
        ("Model", "Version", "Status"), [_model(entry) for entry in entries if _was_to_load(entry, server.options)]
    )
    yield table(("Option", "Value"), list(_options(server)))


def keepalive_table(options: KeepaliveOptions) -> str:
    """What the gRPC service does about clients that say nothing, times in milliseconds."""
    rows = {
        "keepalive_time_ms": _milliseconds(options.time_s),
        "keepalive_timeout_ms": _milliseconds(options.timeout_s),
        "keepalive_permit_without_calls": int(options.permit_without_calls),
        "http2_max_pings_without_data": options.max_pings_without_data,
        "http2_min_recv_ping_interval_without_data_ms": _milliseconds(options.min_recv_ping_interval_without_data_s),
        "http2_max_ping_strikes": options.max_ping_strikes,
    }
    if options.max_connection_age_s != math.inf:
        rows["max_connection_age_ms"] = _milliseconds(options.max_connection_age_s)
    if options.max_connection_age_grace_s != math.inf:
        rows["max_connection_age_grace_ms"] = _milliseconds(options.max_connection_age_grace_s)
    return table(("GRPC KeepAlive Option", "Value"), [(name, str(value)) for name, value in rows.items()])


def _milliseconds(seconds: float) -> int:
    return INT32_MAX if seconds == math.inf else round(seconds * 1000)


def _backends(server: InferenceServer) -> list[Row]:
    """The backends that models use."""
    options, backends = server.options, Plugins(ENTRY_POINT_GROUP, "backend", Backend, OWN)
    rows: list[Row] = []
    for name in server.backends_in_use():
        settings = {"auto-complete-config": str(options.auto_complete).lower(), **options.options_for_backend(name)}
        rows.append((name, backends.place(name), json.dumps({"cmdline": settings}, separators=(",", ":"))))
    return rows


def _was_to_load(entry: IndexEntry, options: ServerOptions) -> bool:
    """Whether the start has tried to load it; where clients load models the index also has some that wait for that."""
    by_name = options.model_control_mode.takes_orders and "*" not in options.startup_models
    return not by_name or entry.state is not None or entry.name in options.startup_models


def _model(entry: IndexEntry) -> Row:
    if entry.state is None:
        return entry.name, "-", "UNAVAILABLE: its configuration was refused, the log says why"
    return entry.name, entry.version or "-", ": ".join(filter(None, (entry.state.value, entry.reason)))


def _options(server: InferenceServer) -> Iterator[Row]:
    options = server.options
    metadata = server.metadata()
    yield "server_id", metadata.name
    yield "server_version", metadata.version
    yield "server_extensions", " ".join(metadata.extensions)
    for index, path in enumerate(options.model_repository):
        yield f"model_repository_path[{index}]", shown_address(str(path))
    yield "model_control_mode", f"MODE_{options.model_control_mode.name}"
    if options.model_control_mode.takes_orders:
        for index, name in enumerate(options.startup_models):
            yield f"startup_models_{index}", name
    yield "strict_model_config", str(int(not options.auto_complete))
    yield "model_config_name", options.model_config_name
    yield "rate_limit", "EXEC_COUNT" if options.rate_limit else "OFF"
    for index, resource in enumerate(options.rate_limit_resources):
        device = -1 if resource.device is None else resource.device
        yield (
            f"rate_limit_resource[{index}]",
            f'{{"name":"{resource.name}", "count":{resource.count} "device":{device}}}',
        )
    yield "pinned_memory_pool_byte_size", str(options.gpu_limits.pinned_pool_bytes)
    for gpu in server.gpus.found:
        limit = options.gpu_limits.device_pool_bytes.get(gpu.index)
        yield f"cuda_memory_pool_byte_size{{{gpu.index}}}", "no limit" if limit is None else str(limit)
    yield "min_supported_compute_capability", f"{options.min_compute_capability:.1f}"
    yield "strict_readiness", str(int(options.strict_readiness))
    yield "exit_timeout", str(int(options.exit_timeout_s))
    yield "cache_enabled", str(int(bool(options.cache_config)))


OnLoad = Callable[[str, int, str], None]


@contextlib.contextmanager
def load_display(log: LineHandler | None) -> Iterator[OnLoad]:
    """Show how loading goes, on stderr, if that is a terminal; gone when the block ends.

    Log lines that go to the same terminal appear above it. Without the package rich, or a log of our own, nothing else
    is shown.

    Yields:
        What to call with (model, version, state) when a version's state changes.
    """
    if log is None or not sys.stderr.isatty() or find_spec("rich") is None:
        yield lambda _model, _version, _state: None
        return
    from rich.console import Console  # only here: a service has no terminal, and needs nothing that draws
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.text import Text

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        board, console = LoadBoard(progress), progress.console

        def above(line: bytes) -> None:
            console.print(Text.from_ansi(line.decode(errors="replace").rstrip("\n")), soft_wrap=True)

        before = log.log
        if before is log.console:
            log.log = LogStreams(above if os.isatty(1) else before.ordinary, above)
        try:
            yield board.update
        finally:
            log.log = before


class LoadBoard:
    """A line for each version that is loading, under one that counts."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._loading: dict[tuple[str, int], TaskID] = {}
        self._ready = self._failed = 0
        self._total = progress.add_task("looking for models")

    def update(self, model: str, version: int, state: str) -> None:
        """A version's state is now `state`, the name of a `ModelState`."""
        line = self._loading.pop((model, version), None)
        if line is not None:
            self._progress.remove_task(line)
        if state == ModelState.LOADING.value:
            self._loading[model, version] = self._progress.add_task(f"  {model}, version {version}")
        elif line is not None:
            self._ready += state == ModelState.READY.value
            self._failed += state != ModelState.READY.value
        counts = f"loading models: {self._ready} ready, {len(self._loading)} loading"
        counts += f", {self._failed} failed" if self._failed else ""
        self._progress.update(self._total, description=counts, refresh=True)
