"""Where the process of a Python model begins: ``python main.py DESCRIPTOR``, in whatever interpreter the model wants.

The folder of this file becomes a package of its own name, so that nothing of it is in the way of the model's imports.
"""

import sys


def start() -> None:
    """Run until the server says that it is enough, or is gone."""
    folder = sys.path.pop(0)  # the interpreter put it there
    import importlib
    import importlib.util
    import os

    package = "_trireme_model_process"
    specification = importlib.util.spec_from_file_location(
        package, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert specification is not None, "the file is there"
    assert specification.loader is not None, "and it is Python"
    module = importlib.util.module_from_spec(specification)
    sys.modules[package] = module
    specification.loader.exec_module(module)
    process = importlib.import_module(package + ".process")
    process.run(int(sys.argv[1]))


if __name__ == "__main__":
    start()
