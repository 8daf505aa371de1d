"""``python -m trireme.simulations``; it draws with rich, which comes with the extra ``terminal``."""

import sys

from ..engine.errors import UnavailableError
from ..engine.plugins import import_package

if __name__ == "__main__":
    try:
        import_package("rich", "the simulator's command needs", "terminal")
    except UnavailableError as error:
        sys.exit(error.message)
    from .command import main

    sys.exit(main())
