"""Re-records the scripted session from a real Triton.

python tests/oracle/record_session.py models DIR     # write the python-backend models
(serve DIR with the real server)
python tests/oracle/record_session.py record HOST PORT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from session_exchange import put
from session_models import MODELS
from session_script import afterwards, script

RECORDED = Path(__file__).parent / "recorded_session.json"


def main(arguments: list[str]) -> None:
    match arguments:
        case ["models", directory]:
            for model in MODELS:
                model.write_python(Path(directory))
        case ["record", host, port]:
            answers = {exchange.name: put(host, int(port), exchange) for exchange in (*script(), *afterwards())}
            RECORDED.write_text(json.dumps(answers, indent=1, sort_keys=True) + "\n")
            print(f"{len(answers)} answers recorded")
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
