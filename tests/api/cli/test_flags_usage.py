"""The text of ``trireme serve --help``."""

from __future__ import annotations

from trireme.api.cli.flags import Flag, Group, usage_text
from trireme.api.cli.values import BOOLEAN


def test_what_a_flag_for_something_missing_does_is_said() -> None:
    front = Flag("front", BOOLEAN, "Whether to serve it.", False, missing="it is not there", idle=False)
    tuning = Flag("tuning", BOOLEAN, "How.", False, missing="it is not there", tolerated=True)
    text = usage_text("c", [Group("G", front, tuning)])
    assert "Whether to serve it. Refused in this version: it is not there." in text
    assert "How. No effect in this version: it is not there." in text
