"""Tables look like Triton's (docs/reference/logs.md)."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

from counted_models import CONFIG, ENSEMBLE, Counter, counted_server

from trireme.api.cli.tables import keepalive_table, startup_tables, table
from trireme.api.http2.limits import KeepaliveOptions
from trireme.engine.options import ControlMode
from trireme.engine.scheduling.rate_limiter import ExplicitResource


def rows(text: str) -> list[list[str]]:
    """The cells below the header."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert table(("Model", "Version", "Status"), [("m", "1", "READY"), ("longer name", "12", "UNAVAILABLE: why")]) == (
        "+-------------+---------+------------------+\n"
        "| Model       | Version | Status           |\n"
        "+-------------+---------+------------------+\n"
        "| m           | 1       | READY            |\n"
        "| longer name | 12      | UNAVAILABLE: why |\n"
        "+-------------+---------+------------------+\n"
    )


def test_a_cell_may_have_several_lines() -> None:
    assert table(("Model", "Status"), [("m", "UNAVAILABLE: no\n\nAt:\n  line 1\n"), ("n", ""), ("o", "READY")]) == (
        "+-------+-----------------+\n"
        "| Model | Status          |\n"
        "+-------+-----------------+\n"
        "| m     | UNAVAILABLE: no |\n"
        "|       |                 |\n"
        "|       | At:             |\n"
        "|       |   line 1        |\n"
        "| n     |                 |\n"
        "| o     | READY           |\n"
        "+-------+-----------------+\n"
    )


def test_a_table_without_rows() -> None:
    assert table(("Repository Agent", "Path"), ()) == (
        "+------------------+------+\n"
        "| Repository Agent | Path |\n"
        "+------------------+------+\n"
        "+------------------+------+\n"
    )


async def test_options_agents_and_backends_are_those_of_the_server(tmp_path: Path) -> None:
    """Ensembles have no backend; the repository agents are those that models have asked for."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "file").write_bytes(b"x")
    digest = hashlib.md5(b"x").hexdigest()
    agent = f'agents [{{ name: "checksum" parameters {{ key: "MD5:file" value: "{digest}" }} }}]'
    config = CONFIG + f"model_repository_agents {{ {agent} }}"
    limits = (ExplicitResource("gpu", 4), ExplicitResource("bus", 1, 2))
    models = {"m": config, "e": ENSEMBLE}
    async with counted_server(tmp_path, Counter(), models, rate_limit=True, rate_limit_resources=limits) as server:
        agents, backends, _models, options = startup_tables(server)
    assert rows(agents) == [["checksum", "trireme.engine.repository.agents:ChecksumAgent"]]
    assert [row[0] for row in rows(backends)] == ["counted"]
    settings = dict(rows(options))
    assert settings["rate_limit"] == "EXEC_COUNT"
    assert settings["rate_limit_resource[0]"] == '{"name":"gpu", "count":4 "device":-1}'
    assert settings["rate_limit_resource[1]"] == '{"name":"bus", "count":1 "device":2}'


async def test_models_that_wait_to_be_asked_for_are_not_shown(tmp_path: Path) -> None:
    """In explicit mode the start loads only the models that it names; of the others there is nothing to say yet."""
    options = {"model_control_mode": ControlMode.EXPLICIT, "startup_models": ("m",)}
    async with counted_server(tmp_path, Counter(), {"m": CONFIG, "n": CONFIG}, **options) as server:
        _agents, _backends, models, _options = startup_tables(server)
    assert rows(models) == [["m", "1", "READY"]]


def test_how_grpc_treats_silent_clients() -> None:
    """As the real server writes it; an age has no line where there is no limit, other times have gRPC's never."""
    usual = keepalive_table(KeepaliveOptions())
    assert usual.splitlines()[1] == "| GRPC KeepAlive Option                        | Value   |"
    assert rows(usual) == [
        ["keepalive_time_ms", "7200000"],
        ["keepalive_timeout_ms", "20000"],
        ["keepalive_permit_without_calls", "0"],
        ["http2_max_pings_without_data", "2"],
        ["http2_min_recv_ping_interval_without_data_ms", "300000"],
        ["http2_max_ping_strikes", "2"],
    ]
    unusual = rows(keepalive_table(KeepaliveOptions(time_s=math.inf, max_connection_age_s=1.5)))
    assert unusual[0] == ["keepalive_time_ms", "2147483647"]
    assert unusual[6:] == [["max_connection_age_ms", "1500"]]
