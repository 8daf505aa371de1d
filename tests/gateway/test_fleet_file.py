"""The file of a fleet: what it says, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from documents import ROOT, blocks

from trireme.engine.errors import InvalidArgumentError
from trireme.gateway.fleet_file import ConnectionSettings, FleetFile, ReplicaEntry, fleet_text, load_fleet, read_fleet

WHOLE = """
[gateway]
report-interval-ms = 50
retry-budget = 0.2
wait-secs = 2
sequence-idle-secs = 30

[connection]
ca-file = "ca.pem"
token-file = "/keys/token"

[replicas.a]
address = "10.0.0.1:8001"

[replicas.b-2]
address = "[::1]:8001"
weight = 0.5
console = "https://b/console"
"""


def test_what_it_says() -> None:
    file = read_fleet(WHOLE, "/etc/fleet.toml")
    assert file.report_interval_ms == 50
    assert (file.settings.retry_budget, file.settings.wait_s, file.settings.sequence_idle_s) == (0.2, 2, 30)
    assert file.connection == ConnectionSettings(True, Path("/etc/ca.pem"), None, None, Path("/keys/token"))
    assert file.replicas == {
        "a": ReplicaEntry("10.0.0.1:8001"),
        "b-2": ReplicaEntry("[::1]:8001", 0.5, "https://b/console"),
    }


def test_the_files_of_the_documentation() -> None:
    """The small one, the one with all settings, and the one that names a Service."""
    files = [read_fleet(text, "/etc/fleet.toml") for text in blocks(ROOT / "docs" / "gateway.md", "toml")]
    assert [sorted(file.replicas) for file in files] == [["a", "b"], ["a", "b"], []]
    defaults, described, kubernetes = files
    assert described.settings == defaults.settings
    assert described.report_interval_ms == defaults.report_interval_ms
    assert described.connection.token_file == Path("/etc/token")
    assert described.replicas["b"] == ReplicaEntry("10.0.0.2:8001", 2.0, "http://10.0.0.2:8002/console")
    assert kubernetes.kubernetes is not None
    assert (kubernetes.kubernetes.service, kubernetes.kubernetes.weights) == ("trireme-replicas", {"trireme-0": 2.0})


def test_a_fleet_may_have_no_replicas() -> None:
    """They may come later."""
    file = read_fleet("", "fleet.toml")
    assert file.replicas == {}
    assert file.connection == ConnectionSettings()


def test_a_token_alone_is_no_encryption() -> None:
    assert not read_fleet('[connection]\ntoken-file = "t"', "f").connection.tls
    assert read_fleet("[connection]\ntls = true", "f").connection.tls


REPLICA = '[replicas.a]\naddress = "h:1"\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[gatway]", "f:1: gatway: found an unknown key, expected one of connection, gateway, kubernetes, replicas"),
        (
            f'{REPLICA}console = "javascript:1"',
            "f:3: replicas.a.console: found 'javascript:1', expected an address that",
        ),
        ("[gateway]\nretry-budgets = 1", "f:2: gateway.retry-budgets: found an unknown key"),
        ("[gateway]\nretry-budget = 1.5", "f:2: gateway.retry-budget: found 1.5, expected a number from 0 to 1"),
        (
            "[gateway]\nreport-interval-ms = 1",
            "f:2: gateway.report-interval-ms: found 1, expected milliseconds",
        ),
        ("[gateway]\nreport-interval-ms = 1.5", "f:2: gateway.report-interval-ms: found 1.5, expected a whole number"),
        ("[replicas.a]", "f:1: replicas.a: found no address, expected address = host:port of its gRPC service"),
        ('[replicas.a]\naddress = "h"', "f:2: replicas.a.address: found 'h', expected host:port"),
        ('[replicas.a]\naddress = "h:0"', "f:2: replicas.a.address: found 'h:0', expected host:port"),
        ('[replicas.a]\naddress = "http://h:1"', "f:2: replicas.a.address: found 'http://h:1', expected host:port"),
        (f"{REPLICA}weight = 0", "f:3: replicas.a.weight: found 0, expected a number greater than 0"),
        (f"{REPLICA}weight = 1e6", "f:3: replicas.a.weight: found 1000000.0, expected a number up to 1000"),
        (f"{REPLICA}adress = 1", "did you mean address?"),
        (f'{REPLICA}[replicas.b]\naddress = "h:1"', "f:4: replicas.b.address: found that of a, too, expected an"),
        ('[replicas."a b"]\naddress = "h:1"', "found the name 'a b', expected letters, digits"),
        ('replicas = "a"', "f:1: replicas: found 'a', expected a table of tables"),
        ('[connection]\nkey-file = "k"', "found one of certificate-file and key-file, expected both or neither"),
        ('[connection]\ntls = false\nca-file = "c"', "f:2: connection.tls: found false, expected true, or nothing"),
        ("[replicas.a\n", "f: not valid TOML"),
    ],
)
def test_what_is_refused(text: str, expected: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        read_fleet(text, "f")
    assert expected in refused.value.message


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="No such file"):
        load_fleet(tmp_path / "fleet.toml")


def test_what_is_written_is_read_again() -> None:
    connection = ConnectionSettings(True, Path('/etc/ä "b".pem'), token_file=Path("/etc/token"))
    addresses = {"a.b": "10.0.0.1:8001", "c": "[::1]:8001"}
    read = read_fleet(fleet_text(addresses, connection), "/tmp/fleet.toml")
    assert read.connection == connection
    assert {name: entry.address for name, entry in read.replicas.items()} == addresses
    assert read_fleet(fleet_text({}, ConnectionSettings()), "/tmp/fleet.toml") == FleetFile()
