"""Flags that are deprecated."""

from __future__ import annotations

import pytest

from trireme.api.cli.command import ServeCommand, build_command
from trireme.api.cli.flag_table import FLAGS
from trireme.api.cli.flags import parse


def command(*words: str) -> ServeCommand:
    return build_command(parse(words, FLAGS), {})


def test_deprecated_flags_name_their_replacement() -> None:
    assert command("--trace-rate=5").deprecations == (
        (
            "Warning: '--trace-rate' has been deprecated and will be removed in future releases. Please use "
            "'--trace-config rate=<rate value>' instead."
        ),
    )


STRICT = "Warning: '--strict-model-config' has been deprecated! Please use '--disable-auto-complete-config' instead."
OVERRIDING = (
    "Warning: Overriding deprecated '--strict-model-config' from False to True in favor of "
    "'--disable-auto-complete-config'!"
)


@pytest.mark.parametrize(
    ("words", "lines", "auto_complete"),
    [
        ("--strict-model-config=true", [STRICT], False),
        ("--strict-model-config=false", [STRICT], True),
        ("--strict-model-config=true --strict-model-config=false", [STRICT, STRICT], True),
        ("--strict-model-config=true --disable-auto-complete-config", [STRICT], False),
        ("--strict-model-config=false --disable-auto-complete-config", [STRICT, OVERRIDING], False),
        ("--disable-auto-complete-config", [], False),
    ],
)
def test_strict_model_config_warns_as_triton_does(words: str, lines: list[str], auto_complete: bool) -> None:
    """The lines of 2.51."""
    made = command(*words.split())
    assert (list(made.deprecations), made.server.auto_complete) == (lines, auto_complete)
