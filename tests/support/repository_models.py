"""The models that come with Trireme: some of them served, or a Python model in the process of a test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recording_host import RecordingHost

from trireme.python_backend.child.utils.runner import Runner

REPOSITORY = Path(__file__).parents[2] / "model_repository"


def link_models(repository: Path, *names: str) -> Path:
    """A repository of some of the models; as it is given, which may not be there yet."""
    repository.mkdir(exist_ok=True)
    for name in names:
        (repository / name).symlink_to(REPOSITORY / name)
    return repository


@contextmanager
def opened(name: str, host: RecordingHost) -> Iterator[Runner]:
    """The model, initialised. It is a copy: an import leaves a cache behind."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(shutil.copytree(REPOSITORY / name, Path(folder) / name))
        args = {"model_name": name, "model_version": "1", "model_repository": str(directory)}
        runner = Runner(host, str(directory / "1" / "model.py"), args, package=f"test_{name}")
        try:
            runner.initialize()
            yield runner
        finally:
            runner.finalize()
