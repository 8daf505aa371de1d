"""ResNet-50 over gRPC: a client in a process of its own, at concurrency 64."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from hardware import main, need, need_torch

CONCURRENCY, SECONDS, SIZE = 64, 10.0, 224
CLIENT = Path(__file__).resolve().parent.parent / "grpc_load.py"


async def serve(figures: dict[str, Any], repository: Path) -> None:
    import trio
    from hardware import serving

    from trireme.api.grpc.application import GrpcApplication
    from trireme.api.grpc.options import GrpcOptions, GrpcServiceOptions
    from trireme.api.grpc.service import GrpcService
    from trireme.api.logging import LineHandler, Log, LogSettings, LogStreams

    nowhere = LogStreams(lambda _line: None, lambda _line: None)
    handler = LineHandler(nowhere, nowhere)
    log = Log(LogSettings(), handler)
    async with serving(repository) as (server, _), trio.open_nursery() as nursery:
        application = GrpcApplication(server, GrpcOptions(), log)
        service = GrpcService(application.services, GrpcServiceOptions(("127.0.0.1:0",)))
        (port,) = await nursery.start(service.serve)
        command = [sys.executable, str(CLIENT), str(port), "resnet50", str(SIZE), str(CONCURRENCY), str(SECONDS)]
        done = await trio.run_process(command, capture_stdout=True)
        figures.update(json.loads(done.stdout))
        service.close()
    handler.close()


def group(figures: dict[str, Any]) -> None:
    need_torch()
    for package in ("psutil", "rich", "tritonclient.grpc.aio"):
        need(package)
    import gpu_resnet
    import trio

    case = gpu_resnet.Case("cuda", SIZE, 32, CONCURRENCY, SECONDS, False)
    with tempfile.TemporaryDirectory() as folder:
        gpu_resnet.write_model(Path(folder), case, gpu_resnet.scripted(case), 1)
        trio.run(serve, figures, Path(folder))
    assert figures["requests"] > CONCURRENCY


if __name__ == "__main__":
    main(group)
