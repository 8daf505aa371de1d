"""What the processes of models may do, and as whom they run."""

from __future__ import annotations

import grp
import os
import pwd
from dataclasses import dataclass

from ..errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Account:
    """A user of the system.

    Attributes:
        groups: all that it is in, with its own.
    """

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


@dataclass(frozen=True, slots=True)
class Confinement:
    """Limits of each process of a model.

    Attributes:
        account: whom it runs as; None for the server's own user.
        memory_bytes: most private memory (RLIMIT_DATA); 0 for no limit. What it shares with the server does not count.
    """

    account: Account | None = None
    memory_bytes: int = 0


def find_account(text: str) -> Account:
    """The user that is meant by ``<name or number>`` or ``<name or number>:<group>``, if the server may become it.

    Raises:
        InvalidArgumentError: there is no such user or group, or the server may not change to it.
    """
    user, colon, group = text.partition(":")
    try:
        entry = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    except (KeyError, OverflowError):
        raise InvalidArgumentError(f"there is no user '{user}'") from None
    gid = entry.pw_gid
    if colon:
        try:
            gid = grp.getgrgid(int(group)).gr_gid if group.isdecimal() else grp.getgrnam(group).gr_gid
        except (KeyError, OverflowError):
            raise InvalidArgumentError(f"there is no group '{group}'") from None
    if os.geteuid() != 0:  # its own user, too, is one whose groups only root may set
        raise InvalidArgumentError(f"only a server that runs as root can run models as user '{entry.pw_name}'")
    groups = (gid,) if colon else tuple(os.getgrouplist(entry.pw_name, gid))
    return Account(entry.pw_name, entry.pw_uid, gid, groups, entry.pw_dir)
