"""``python -m trireme`` is the command `trireme`."""

import sys

from trireme.api.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
