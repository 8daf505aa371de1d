"""Descriptions of the server and its models: immutable values for `api/` to print."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass

from .config.chat import ChatTemplate
from .config.model import ModelConfig, ModelInput, ModelOutput

EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
"""Protocol extensions in the order in which server metadata lists them (docs/reference/http.md#server-metadata)."""


class ModelState(enum.Enum):
    """State of a model version in the repository index (docs/reference/http.md#repository-index)."""

    UNKNOWN = "UNKNOWN"
    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"


@dataclass(frozen=True, slots=True)
class ServerMetadata:
    name: str
    version: str
    extensions: tuple[str, ...] = EXTENSIONS


@dataclass(frozen=True, slots=True, eq=False)
class ModelDescription:
    """One ready model version, as it was when it was looked up. Compared by identity: who has one can be told whether
    it still holds.

    Attributes:
        versions: all ready versions, ascending, as metadata lists them.
        labels: labels by output name, for the outputs that have a label file.
        key_header: in lower case, of what is a route that is sticky by a header: whose value goes with each request
            (`Routing`). Empty for everything else.
        chat: how the messages of a chat become a prompt; None if the model's files do not say.
        adapters: see `LoadedModel`; a route has none.
    """

    name: str
    version: int
    versions: tuple[int, ...]
    config: ModelConfig
    labels: Mapping[str, tuple[str, ...]]
    key_header: str = ""
    chat: ChatTemplate | None = None
    adapters: tuple[str, ...] = ()

    def client_shape(self, tensor: ModelInput | ModelOutput) -> tuple[int, ...]:
        """A tensor's shape as metadata tells it: the batch dimension, if there is one, is -1 in front."""
        return (-1, *tensor.dims) if self.config.max_batch_size > 0 else tensor.dims


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One row of the repository index; empty `version`, `state` and `reason` are not printed."""

    name: str
    version: str = ""
    state: ModelState | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ModelActorStatistics:
    """`abandoned` counts the instances whose thread was given up because a batch hung; `restarts`, all rebirths.
    `queue_count` requests have waited in queues for `queue_ns` altogether."""

    name: str
    version: int
    state: ModelState
    reason: str
    instances_alive: int
    instances: int
    restarts: int
    abandoned: int
    inflight: int
    namespace: str = ""
    queue_count: int = 0
    queue_ns: int = 0


@dataclass(frozen=True, slots=True)
class ActorNode:
    """An actor, or a process, for people to look at, with those that it supervises.

    Attributes:
        kind: what it is, such as "scheduler".
        state: in the words of its table of states.
        detail: what it holds, or why it is not well; empty if there is nothing to say.
        restarts: how often it has died and was started again.
        mail: messages that wait in its mailbox, of which there may be `room`; infinity where each of them holds a
            share of the server's budget.
    """

    kind: str
    name: str
    state: str
    detail: str = ""
    restarts: int = 0
    mail: int = 0
    room: float = math.inf
    children: tuple[ActorNode, ...] = ()
