"""Compile the .proto files to descriptor sets: ``python -m trireme.proto.compile`` (needs grpcio-tools).

The `.pb` files are committed, so that running Trireme needs no compiler; run this after any change to a `.proto`.
"""

from __future__ import annotations

import sys
from pathlib import Path

SOURCES = ("model_config.proto",)
FOLDER = Path(__file__).parent


def compile_proto(source: str, target: Path) -> None:
    """Write the `FileDescriptorSet` of a .proto of this folder to `target`.

    Raises:
        RuntimeError: the compiler refused it; what was wrong is on standard error.
    """
    from grpc_tools import protoc  # only developers have it

    arguments = ["protoc", f"--proto_path={FOLDER}", f"--descriptor_set_out={target}", source]
    if protoc.main(arguments) != 0:
        raise RuntimeError(f"protoc could not compile {source}")


def main() -> int:
    for source in SOURCES:
        compile_proto(source, FOLDER / Path(source).with_suffix(".pb"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
