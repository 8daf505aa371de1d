"""Server reflection, v1 and v1alpha: tools such as ``grpcurl`` ask which services there are and what they look like.

The answers come from grpclib's own services, over our descriptors: in a pool apart, since protobuf's default one may
hold `tritonclient`'s definitions of the same names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpclib.reflection.service import ServerReflection

from ...proto.descriptors import descriptor_pool

if TYPE_CHECKING:
    from collections.abc import Collection

    from grpclib._typing import IServable


def with_reflection(services: Collection[IServable]) -> list[IServable]:
    """`services`, and two more that describe them."""
    return ServerReflection.extend(services, pool=descriptor_pool())
