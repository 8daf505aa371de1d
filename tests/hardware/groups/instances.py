"""Four instances at concurrency 64, and every answer is known."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from hardware import linear_request, main, need_torch, serving, write_linear

INSTANCES, CONCURRENCY, SECONDS, COLUMNS = 4, 64, 30.0, 4096


async def load(figures: dict[str, Any]) -> None:
    import tempfile
    from pathlib import Path

    import trio

    wrong: list[str] = []
    asked = 0

    async def ask(server: Any, number: int, until_s: float) -> None:
        nonlocal asked
        rng = np.random.default_rng(number)
        while time.perf_counter() < until_s and not wrong:
            given = rng.random((int(rng.integers(1, 5)), COLUMNS), np.float32)
            response = await server.infer(linear_request(given))
            asked += 1
            if not np.allclose(response.outputs[0].array, given * 3 + 1, rtol=1e-6):
                wrong.append(f"an answer to request {asked} of task {number} is wrong")

    with tempfile.TemporaryDirectory() as folder:
        write_linear(Path(folder), instances=INSTANCES, columns=COLUMNS)
        async with serving(Path(folder)) as (server, _):
            until_s = time.perf_counter() + SECONDS
            async with trio.open_nursery() as nursery:
                for number in range(CONCURRENCY):
                    nursery.start_soon(ask, server, number, until_s)
            (entry,) = server.statistics("linear")
            counted = entry.statistics
    figures["requests_per_s"] = asked / SECONDS
    figures["rows_per_batch"] = counted.inference_count / max(counted.execution_count, 1)
    assert not wrong, wrong[0]
    assert asked >= CONCURRENCY


def group(figures: dict[str, Any]) -> None:
    need_torch()
    import trio

    trio.run(load, figures)


if __name__ == "__main__":
    main(group)
