"""The tree of a server's actors, for people to look at (`ActorNode`): who there is, in which state, how often it was
started again, and how much mail waits.

It is made when it is asked for, and bounded: of many models and instances the first are shown, and the rest counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from ..engine.description import ActorNode, IndexEntry
from .actor import Actor
from .door import Door
from .instances import Instances

MOST_MODELS = 200
MOST_INSTANCES = 64


class Versioned(Protocol):
    """What of a model actor it takes."""

    name: str
    version: int
    mailbox: Any

    @property
    def live_sequences(self) -> int: ...
    def index_entry(self) -> IndexEntry: ...


def model_node(
    model: Versioned, door: Door[Any] | None, batcher: Door[Any] | None, instances: Instances | None
) -> ActorNode:
    """A model version, its door, the scheduler behind that, its sequences' slots and its instances."""
    children = [] if door is None else [door.node()]
    if batcher is not None and batcher is not door:
        children.append(batcher.node())
    if model.live_sequences:
        children.append(ActorNode("slots", model.name, "serving", f"{model.live_sequences} live sequences"))
    restarts = 0
    if instances is not None:
        counts = instances.counts()
        restarts = counts.restarts
        children += instances.nodes(MOST_INSTANCES)
        if counts.expected > MOST_INSTANCES:
            children.append(ActorNode("instances", f"and {counts.expected - MOST_INSTANCES} more", ""))
    entry, mail = model.index_entry(), model.mailbox.statistics()
    state = "UNKNOWN" if entry.state is None else entry.state.value
    box = mail.current_buffer_used, mail.max_buffer_size
    return ActorNode(
        "model", f"{model.name} version {model.version}", state, entry.reason, restarts, *box, tuple(children)
    )


class HasNode(Protocol):
    """A model actor."""

    def node(self) -> ActorNode: ...


def server_tree(
    name: str, state: str, detail: str, repository: Actor[Any], models: Sequence[HasNode], others: Iterable[Actor[Any]]
) -> ActorNode:
    """The whole tree.

    Args:
        others: actors beside the repository.
    """
    versions = [model.node() for model in models[:MOST_MODELS]]
    if len(models) > MOST_MODELS:
        versions.append(ActorNode("models", f"and {len(models) - MOST_MODELS} more", ""))
    children = [actor_node("rate limiter", each) for each in others]
    children.append(actor_node("repository", repository, tuple(versions)))
    return ActorNode("server", name, state, detail, children=tuple(children))


def actor_node(kind: str, actor: Actor[Any], children: tuple[ActorNode, ...] = ()) -> ActorNode:
    """An actor that is the only one of its kind."""
    mail, state = actor.mailbox.statistics(), "serving" if actor.alive else "ended"
    return ActorNode(kind, "", state, "", 0, mail.current_buffer_used, mail.max_buffer_size, children)
