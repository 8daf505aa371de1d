"""Inference requests on their way from a front end to the engine (`kinds.ADMIT`).

A spec (`slots`) is ``[model, version, description, requested outputs, inputs, caller, protocol]``: the caller's number,
0 if there are no access rules, and the index of the protocol in `PROTOCOLS`. An input is ``[name, datatype, shape,
bytes]``, and in shared memory ``[..., region, offset]``. What few requests have stands in the extras, a dictionary; so
does where inputs begin that were received straight into a segment (`arena`).

The front end may be hostile, so the engine takes nothing for granted: what is read is a request that a client could
have sent, or a `LinkError`. Tensors are views on the payload. Where that lies in a segment, the front end can still
change it: elements of fixed size may be any bits, but texts (BYTES), of which the lengths are checked, are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..engine.access.callers import Caller
from ..engine.datatypes import BYTES
from ..engine.description import ModelDescription
from ..engine.errors import TriremeError
from ..engine.memory.regions import Regions, RegionSlice
from ..engine.memory.tensors import RegionTensor
from ..engine.request import InferenceRequest, RequestForm, Routing
from ..engine.tensor import Buffer, Tensor
from ..python_backend.child.codec import Payload
from .arena import ArenaLender
from .kinds import ADMIT
from .link import INLINE_BYTES, LinkHead
from .slots import (
    NO_SLOT,
    Slots,
    Specs,
    TensorSpec,
    aligned,
    check_payload,
    is_private,
    read_tensor,
    read_tensors,
)
from .trace_wishes import TraceWish, read_wish, write_wish
from .values import broken, read_integer, read_list, read_parameters, read_text, write_parameters, write_text

NO_DESCRIPTION = 0
"""Descriptions have numbers from 1 on."""

PROTOCOLS = ("", "http", "grpc", "stream")
"""See `InferenceRequest.protocol`."""

_LEAST_VERSION = -(2**63)
_END_64 = 2**64
_MOST_OUTPUTS = 16_384
_OF_CLIENTS = "parameters", "priority", "timeout", "correlation", "flags", "raw", "places", "key"
_EXTRAS = frozenset((*_OF_CLIENTS, "raw_at", "offsets", "lease", "trace"))
_START, _END = 1, 2


class RequestWriter:
    """A front end's end.

    Args:
        lender: of segments in which inputs may lie already.
    """

    __slots__ = ("_lender", "_specs")

    def __init__(self, lender: ArenaLender | None = None) -> None:
        self._lender = lender
        self._specs = Specs()

    def write(
        self, number: int, request: InferenceRequest, description: int, lease: int = 0, wish: TraceWish | None = None
    ) -> tuple[LinkHead, Payload]:
        """The message that a request becomes.

        Args:
            number: of the request.
            description: number of the model's; `NO_DESCRIPTION` if it is not known.
            lease: number of the one that it holds; 0 for none.
        """
        payload = Payload()
        if request.in_regions:
            return self._write_with_regions(number, request, description, lease, wish, payload)
        outputs, caller = request.requested_outputs, request.caller
        key: tuple[object, ...] = (request.model_name, request.model_version, description, outputs, request.protocol)
        if caller is not None:
            key += (caller.number,)
        add = payload.add
        for tensor in request.inputs:
            buffer = tensor.buffer
            add(buffer)
            key += tensor.name, tensor.datatype, tensor.shape, len(buffer)
        if self._lender is not None and payload.nbytes > INLINE_BYTES and request.raw_input is None:
            lent = self._lender.segment_of([tensor.buffer for tensor in request.inputs])
            if lent is not None:
                spec = _spec(request, description, [_written(tensor, tensor.nbytes) for tensor in request.inputs])
                extras = _extras(request, lease, wish, lent)
                extras["offsets"] = lent.offsets
                return (ADMIT, number, NO_SLOT, write_text(request.id), spec, extras), lent
        slot = self._specs.numbers.get(key)
        spec = None
        if slot is None:
            inputs = [_written(tensor, tensor.nbytes) for tensor in request.inputs]
            slot, spec = self._specs.fill(key, _spec(request, description, inputs))
        name = request.id
        head = (ADMIT, number, slot, name if name.isascii() else write_text(name))
        if lease or wish is not None or _has_extras(request):
            extras = _extras(request, lease, wish, payload)
            raw = request.raw_input
            if self._lender is not None and raw is not None and len(raw) > INLINE_BYTES and not request.inputs:
                lent = self._lender.segment_of([raw])
                if lent is not None:
                    payload = lent
                    extras["raw_at"] = lent.offsets[0]
            return (*head, spec, extras), payload
        return (head if spec is None else (*head, spec)), payload

    def unsent(self) -> None:
        """The last message was not sent."""
        self._specs.unsent()

    def _write_with_regions(
        self,
        number: int,
        request: InferenceRequest,
        description: int,
        lease: int,
        wish: TraceWish | None,
        payload: Payload,
    ) -> tuple[LinkHead, Payload]:
        inputs: list[Any] = []
        for tensor in request.inputs:
            if isinstance(tensor, RegionTensor):
                place = tensor.place
                inputs.append([*_written(tensor, place.byte_size), write_text(place.region.name), place.offset])
            else:
                payload.add(tensor.buffer)
                inputs.append(_written(tensor, tensor.nbytes))
        spec = _spec(request, description, inputs)
        extras = _extras(request, lease, wish, payload)
        return (ADMIT, number, NO_SLOT, write_text(request.id), spec, extras), payload


def _written(tensor: Tensor, nbytes: int) -> list[Any]:
    return [write_text(tensor.name), tensor.datatype.number, list(tensor.shape), nbytes]


def _spec(request: InferenceRequest, description: int, inputs: list[Any]) -> list[Any]:
    outputs = [write_text(name) for name in request.requested_outputs]
    caller = 0 if request.caller is None else request.caller.number
    protocol = PROTOCOLS.index(request.protocol)
    return [write_text(request.model_name), request.model_version, description, outputs, inputs, caller, protocol]


def _has_extras(request: InferenceRequest) -> bool:
    return bool(
        request.parameters
        or request.correlation_id
        or request.priority
        or request.timeout_us
        or request.sequence_start
        or request.sequence_end
        or request.raw_input is not None
        or request.output_places
        or request.routing is not None
    )


def _extras(request: InferenceRequest, lease: int, wish: TraceWish | None, payload: Payload) -> dict[str, Any]:
    extras: dict[str, Any] = {}
    if request.parameters:
        extras["parameters"] = write_parameters(request.parameters)
    if request.priority:
        extras["priority"] = request.priority
    if request.timeout_us:
        extras["timeout"] = request.timeout_us
    correlation = request.correlation_id
    if correlation:
        extras["correlation"] = write_text(correlation) if isinstance(correlation, str) else correlation
    if request.sequence_start or request.sequence_end:
        extras["flags"] = _START * request.sequence_start | _END * request.sequence_end
    if request.raw_input is not None:
        extras["raw"] = len(request.raw_input)
        payload.add(request.raw_input)
    if request.output_places:
        extras["places"] = [
            [write_text(name), write_text(place.region.name), place.offset, place.byte_size]
            for name, place in request.output_places.items()
        ]
    if request.routing is not None:
        extras["key"] = write_text(request.routing.key)
    if lease:
        extras["lease"] = lease
    if wish is not None:
        extras["trace"] = write_wish(wish)
    return extras


# ---- the engine's end ----


class _Template:
    """What a spec says.

    Attributes:
        description: its number.
        caller: number of the caller; 0 for none.
        protocol: of the client, see `InferenceRequest`.
        form: of requests that say nothing beside it.
        inputs: those in the payload, one behind the other.
        regions: the others, each with region and offset, at their places among all inputs.
        nbytes: where what follows the inputs begins.
        has_texts: an input in the payload is of type BYTES.
    """

    __slots__ = (
        "caller",
        "description",
        "form",
        "has_texts",
        "inputs",
        "model_name",
        "nbytes",
        "needed",
        "outputs",
        "protocol",
        "regions",
        "version",
    )

    def __init__(self, spec: Any) -> None:
        name, version, description, outputs, inputs, caller, protocol = read_list(spec, 7, 7)
        self.caller = read_integer(caller)
        self.protocol = PROTOCOLS[read_integer(protocol, 0, len(PROTOCOLS))]
        self.form = RequestForm()
        self.model_name = read_text(name)
        self.version = read_integer(version, _LEAST_VERSION)
        self.description = read_integer(description)
        self.outputs = tuple([read_text(each) for each in read_list(outputs, 0, _MOST_OUTPUTS)])
        self.inputs: list[TensorSpec] = []
        self.regions: list[tuple[int, TensorSpec, str, int]] = []
        at = end = 0
        for index, each in enumerate(read_tensors(inputs)):
            tensor = read_tensor(each, at)
            if len(each) == 4:
                self.inputs.append(tensor)
                end = tensor.end
                at = aligned(end)
            elif len(each) == 6:
                self.regions.append((index, tensor, read_text(each[4]), read_integer(each[5], 0, _END_64)))
            else:
                raise broken("an input", each)
        self.nbytes = at
        self.needed = end
        self.has_texts = any(tensor.datatype is BYTES for tensor in self.inputs)

    def inputs_at(self, offsets: Any, payload: memoryview) -> list[Tensor]:
        """The inputs that lie where they were received, and not one behind the other.

        Raises:
            LinkError: they do not.
        """
        inputs: list[Tensor] = []
        for offset, each in zip(read_list(offsets, len(self.inputs), len(self.inputs)), self.inputs, strict=True):
            end = read_integer(offset) + each.end - each.start
            check_payload(payload, end)
            inputs.append(Tensor(each.name, each.datatype, each.shape, payload[offset:end]))
        return inputs


@dataclass(slots=True)
class SentRequest:
    """A request that has come from a front end.

    Attributes:
        request: as the client has sent it; nothing of it is checked against its model.
        description: of its model, as the front end knew it; None if it knew none, or one that does not hold any more.
        lease: number of the one that it holds; 0 for none.
        wish: the front end notes it, should it be traced.
        places: where in shared memory the client wants outputs, by name.
        refusal: it asks for shared memory that there is not; then it is not complete.
        shared: inputs, by their indices, that the front end can still change and whose bytes must be looked at; see
            `copy_shared`. The index of the raw input is the number of inputs.
    """

    number: int
    request: InferenceRequest
    description: ModelDescription | None
    lease: int = 0
    wish: TraceWish | None = None
    places: Mapping[str, RegionSlice] | None = None
    refusal: TriremeError | None = None
    shared: tuple[int, ...] = ()

    @property
    def shared_bytes(self) -> int:
        """How much is to be copied."""
        request = self.request
        inputs, raw = request.inputs, request.raw_input
        return sum([inputs[at].nbytes if at < len(inputs) else len(raw or b"") for at in self.shared])

    def copy_shared(self, copy: Callable[[Buffer], Buffer]) -> None:
        """Copy what the front end can still change. To be called before the request is admitted."""
        request = self.request
        for at in self.shared:
            if at < len(request.inputs):
                tensor = request.inputs[at]
                request.inputs[at] = Tensor(tensor.name, tensor.datatype, tensor.shape, copy(tensor.buffer))
            elif request.raw_input is not None:
                request.raw_input = copy(request.raw_input)
        self.shared = ()


class RequestReader:
    """The engine's end, for one front end.

    Args:
        describe: finds descriptions by their numbers; None for one that does not hold any more, or never was.
        regions: the shared memory that is registered.
        find_caller: finds callers by their numbers, if there are access rules.
    """

    __slots__ = ("_describe", "_find_caller", "_regions", "_slots")

    def __init__(
        self,
        describe: Callable[[int], ModelDescription | None],
        regions: Regions,
        find_caller: Callable[[int], Caller | None] | None = None,
    ) -> None:
        self._describe = describe
        self._find_caller = find_caller
        self._regions = regions
        self._slots: Slots[_Template] = Slots()

    def read_plain(
        self, head: list[Any], payload: memoryview
    ) -> tuple[InferenceRequest, ModelDescription | None] | None:
        """The request that a message holds which says nothing new but an id, and its model's description; None if it is
        for `read`, which knows all that a message may be, and words what is wrong."""
        if len(head) != 4:
            return None
        _, number, slot, request_id = head
        if number.__class__ is not int or number < 0 or slot.__class__ is not int or request_id.__class__ is not str:
            return None
        template = self._slots.filled.get(slot)
        if template is None or template.regions or len(payload) < template.needed:
            return None
        if template.has_texts and not is_private(payload):
            return None
        inputs = [Tensor(name, kind, shape, payload[start:end]) for name, kind, shape, start, end in template.inputs]
        request = InferenceRequest(template.model_name, template.version, request_id, inputs, template.outputs)
        request.protocol, request.form = template.protocol, template.form
        if self._find_caller is not None:
            request.caller = self._find_caller(template.caller)
        return request, self._describe(template.description)

    def read(self, head: list[Any], payload: memoryview) -> SentRequest:
        """The request that a message holds.

        Raises:
            LinkError: it holds none.
        """
        count = len(head)
        if not 4 <= count <= 6:
            raise broken("a request", head)
        _, number, slot, name = head[:4]
        if number.__class__ is not int or number < 0:
            raise broken("the number of a request", number)
        if name.__class__ is not str:
            name = read_text(name)
        if count == 4 or head[4] is None:
            template = self._slots.get(slot)
        else:
            template = _Template(head[4])
            texts = template.model_name, *template.outputs
            self._slots.fill(slot, template, texts, [*template.inputs, *[each[1] for each in template.regions]])
        extras = head[5] if count == 6 else None
        if isinstance(extras, dict) and "offsets" in extras:
            inputs = template.inputs_at(extras["offsets"], payload)
        else:
            if len(payload) < template.needed:
                check_payload(payload, template.needed)
            inputs = [
                Tensor(each.name, each.datatype, each.shape, payload[each.start : each.end]) for each in template.inputs
            ]
        request = InferenceRequest(template.model_name, template.version, name, inputs, template.outputs)
        request.protocol = template.protocol
        if self._find_caller is not None:
            request.caller = self._find_caller(template.caller)
        sent = SentRequest(number, request, self._describe(template.description))
        if count == 6:
            self._read_extras(head[5], sent, payload, template.nbytes)
        if (template.has_texts or request.raw_input is not None) and not is_private(payload):
            sent.shared = _shared(request)
        if template.regions:
            self._add_regions(sent, template)
        return sent

    def _add_regions(self, sent: SentRequest, template: _Template) -> None:
        inputs = sent.request.inputs
        moved = list(sent.shared)
        for index, tensor, region, offset in template.regions:
            try:
                place = self._regions.slice(region, offset, tensor.end - tensor.start)
            except TriremeError as error:
                sent.refusal = sent.refusal or error
                return
            inputs.insert(index, RegionTensor(tensor.name, tensor.datatype, tensor.shape, place))
            moved = [at + (at >= index) for at in moved]
        sent.shared = tuple(moved)
        sent.request.in_regions = True

    def _read_extras(self, extras: Any, sent: SentRequest, payload: memoryview, at: int) -> None:
        if extras.__class__ is not dict or not extras.keys() <= _EXTRAS:
            raise broken("what few requests have", extras)
        request = sent.request
        if "parameters" in extras:
            request.parameters = read_parameters(extras["parameters"])
        if "priority" in extras:
            request.priority = read_integer(extras["priority"], 0, _END_64)
        if "timeout" in extras:
            request.timeout_us = read_integer(extras["timeout"], 0, _END_64)
        if "correlation" in extras:
            given = extras["correlation"]
            request.correlation_id = read_integer(given, 0, _END_64) if given.__class__ is int else read_text(given)
        if "flags" in extras:
            flags = read_integer(extras["flags"], 0, 4)
            request.sequence_start, request.sequence_end = bool(flags & _START), bool(flags & _END)
        if "raw" in extras:
            at = read_integer(extras.get("raw_at", at))
            end = at + read_integer(extras["raw"])
            check_payload(payload, end)
            request.raw_input = payload[at:end]
        if "key" in extras:
            request.routing = Routing(read_text(extras["key"]))
        if "lease" in extras:
            sent.lease = read_integer(extras["lease"], 1)
        if "trace" in extras:
            sent.wish = read_wish(extras["trace"])
        if "places" in extras:
            self._read_places(extras["places"], sent)

    def _read_places(self, value: Any, sent: SentRequest) -> None:
        places: dict[str, RegionSlice] = {}
        for each in read_list(value, 0, _MOST_OUTPUTS):
            name, region, offset, nbytes = read_list(each, 4, 4)
            where = read_text(region), read_integer(offset, 0, _END_64), read_integer(nbytes, 0, _END_64)
            try:
                places[read_text(name)] = self._regions.slice(*where)
            except TriremeError as error:
                sent.refusal = sent.refusal or error
                return
        sent.places = places
        sent.request.output_places = places or None


def _shared(request: InferenceRequest) -> tuple[int, ...]:
    """See `SentRequest.shared`."""
    shared = [at for at, tensor in enumerate(request.inputs) if tensor.datatype is BYTES]
    if request.raw_input is not None:
        shared.append(len(request.inputs))
    return tuple(shared)
