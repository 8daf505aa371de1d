"""``python -m trireme.simulations``."""

from .command import main

raise SystemExit(main())
