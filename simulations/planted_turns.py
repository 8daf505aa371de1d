"""Bugs of the way messages go, planted on purpose (`planted`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..actors.mailbox import Mailbox
from ..actors.turn import Turn


def _deferred_for_ever(original: Any, turn: Turn, recipient: Any) -> None:
    """A recipient that is deferred has no next turn."""


def _mail_from_behind(original: Any, mailbox: Mailbox[Any]) -> Any:
    """Three messages of one turn are received from the newest on."""
    messages = original(mailbox)
    if len(messages) > 2:
        messages.reverse()
    return messages


TURN_BUGS: Mapping[str, tuple[type, str, Callable[..., Any]]] = {
    "deferred-for-ever": (Turn, "defer", _deferred_for_ever),
    "mail-from-behind": (Mailbox, "receive_all", _mail_from_behind),
}
