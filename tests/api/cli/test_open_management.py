"""The line that says which calls that change the server are open to the network, and how to restrict them."""

from __future__ import annotations

import pytest

from trireme.api.cli.command import build_command
from trireme.api.cli.flag_table import FLAGS
from trireme.api.cli.flags import parse


def warnings(*words: str) -> tuple[str, ...]:
    return tuple(build_command(parse(words, FLAGS), {}).warnings)


OPEN = (
    "clients that reach {} can {}: restrict this by --access-config, by --http-address and --grpc-address, or by "
    "--http-restricted-api and --grpc-restricted-protocol ({})"
)
BOTH = "HTTP at 0.0.0.0:8000 or gRPC at 0.0.0.0:8001"
LOAD = "load models, change what is traced, change what is logged"
CODE = LOAD.replace("models", "models, and with them code that this server runs")
SETTINGS = OPEN.format(BOTH, "change what is traced, change what is logged", "trace, logging")


def opened(place: str, doing: str = CODE, categories: str = "model-repository, trace, logging") -> str:
    text = OPEN.format(place, doing, categories)
    return text + "; code by --allow-code-upload=false" if "code that" in doing else text


@pytest.mark.parametrize(
    ("words", "warned"),
    [
        ((), opened(BOTH)),
        (("--allow-code-upload=false",), opened(BOTH, LOAD)),
        (("--http-address=127.0.0.1",), opened("gRPC at 0.0.0.0:8001")),
        (("--http-address=::1", "--grpc-address=10.0.0.1"), opened("gRPC at 10.0.0.1:8001")),
        (("--allow-grpc=false", "--http-port=80"), opened("HTTP at 0.0.0.0:80")),
        (("--http-address=localhost", "--grpc-address=127.0.0.2"), None),
        (("--access-config=rules.toml",), None),
        (("--allow-grpc=false", "--http-restricted-api=logging,trace,model-repository:k=v"), None),
        (
            ("--allow-grpc=false", "--http-restricted-api=model-repository:k=v", "--allow-client-shm=true"),
            opened(
                "HTTP at 0.0.0.0:8000",
                "register shared memory, change what is traced, change what is logged",
                "shared-memory, trace, logging",
            ),
        ),
        (
            ("--http-restricted-api=logging:k=v", "--allow-grpc=0"),
            opened("HTTP at 0.0.0.0:8000", CODE.removesuffix(", change what is logged"), "model-repository, trace"),
        ),
    ],
)
def test_calls_by_which_any_client_may_change_the_server_are_warned_of(
    words: tuple[str, ...], warned: str | None
) -> None:
    """In one line."""
    assert warnings("--model-control-mode=explicit", *words) == (() if warned is None else (warned,))


def test_where_no_models_can_be_loaded_settings_are_warned_of() -> None:
    assert warnings() == (SETTINGS,)
