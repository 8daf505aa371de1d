"""An inference request as the engine sees it, whichever protocol it came by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .tensor import Buffer, Tensor

if TYPE_CHECKING:
    from .access.callers import Caller
    from .memory.regions import RegionSlice
    from .tracing.record import Trace

LATEST = -1
"""Version of a request that names none: the greatest version that is ready."""

CallingInstance = tuple[tuple[str, int], str]

ParameterValue = bool | int | float | str


@dataclass(slots=True, eq=False)
class RequestForm:
    """What requests have in common that were read from the same head: everything but their ids, those of their
    sequences, and their inputs' bytes. Who reads requests gives it to them, so that what has been found out about one
    need not be found out again.

    Attributes:
        passed: what `engine.validation` has found.
        logged: where `engine.logs.request_recorder` counts them.
        sent: what a gateway sends before the inputs' bytes (`api.grpc.replica.requests`).
    """

    passed: Any = None
    logged: Any = None
    sent: Any = None


@dataclass(slots=True, eq=False)
class ResponseForm:
    """What responses have in common that were read from the same head, and have as many bytes: everything but their ids
    and their outputs' bytes. As `RequestForm`, for who encodes them.

    Attributes:
        encoded: what `api.http.infer.response` has prepared.
    """

    encoded: Any = None


@dataclass(slots=True)
class Routing:
    """Of a request for a route.

    Attributes:
        key: the header that its route is sticky by; empty if there is none.
        choice: where it goes (`RouteChoice`); None until it is admitted.
    """

    key: str = ""
    choice: Any = None


@dataclass(slots=True)
class InferenceRequest:
    """What a client asks for. Decoded by `api/`, checked against the model by `engine.validation`.

    Attributes:
        model_version: which version; `LATEST` for the greatest ready one.
        id: the client's own name for the request; empty if it gave none.
        inputs: tensors in the order received (duplicates are found by validation).
        requested_outputs: names; empty means all outputs.
        parameters: what the protocol did not consume, handed to the model.
        priority: 1 is highest; 0, or more than the model's levels, means the model's default.
        timeout_us: queue timeout asked for, microseconds; 0 for none.
        correlation_id: sequence, as an integer or a string; 0 or "" for none.
        form: of requests from a head that is remembered; None if it is not. Nothing that it stands for may be changed.
        raw_input: the whole body of a request that names no tensors
            (docs/reference/http-inference.md#raw-binary-requests); `inputs` is then empty.
        trace: what is noted of it; None for nothing.
        caller: the client that asks, for its limits; None if there are no access rules.
        callers: instances that wait for its answer because it was made by a model, each as ((model name, version),
            instance name).
        in_regions: an input is still in shared memory (`RegionTensor`).
        output_places: where in shared memory the client wants outputs, by name; None for nowhere. An instance may put
            them there (`RegionTensor`); who encodes the answer puts there what it did not.
        routing: None for a request for a model.
        protocol: by which a client has sent it: `http`, `grpc`, or `stream`; empty for a request of the server's own.
        passed_on: headers of the client's that go with it to the server that executes it, names in lower case; for a
            gateway (`Facade.passes_on`).
        message: the ``ModelInferRequest`` as it came, if it may go on as it is; for a gateway, else None.
    """

    model_name: str
    model_version: int = LATEST
    id: str = ""
    inputs: list[Tensor] = field(default_factory=list)
    requested_outputs: tuple[str, ...] = ()
    parameters: dict[str, ParameterValue] = field(default_factory=dict)
    priority: int = 0
    timeout_us: int = 0
    correlation_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    form: RequestForm | None = None
    raw_input: Buffer | None = None
    trace: Trace | None = None
    callers: tuple[CallingInstance, ...] = ()
    caller: Caller | None = None
    in_regions: bool = False
    output_places: Mapping[str, RegionSlice] | None = None
    routing: Routing | None = None
    passed_on: tuple[tuple[str, str], ...] = ()
    protocol: str = ""
    message: Buffer | None = None


# -- An inference response as the engine sees it, whichever protocol it goes out by


@dataclass(slots=True)
class InferenceResponse:
    """One answer of a model. Outputs stand in the order in which the model produced them, requested ones only.

    Attributes:
        form: of responses from a head that is remembered; None if it is not.
        message: the ``ModelInferResponse`` that it was read from, if it may go on as it is; else None.
    """

    model_name: str
    model_version: int
    id: str
    outputs: list[Tensor]
    parameters: dict[str, ParameterValue] = field(default_factory=dict)
    form: ResponseForm | None = None
    message: Buffer | None = None

    def output(self, name: str) -> Tensor:
        """The output called `name`.

        Raises:
            KeyError: the response has no such output.
        """
        for tensor in self.outputs:
            if tensor.name == name:
                return tensor
        raise KeyError(name)
