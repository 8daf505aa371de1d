"""What front ends need of a server (`Facade`), which may be in their process (`InferenceServer`) or in another one.

What a request needs is asked at once; everything else is `Management`, which may take a while. It gives plain values,
with the members that the protocols show, in the order of docs/reference/http.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

from ..engine.admission.client_bytes import ClientAccounts
from ..engine.description import ModelDescription
from ..engine.errors import RefusalReason, TriremeError
from ..engine.memory.regions import RegionKind, Regions
from ..engine.metrics.refusals import RefusalCounts
from ..engine.options import ServerOptions
from ..engine.request import LATEST, InferenceRequest
from ..engine.tensor import Buffer
from ..engine.tracing import Tracer
from .access_gate import AccessGate
from .budget import Lease
from .offload import Offload
from .reply import Reply
from .socket_readiness import Readiness

TraceChanges = Mapping[str, int | None]
"""What of a trace setting is to be changed (`Tracer.change`), the level as a number; None clears."""


class Management(ABC):
    """Everything but inference. Errors are those of `InferenceServer`, unless they are told here."""

    @abstractmethod
    async def live(self) -> bool: ...

    @abstractmethod
    async def ready(self) -> bool:
        """See `InferenceServer.check_ready`."""

    @abstractmethod
    async def model_ready(self, name: str, version: int = LATEST) -> bool:
        """See `InferenceServer.check_model_ready`."""

    @abstractmethod
    async def server_metadata(self) -> dict[str, Any]: ...

    @abstractmethod
    async def model_statistics(self, name: str = "", version: int = LATEST) -> dict[str, Any]:
        """A record for each version (docs/reference/http.md#statistics); of all models, if none is named."""

    @abstractmethod
    async def repository_index(self, ready_only: bool = False) -> list[dict[str, str]]:
        """A row for each version, of what the repositories hold now; what is not known of it is left out."""

    @abstractmethod
    async def load_model(self, name: str, parameters: Mapping[str, str | Buffer]) -> None: ...

    @abstractmethod
    async def want(self, name: str, timeout_us: int = 0) -> None:
        """Wait until a model that is loaded on demand is in memory (`ColdModelError`), where it stays for a moment.

        Args:
            timeout_us: how long at most, microseconds; 0 for no limit.
        """

    @abstractmethod
    async def unload_model(self, name: str, unload_dependents: bool = False) -> None: ...

    @abstractmethod
    async def route_status(self, name: str = "") -> list[dict[str, Any]]:
        """One route, or without a name all of them: each as its document has it, with `name` and `state`."""

    @abstractmethod
    async def set_route(self, name: str, document: Mapping[str, Any]) -> None: ...

    @abstractmethod
    async def remove_route(self, name: str) -> None: ...

    @abstractmethod
    async def stop_rollout(self, name: str) -> None: ...

    @abstractmethod
    async def region_status(self, kind: RegionKind, name: str = "") -> list[dict[str, Any]]:
        """One region of shared memory, or without a name all of a kind; here and below see `Regions`."""

    @abstractmethod
    async def register_system_region(self, name: str, key: str, offset: int, byte_size: int) -> None: ...

    @abstractmethod
    async def register_cuda_region(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None: ...

    @abstractmethod
    async def unregister_region(self, kind: RegionKind, name: str = "") -> None: ...

    @abstractmethod
    async def trace_settings(
        self, model_name: str = "", changes: TraceChanges | None = None
    ) -> list[tuple[str, str | list[str]]]:
        """The settings that hold for a model, or for the server, in the order of the protocols; a name may come twice.

        Args:
            changes: made before; see `Tracer.change`.
        """

    @abstractmethod
    async def custom_metric(self, family: str) -> list[tuple[dict[str, str], float]]:
        """The series of a family that a model has made: labels and value of each; see `CustomMetrics.values`."""

    @abstractmethod
    async def fleet_report(self, since: int = 0) -> dict[str, Any]:
        """What gateways are to know of this server (`fleet_report`).

        Args:
            since: the generation that who asks knows; 0 for none.
        """


class Facade(Protocol):
    """A server, as front ends know it.

    Attributes:
        exiting: only running sequences may go on.
        options: of those, `max_inflight_bytes` and `tensor_limits` say what a request may be like.
        offload: for work on a request that takes long.
        client_accounts: of bytes in memory for clients of this process.
        tracer: decides which requests are noted.
        refusals: counts what is refused that is for no model.
        access: decides who may make which call; None if anyone may.
        shared_memory: where requests find the parts of regions that they name.
        passes_on: requests are executed by other servers, and get `InferenceRequest.passed_on`.
    """

    @property
    def exiting(self) -> bool: ...
    @property
    def passes_on(self) -> bool: ...
    @property
    def options(self) -> ServerOptions: ...
    @property
    def offload(self) -> Offload: ...
    @property
    def readiness(self) -> Readiness: ...
    @property
    def client_accounts(self) -> ClientAccounts: ...
    @property
    def tracer(self) -> Tracer: ...
    @property
    def shared_memory(self) -> Regions: ...
    @property
    def refusals(self) -> RefusalCounts: ...
    @property
    def management(self) -> Management: ...
    @property
    def access(self) -> AccessGate | None: ...

    def describe(self, name: str, version: int = LATEST) -> ModelDescription:
        """See `InferenceServer.describe`."""
        ...

    def with_adapter(self, adapter: str) -> list[ModelDescription]:
        """The ready models that have an adapter of this name."""
        ...

    def lease(self, name: str = "", version: int = LATEST, client: str = "") -> Lease:
        """See `InferenceServer.lease`."""
        ...

    def note_refusal(self, why: TriremeError | RefusalReason, name: str = "", version: int | None = LATEST) -> None:
        """See `Admission.note_refusal`."""
        ...

    def check_room(self, name: str, version: int = LATEST) -> None:
        """See `Admission.check_room`."""
        ...

    def admit_nowait(
        self, request: InferenceRequest, *, lease: Lease | None = None, model: ModelDescription | None = None
    ) -> Reply | None:
        """See `Admission.admit_nowait`."""
        ...

    async def admit(
        self, request: InferenceRequest, lease: Lease | None = None, model: ModelDescription | None = None
    ) -> Reply:
        """See `Admission.admit`."""
        ...
