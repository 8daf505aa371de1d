"""`trireme`, for `request_log.py`: a server's request log is put in by SIGUSR1, and taken out by SIGUSR2."""

from __future__ import annotations

import signal
import sys
from typing import Any

from trireme.actors import InferenceServer
from trireme.api.cli import serve
from trireme.api.cli.main import main


class SwitchedServer(InferenceServer):
    """Begins with its log."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        recorder = self._recorder

        def switch(number: int, _frame: object) -> None:
            self._recorder = recorder if number == signal.SIGUSR1 else None

        signal.signal(signal.SIGUSR1, switch)
        signal.signal(signal.SIGUSR2, switch)


serve.InferenceServer = SwitchedServer
sys.exit(main())
