"""`trireme key new`: an API key, and what of it the access file needs (docs/access.md#api-keys)."""

from __future__ import annotations

import argparse
import secrets
import sys
from datetime import date, datetime
from typing import Any

from .parser import CommandError

_ID_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"  # none that look alike


def add_key_command(commands: Any) -> None:
    """Add the sub-command to those of `argparse`."""
    key = commands.add_parser("key", help="make API keys for the access file").add_subparsers(required=True)
    new = key.add_parser("new", help="make a key: print it, which is not done again, and the table with its digest")
    new.add_argument("--id", dest="key_id", help="what it is called in the access file; by default random")
    new.add_argument("--expires", help="when it ends: a date, or a time with an offset")
    new.set_defaults(run=_print_key)


def _print_key(given: argparse.Namespace) -> int:
    """Print a new key on standard output, and on standard error, which may be added to an access file, what to do."""
    try:
        key, table = new_key(given.key_id, given.expires)
    except ValueError as error:
        raise CommandError(str(error)) from error
    sys.stdout.write(f"{key}\n")
    sys.stdout.flush()
    sys.stderr.write(
        f"\n# Give this key to its caller: it is not shown again. Paste this below the caller's [[callers]]:\n\n{table}"
    )
    return 0


def new_key(key_id: str | None, expires: str | None) -> tuple[str, str]:
    """A key that nothing else knows, and the table for the access file.

    Args:
        key_id: its id; None for a random one.
        expires: when it ends, as TOML has it: a date, or a time with an offset.

    Raises:
        ValueError: one of them is of another form.
    """
    from ...engine.access.keys import ID_FORM, is_key_id, make_key

    if key_id is None:
        key_id = "".join(secrets.choice(_ID_ALPHABET) for _ in range(8))
    if not is_key_id(key_id):
        raise ValueError(f"--id takes {ID_FORM}. Got {key_id}")
    key, digest = make_key(key_id, secrets.token_hex(32), secrets.token_bytes(16))
    lines = ["[[callers.keys]]", f'id = "{key_id}"', f'hash = "{digest}"']
    if expires is not None:
        lines.append(f"expires = {_read_end(expires)}")
    return key, "\n".join(lines) + "\n"


def _read_end(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat() if len(text) == 10 else _with_offset(text)
    except ValueError as error:
        raise ValueError(
            f"--expires takes a date, or a time with an offset, such as 2030-01-31T00:00:00+00:00. Got {text}"
        ) from error


def _with_offset(text: str) -> str:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError
    return moment.isoformat()
