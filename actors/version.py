"""Which version of Trireme this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def server_version() -> str:
    """Trireme's version, from the installed package's metadata."""
    try:
        return version("trireme")
    except PackageNotFoundError:
        return "0"
