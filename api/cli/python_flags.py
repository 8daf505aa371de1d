"""The flags about the processes of Python models: the rows, and the limits that they set."""

from __future__ import annotations

from ...engine.backends.confinement import Confinement, find_account
from ...engine.errors import InvalidArgumentError
from .flags import Flag, Group, ParsedFlags
from .getopt import UsageError
from .values import INT64_MAX, STRING, Kind, in_range, read_int64

_USER = "python-user"
_MEMORY = "python-memory-limit"

PYTHON = Group(
    "Python Models",
    (
        Flag(
            _USER,
            STRING,
            "User that the processes of Python models run as: <name or number>, or <name or number>:<group>. Needs a "
            "server that runs as root. By default they run as the server's own user, and can do to its process and its "
            "files what that may.",
            "",
        ),
        Flag(
            _MEMORY,
            Kind("<integer>", in_range(read_int64, 0, INT64_MAX, f"Error: --{_MEMORY} must be at least 0.")),
            "Most bytes of private memory of each process of a Python model; 0 for no limit.",
            0,
        ),
    ),
)


def confinement(flags: ParsedFlags) -> Confinement:
    """What the processes of Python models may do.

    Raises:
        UsageError: there is no such user, or the server may not change to it.
    """
    try:
        account = find_account(flags[_USER]) if flags[_USER] else None
    except InvalidArgumentError as error:
        raise UsageError(f"Error: --{_USER}: {error.message}") from None
    return Confinement(account, flags[_MEMORY])
