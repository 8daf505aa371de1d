"""A sick context: a failed assertion in a kernel costs the model, and neither the server nor models on the CPU."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hardware import LINEAR, linear_request, main, need_torch, serving, write_linear

POISONOUS = LINEAR.replace(
    "return x *", "x = x + torch.zeros(1, device=x.device)[x.long().flatten()[:1]]\n        return x *"
)
"""Whose input is an index as well: 0 is one, and all others are out of bounds."""


async def fall_ill(figures: dict[str, Any]) -> None:
    import trio

    from trireme.engine.errors import TriremeError

    with tempfile.TemporaryDirectory() as folder:
        write_linear(
            Path(folder),
            source=POISONOUS,
            more='parameters { key: "WARM_UP_BATCH_SIZES" value { string_value: "false" } }',
        )
        write_linear(Path(folder), name="cpu")
        config = Path(folder) / "cpu" / "config.pbtxt"
        config.write_text(config.read_text().replace("kind: KIND_GPU count: 1 gpus: [ 0 ]", "kind: KIND_CPU"))
        async with serving(Path(folder)) as (server, _):
            well = np.zeros((1, 64), np.float32)
            response = await server.infer(linear_request(well))
            assert (response.outputs[0].array == 1).all()
            texts = []
            for _ in range(3):
                try:
                    with trio.fail_after(30):
                        await server.infer(linear_request(well + 5))
                except TriremeError as error:
                    texts.append(str(error))
            figures["texts"] = texts
            assert len(texts) == 3
            assert any("restart the server" in text or "GPU 0" in text for text in texts), texts
            assert server.live()
            response = await server.infer(linear_request(well, "cpu"))
            assert (response.outputs[0].array == 1).all()
    shutil.rmtree(folder, ignore_errors=True)


def group(figures: dict[str, Any]) -> None:
    need_torch()
    import trio

    trio.run(fall_ill, figures)


if __name__ == "__main__":
    main(group)
