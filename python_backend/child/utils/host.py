"""What the utilities need from the host of a model: a process of its own, or a thread of the server.

Every method may be called from any thread. What the server refuses is raised as `HostError` with the server's own text;
the utilities add the prefixes that users know.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .response import InferenceResponse


class Responses(Protocol):
    """What another model answers. Each step waits for the next response, until there are no more.

    An error that the model answered with is a response with an error. A request that the server did not accept
    (unknown model, bad input, ...) raises `HostError` at the first step. An object that is dropped before its end does
    not cancel anything: what still comes is discarded.
    """

    def __next__(self) -> InferenceResponse:
        """Blocks, without holding the interpreter's lock."""
        ...

    def __anext__(self) -> Awaitable[InferenceResponse]:
        """The same for a coroutine of whatever event loop the host runs coroutines on."""
        ...

    def cancel(self) -> None:
        """Give up the request if it is not over. Does not wait. May be called repeatedly."""
        ...


class Host(Protocol):
    """The server, as one model instance sees it.

    Attributes:
        instance_name: ``digits_0``, as error texts name it.
        decoupled: whether the model's transaction policy is decoupled.
    """

    instance_name: str
    decoupled: bool

    def send(self, key: int, response: InferenceResponse | None, flags: int) -> None:
        """Answer the request `key`. Whether it may be answered was checked before.

        Args:
            key: what `request.incoming` was given.
            response: None only with the final flag.
            flags: 0, or 1 (TRITONSERVER_RESPONSE_COMPLETE_FINAL) for the request's last.

        May block while the client is slow. An answer to a request that is cancelled or gone is dropped.

        Raises:
            HostError: the answer cannot be delivered, because the server is gone or a tensor cannot be encoded.
        """
        ...

    def abandon(self, key: int) -> None:
        """Answer the request `key`, whose senders are all gone, with the error `sender.LOST`.

        Called by destructors: at any moment, in any thread, even within another method of the host. So it must neither
        block nor take a lock: it notes the key (a deque's ``append``) and leaves the answer to a later moment.
        """
        ...

    def is_cancelled(self, key: int) -> bool:
        """Whether the request `key` was cancelled; the last known state for one that is over."""
        ...

    def infer(self, request: Any, decoupled: bool) -> Responses:
        """Ask another model (BLS); the request is on its way when this returns.

        Args:
            request: an `InferenceRequest` that user code has made.
            decoupled: allow any number of responses; otherwise there is exactly one, and a decoupled model is refused.
        """
        ...

    def ask(self, method: str, *arguments: Any) -> Any:
        """Ask the server, and wait for its answer. What may be asked:

        ``load_model`` (name, configuration as JSON, contents by "file:<path>"), ``unload_model`` (name, whether its
        dependents, too), ``is_model_ready`` (name, version); ``create_family`` (name, description, ``counter``,
        ``gauge`` or ``histogram``) and ``create_metric`` (family, labels, for a histogram the upper bounds of its
        buckets, else None), which give numbers; with such a number ``delete_family``, ``delete_metric``,
        ``metric_increment``, ``metric_set`` and ``metric_observe`` (and a value), ``metric_value``.
        """
        ...

    def log(self, level: str, filename: str, line: int, message: str) -> None:
        """Write to the server's log; `level` is INFO, WARNING, ERROR or VERBOSE."""
        ...

    def free_memory(self) -> int:
        """Bytes of memory that is shared with the server and free."""
        ...
