"""What a gateway does for one warm small request, without the system: its sockets are prepared bytes.

    python benchmarks/gateway_path.py [--rounds 15] [--beside CHECKOUT ...]

Clients ask in one turn of the gateway, and its two replicas answer in another; so many at a time as the columns say.
Shown for one request are calls of Trireme's Python functions and bytecodes, which are the same in each run, and the
time of the interpreter in µs, the least of the rounds. `--beside` measures the code of other checkouts, each with the
interpreter in its `.venv`, in turns with this one: the machine is seldom the same for long.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import trio

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import prepared_gateway  # noqa: E402

import trireme.api  # noqa: E402

PROTOCOLS, SIZES = ("http", "grpc", "stream"), (1, 4, 16)
WARM_UP, TURNS = 100, 150
CODE = Path(trireme.api.__path__[0]).parent
_OURS = tuple(f"{CODE / folder}/" for folder in ("actors", "api", "engine", "gateway"))


class Counted:
    """Attributes:
    calls, bytecodes: of Trireme's functions, while it watches.
    """

    def __init__(self) -> None:
        self.calls = self.bytecodes = 0

    def watch(self, frame: FrameType, event: str, _what: Any) -> Any:
        if event == "call":
            if not frame.f_code.co_filename.startswith(_OURS):
                return None
            self.calls += 1
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.bytecodes += event == "opcode"
        return self.watch


async def measure(protocol: str, size: int) -> tuple[float, float, float]:
    """Calls, bytecodes and µs for a request, of so many in a turn."""
    async with prepared_gateway.prepared_gateway() as gateway:
        clients = [await gateway.connect(protocol) for _ in range(size)]
        for _ in range(WARM_UP):
            gateway.ask(*clients)
        counted = Counted()
        sys.settrace(counted.watch)
        gateway.ask(*clients)
        sys.settrace(None)
        taken_s = 0.0
        for _ in range(TURNS):
            for client in clients:
                client.ask()
            taken_s -= time.perf_counter()
            gateway.turn_of(*clients)
            taken_s += time.perf_counter()
            ready = [replica for replica in gateway.replicas if replica.answer()]
            taken_s -= time.perf_counter()
            gateway.turn_of(*ready)
            taken_s += time.perf_counter()
            assert all(client.answered() for client in clients)
        return counted.calls / size, counted.bytecodes / size, taken_s / TURNS / size * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--beside", type=Path, nargs="*", default=[])
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.once:
        logging.disable()
        found = {f"{each} {size}": trio.run(measure, each, size) for each in PROTOCOLS for size in SIZES}
        print(json.dumps(found))
        return
    interpreters = [Path(sys.executable), *(each / ".venv/bin/python" for each in given.beside)]
    rounds: dict[Path, list[dict[str, list[float]]]] = {each: [] for each in interpreters}
    for _ in range(given.rounds):
        for each, results in rounds.items():
            output = subprocess.run([each, __file__, "--once"], check=True, stdout=subprocess.PIPE).stdout
            results.append(json.loads(output))
    print(f"{'':50} {'in a turn':>10} {'calls':>7} {'bytecodes':>10} {'us':>7}")
    for each, results in rounds.items():
        for name in results[0]:
            calls, codes, _ = results[0][name]
            least_us = min(result[name][2] for result in results)
            print(f"{each.parents[2]!s:50} {name:>10} {calls:7.1f} {codes:10.0f} {least_us:7.1f}")


if __name__ == "__main__":
    main()
