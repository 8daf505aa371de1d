"""Large tensors over gRPC, as raw contents (`large.py` says how).

    python benchmarks/large_grpc.py --triton-command "tritonserver" [--elements 1048576] [--connections 1 4]

Without --triton-command, Trireme is measured alone. The client is grpcio, which takes a good part of the machine: look
at the server's CPU time first.
"""

from __future__ import annotations

from typing import Any

import grpc
from large import MODEL, Client, compare
from servers import Server
from tritonclient.grpc import service_pb2

messages: Any = service_pb2  # made when it is imported: type checkers cannot see its classes

OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own for every channel
]


class GrpcClient(Client):
    """A channel; requests are encoded once, responses are not decoded."""

    def __init__(self, server: Server, data: bytes) -> None:
        super().__init__()
        self.data = data
        request = messages.ModelInferRequest(model_name=MODEL, raw_input_contents=[data])
        request.inputs.add(name="INPUT0", datatype="FP32", shape=[len(data) // 4])
        self._request = request.SerializeToString()
        self._channel = grpc.insecure_channel(server.grpc_url, options=OPTIONS)
        self._infer = self._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")

    def ask(self) -> bytes:
        return self._infer(self._request)

    def close(self) -> None:
        self._channel.close()


if __name__ == "__main__":
    compare(__doc__, "gRPC", GrpcClient)
