"""Re-records the scripted session over the generate extension from a real Triton.

python tests/oracle/record_generate_session.py models DIR     # write the python-backend models
(serve DIR with the real server)
python tests/oracle/record_generate_session.py record HOST PORT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from generate_models import write_for_triton
from generate_script import script
from session_exchange import put

RECORDED = Path(__file__).parent / "recorded_generate_session.json"


def main(arguments: list[str]) -> None:
    match arguments:
        case ["models", directory]:
            write_for_triton(Path(directory))
        case ["record", host, port]:
            answers = {exchange.name: put(host, int(port), exchange) for exchange in script()}
            RECORDED.write_text(json.dumps(answers, indent=1, sort_keys=True) + "\n")
            print(f"{len(answers)} answers recorded")
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
