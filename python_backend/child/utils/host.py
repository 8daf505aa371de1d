"""What the utilities need from the host of a model: a process of its own, or a thread of the server.

Every method may be called from any thread. What the server refuses is raised as `HostError` with the server's own text;
the utilities add the prefixes that users know.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from .tensor import Tensor
from .trace import InferenceTrace

if TYPE_CHECKING:
    from .response import InferenceResponse


class ModelRequest(Protocol):
    """What to send to another model: see `request.InferenceRequest`.

    Attributes:
        _model_version: -1: the server chooses.
        _requested: empty: all.
        _parameters: JSON.
    """

    _model_name: str
    _model_version: int
    _inputs: list[Tensor]
    _requested: list[str]
    _request_id: str
    _correlation_id: int | str
    _flags: int
    _timeout: int
    _parameters: str
    _trace: InferenceTrace


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

    def infer(self, request: ModelRequest, decoupled: bool) -> Responses:
        """Ask another model (BLS); the request is on its way when this returns.

        Args:
            request: made by user code.
            decoupled: allow any number of responses; otherwise there is exactly one, and a decoupled model is refused.
        """
        ...

    def load_model(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        """Load a model, with the configuration (JSON) and the files ("file:<path>") if there are any."""
        ...

    def unload_model(self, name: str, unload_dependents: bool) -> None: ...

    def is_model_ready(self, name: str, version: str) -> bool: ...

    def log(self, level: str, filename: str, line: int, message: str) -> None:
        """Write to the server's log; `level` is INFO, WARNING, ERROR or VERBOSE."""
        ...

    def free_memory(self) -> int:
        """Bytes of memory that is shared with the server and free."""
        ...

    def create_family(self, name: str, description: str, kind: str) -> int:
        """The number of the metric family; `kind` is counter, gauge or histogram."""
        ...

    def delete_family(self, family: int) -> None: ...

    def create_metric(self, family: int, labels: Mapping[str, str], buckets: Sequence[float] | None) -> int:
        """The number of the metric with these labels; the upper bounds of buckets for a histogram only."""
        ...

    def delete_metric(self, metric: int) -> None: ...

    def metric_increment(self, metric: int, value: float) -> None: ...

    def metric_set(self, metric: int, value: float) -> None: ...

    def metric_observe(self, metric: int, value: float) -> None: ...

    def metric_value(self, metric: int) -> float: ...
