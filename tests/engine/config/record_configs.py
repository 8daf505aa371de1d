"""Record what a real Triton answers to ``/v2/models/M/config``, as facts for `test_recorded.py` to replay.

    python record_configs.py repository DIR     make a model repository of the .pbtxt files in recorded/
    python record_configs.py record URL         ask the server that serves DIR, write recorded/*.json

Start Triton between the two with ``--strict-readiness=false --exit-on-error=false``.
"""

from __future__ import annotations

import shutil
import sys
import urllib.error
import urllib.request
from pathlib import Path

RECORDED = Path(__file__).parent / "recorded"
MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
VERSIONS = ("1", "2", "3")


def make_repository(target: Path) -> None:
    """One python-backend model a recorded .pbtxt, with three versions (an empty .pbtxt becomes no file)."""
    for source in sorted(RECORDED.glob("*.pbtxt")):
        model = target / source.stem
        for version in VERSIONS:
            (model / version).mkdir(parents=True)
            for name in ("model.py", "other.py"):
                (model / version / name).write_text(MODEL)
        (model / "labels.txt").write_text("a\nb\nc\n")
        if source.stat().st_size:
            shutil.copyfile(source, model / "config.pbtxt")


def record(url: str) -> None:
    for source in sorted(RECORDED.glob("*.pbtxt")):
        try:
            with urllib.request.urlopen(f"{url.rstrip('/')}/v2/models/{source.stem}/config") as answer:
                source.with_suffix(".json").write_bytes(answer.read())
        except urllib.error.HTTPError as error:
            print(f"{source.stem}: {error.code} {error.read().decode()}", file=sys.stderr)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["repository", directory]:
            make_repository(Path(directory))
        case ["record", url]:
            record(url)
        case _:
            sys.exit(__doc__)
