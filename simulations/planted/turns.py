"""Bugs of the way messages go, planted on purpose (`bugs`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...actors.actor import Actor, Turn


def _deferred_for_ever(original: Any, turn: Turn, recipient: Any) -> None:
    """A recipient that is deferred has no next turn."""


def _mail_from_behind(original: Any, actor: Actor[Any]) -> None:
    """Three messages of one turn are received from the newest on."""
    if len(actor.mailbox) > 2:
        actor.mailbox.messages.reverse()
    original(actor)


def _posted_too_late(original: Any, actor: Actor[Any]) -> None:
    """What is sent to an actor during its own turn is never received, nor what comes later."""
    actor.posted = True
    original(actor)
    actor.posted = False


def _cut_mail(original: Any, actor: Actor[Any]) -> None:
    """The fifth message of a turn is never received, nor what comes after it: only the first one in a mailbox posts."""
    messages = actor.mailbox.messages
    left = [messages.pop() for _ in range(len(messages) - 4)]
    original(actor)
    actor.mailbox.messages.extendleft(left)


def _lost_flush(original: Any, turn: Turn, connection: Any) -> None:
    """Of several connections in a turn one is flushed."""
    if not turn._unflushed:
        original(turn, connection)


def _one_call_a_turn(original: Any, turn: Turn) -> None:
    """Of what threads have asked for in one pass of the loop, the first is done, and the rest at the next call."""
    later = list(turn._calls)[1:]
    while len(turn._calls) > 1:
        turn._calls.pop()
    original(turn)
    turn._calls.extendleft(reversed(later))


def _calls_from_behind(original: Any, turn: Turn) -> None:
    """What threads have asked for last is done first."""
    turn._calls.reverse()
    original(turn)


TURN_BUGS: Mapping[str, tuple[type, str, Callable[..., Any]]] = {
    "deferred-for-ever": (Turn, "defer", _deferred_for_ever),
    "mail-from-behind": (Actor, "take_turn", _mail_from_behind),
    "posted-too-late": (Actor, "take_turn", _posted_too_late),
    "cut-mail": (Actor, "take_turn", _cut_mail),
    "lost-flush": (Turn, "flush_later", _lost_flush),
    "one-call-a-turn": (Turn, "_make_calls", _one_call_a_turn),
    "calls-from-behind": (Turn, "_make_calls", _calls_from_behind),
}
