"""What a Python model's processes take of memory, and that models on demand count with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from python_models import CONFIG, IDENTITY, ask, open_repository, until, write_model

from trireme.engine.options import ControlMode
from trireme.python_backend.process_memory import private_bytes

MIB = 1 << 20
INNER = "import sys; held = b'x' * (30 << 20); print('here', flush=True); sys.stdin.read()"
OUTER = f"import subprocess, sys; held = b'x' * (40 << 20); subprocess.run([sys.executable, '-c', {INNER!r}])"
WITH_MEMORY = (
    IDENTITY
    + """
        def initialize(self, args):
            import subprocess, sys
            self.held = b"x" * (40 << 20)
            code = "held = b'x' * (30 << 20); print(1, flush=True); input()"
            pipe = subprocess.PIPE
            self.child = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe)
            self.child.stdout.readline()

        def finalize(self):
            self.child.communicate(b"now")
"""
)
ON_DEMAND = {"model_control_mode": ControlMode.ON_DEMAND, "strict_readiness": False}


def test_it_is_what_the_process_and_those_that_it_started_hold() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", OUTER], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        assert 70 * MIB < private_bytes(process.pid) < 110 * MIB
        process.stdin.close()
    assert private_bytes(process.pid) == 0


async def test_a_model_on_demand_counts_with_its_processes(tmp_path: Path) -> None:
    write_model(tmp_path, "large", WITH_MEMORY, CONFIG + "instance_group { kind: KIND_CPU count: 2 }")
    in_process = 'parameters { key: "EXECUTION" value { string_value: "in_process" } }'
    write_model(tmp_path, "small", IDENTITY, CONFIG + in_process)
    async with open_repository(tmp_path, **ON_DEMAND, model_memory_limit=120 * MIB) as server:
        residents = server.residents
        assert residents is not None
        assert (await server.infer(ask("small", 1))).outputs[0].array.tolist() == [[1]]
        assert residents.core.used_bytes < MIB, "it has no process of its own"
        assert (await server.infer(ask("large", 1))).outputs[0].array.tolist() == [[1]]
        assert residents.core["large"].nbytes > 140 * MIB
        await until(lambda: not residents.core.used_bytes)  # it is larger than the limit
