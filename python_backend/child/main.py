"""Where the process of a Python model begins: ``python main.py SOCKET BELL`` (descriptors, see `protocol`), in whatever
interpreter the model wants.

The folder of this file becomes a package of its own name, so that nothing of it is in the way of the model's imports.
"""

import sys


def start() -> None:
    """Run until the server says that it is enough, or is gone."""
    import importlib
    import importlib.util
    import os

    folder = os.path.dirname(os.path.realpath(__file__))  # as the interpreter sees it
    if sys.path[:1] == [folder]:
        del sys.path[0]  # the interpreter put it there
    descriptor, bell = int(sys.argv[1]), int(sys.argv[2])
    sys.argv[:] = [""]  # as embedded in a server: a model may hand it to argparse, or to unittest.main
    package = "_trireme_model_process"
    specification = importlib.util.spec_from_file_location(
        package, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert specification is not None, "the file is there"
    assert specification.loader is not None, "and it is Python"
    module = importlib.util.module_from_spec(specification)
    sys.modules[package] = module
    specification.loader.exec_module(module)
    try:
        process = importlib.import_module(package + ".process")
    except ImportError as error:
        _say_failed(descriptor, f"the Python environment '{sys.prefix}' cannot host a model: {error}")
        return
    process.run(descriptor, bell)


def _say_failed(descriptor: int, reason: str) -> None:
    """What ``channel`` and ``protocol`` would send, by hand: they need numpy, which may be what is missing."""
    import marshal
    import os
    import struct
    import zlib

    head = marshal.dumps((34, reason), 2)
    frame = struct.pack("<BxHHxxQQ", 1, 0, 0, 0, 0)
    os.write(descriptor, frame + struct.pack("<II", len(head), zlib.crc32(head)) + head)


if __name__ == "__main__":
    start()
