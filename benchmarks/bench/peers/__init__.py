"""The servers that are compared."""

from __future__ import annotations

from .base import Peer
from .python_servers import LitServe, RayServe
from .runtime import RuntimeAlone
from .v2 import Earlier, MLServer, Trireme, Triton

PEERS: dict[str, type[Peer]] = {
    peer.name: peer for peer in (Trireme, Earlier, Triton, MLServer, LitServe, RayServe, RuntimeAlone)
}
