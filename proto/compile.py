"""Compile the .proto files of this folder: ``python -m trireme.proto.compile`` (needs what the extra ``dev`` installs).

What comes out is committed, so that running Trireme needs no compiler; run this after any change to a `.proto`:

- a descriptor set each (`.pb`), for those that ask what a message looks like: the reader of configurations, reflection;
- `messages/`, betterproto2's classes of messages, a package for each protobuf package. Service bases are left out:
  they would need grpclib's server, and with it asyncio and another HTTP/2.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from .descriptors import FOLDER, SOURCES


def compile_descriptors(target: Path) -> None:
    """Write the `FileDescriptorSet` of each source into the folder `target`; imported files are not repeated.

    Raises:
        RuntimeError: the compiler refused a source; what was wrong is on standard error.
    """
    for source in SOURCES:
        _protoc(f"--descriptor_set_out={target / source}.pb", f"{source}.proto")


def compile_messages(target: Path) -> None:
    """Write the generated packages into the folder `target`, in place of what is there.

    Raises:
        RuntimeError: as `compile_descriptors`.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    _protoc(
        f"--python_betterproto2_out={target}",
        "--python_betterproto2_opt=server_generation=none,client_generation=none",
        *(f"{source}.proto" for source in SOURCES),
    )
    (target / "__init__.py").touch()
    for module in target.rglob("__init__.py"):
        module.with_name("py.typed").touch()


def _protoc(*arguments: str) -> None:
    """Run the compiler here, where its plugin finds ruff and our settings for it."""
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={FOLDER}", *arguments]
    path = os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)))
    done = subprocess.run(command, cwd=FOLDER, env={**os.environ, "PATH": path}, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"protoc could not compile {arguments[-1]}")


def main() -> int:
    compile_descriptors(FOLDER)
    compile_messages(FOLDER / "messages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
