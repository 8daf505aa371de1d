"""The executor of an instance in a process: what still comes when the instance is at its end."""

from __future__ import annotations

import os
from unittest.mock import MagicMock

from trireme.actors.process_executor import ProcessExecutor
from trireme.actors.socket_readiness import Readiness
from trireme.engine.backends.interface import ProcessInstance


async def test_what_an_instance_wants_at_its_end_is_not_begun() -> None:
    """The answer to a question of its model comes while its process is being ended, say: whoever brings it must not be
    hurt."""
    ended, bell = os.pipe()
    os.close(bell)
    instance = MagicMock(spec=ProcessInstance, up=True, started=True, launch_limit_s=30.0, ended=ended)
    instance.sources.return_value = instance.outputs.return_value = {}
    begun: list[str] = []

    def want() -> None:
        instance.aside(lambda: begun.append("aside"), print)
        instance.later(0.0, lambda: begun.append("later"))
        instance.on_congestion()

    instance.kill.side_effect = want
    executor = ProcessExecutor("m_0", Readiness())

    async def life() -> None:
        await executor.run(lambda: instance)

    await executor.around(life)
    os.close(ended)
    instance.abandon.assert_called_once()
    assert begun == []
