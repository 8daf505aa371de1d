"""Re-records the scripted gRPC session from a real Triton, which must be fresh: its statistics are recorded, too.

python tests/oracle/record_grpc_session.py models DIR     # write the python-backend models
(serve DIR with the real server)
python tests/oracle/record_grpc_session.py record HOST:PORT

Build 2.51 now and then dies of streams that end with a status. Nothing is written then; start it again, and repeat.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import grpc
from grpc_exchange import put
from grpc_models import write_for_triton
from grpc_script import afterwards, script

RECORDED = Path(__file__).parent / "recorded_grpc_session.json"


def main(arguments: list[str]) -> None:
    match arguments:
        case ["models", directory]:
            write_for_triton(Path(directory))
        case ["record", address]:
            with grpc.insecure_channel(address) as channel:
                calls = [call for call in (*script(), *afterwards()) if call.recorded]
                answers = {call.name: put(channel, call) for call in calls}
            if answers[calls[-1].name]["code"] != "OK":
                raise SystemExit("the server did not live to the end of the session; start it again, and repeat")
            RECORDED.write_text(json.dumps(answers, indent=1, sort_keys=True) + "\n")
            print(f"{len(answers)} answers recorded")
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
