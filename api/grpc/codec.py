"""How messages of the services become bytes and back: a grpclib codec for betterproto2's classes.

betterproto2 reads leniently: a message that is cut off passes for a shorter one, a field of the wrong wire type for a
value. Triton refuses the one and skips the other, as protobuf does; so protobuf's own reader, which is C and takes a
microsecond, goes first, and betterproto2 sees what that one writes again.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError, Message
from grpclib.encoding.base import CodecBase

from ...engine.errors import InvalidArgumentError
from ...engine.tensor import Buffer
from ...proto.descriptors import message_class
from ...proto.messages.message_pool import default_message_pool
from .wire import UnreadableError, fields

MAX_FIELDS = 8_192
"""Of a message that is not about inference: entries of its maps, and all else that stands in it."""


class RawMessage:
    """Stands in a `grpclib.const.Handler` for messages that its method reads itself, as they came, and writes, as
    `StreamingCall.send_message` takes them."""


class MessageCodec(CodecBase):
    """Reads `RawMessage`; reads and writes betterproto2's messages."""

    def __init__(self) -> None:
        self._strict: dict[type, type[Message]] = {
            kind: message_class(url.rpartition("/")[2]) for kind, url in default_message_pool.type_to_url.items()
        }

    @property
    def __content_subtype__(self) -> str:
        return "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        """The wire form.

        Raises:
            TypeError: the message is of another type than its method promises.
        """
        if not isinstance(message, message_type):
            raise TypeError(f"message must be of type {message_type.__name__}, not {type(message).__name__}")
        return bytes(message)

    def decode(self, data: Buffer, message_type: Any) -> Any:
        """The message that the bytes mean; for `RawMessage` the bytes themselves.

        Raises:
            UnreadableError: they are not a message of this type.
            InvalidArgumentError: it has too many fields, each of which becomes an object.
        """
        if message_type is RawMessage:
            return data
        if len(data) > MAX_FIELDS:
            _count_fields(data)
        try:
            known = self._strict[message_type].FromString(bytes(data))
        except DecodeError:
            raise UnreadableError("protobuf cannot parse it") from None
        known.DiscardUnknownFields()
        text = known.SerializeToString()
        del known
        return message_type.parse(text)


def _count_fields(data: Buffer) -> None:
    """Raises InvalidArgumentError: there are more than `MAX_FIELDS`. What cannot be read is left to protobuf."""
    try:
        for count, _ in enumerate(fields(data, 0, len(data))):
            if count == MAX_FIELDS:
                raise too_many_fields()
    except UnreadableError:
        return


def too_many_fields() -> InvalidArgumentError:
    return InvalidArgumentError(f"request has more than {MAX_FIELDS} fields, which is the most")
