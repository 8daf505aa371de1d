"""Environments of their own for peers: virtual environments in the cache folder, with pinned packages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

INSTALL_TIMEOUT_S = 1800.0


class UnavailableError(Exception):
    """A peer cannot take part; the message says why, in a line."""


def install(folder: Path, requirements: Sequence[str], *flags: str) -> Path:
    """Install packages into a virtual environment, unless the same ones are there; its `bin` folder.

    Args:
        flags: for ``pip install``.

    Raises:
        UnavailableError: they cannot be installed.
    """
    stamp = folder / "installed.txt"
    wanted = "\n".join([sys.version, *requirements, *flags])
    if stamp.exists() and stamp.read_text() == wanted:
        return folder / "bin"
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, *flags, *requirements])
    stamp.write_text(wanted)
    return folder / "bin"


def site_packages(binaries: Path) -> Path:
    """Where the packages of an environment are."""
    return Path(_run([str(binaries / "python"), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]))


def library_folder() -> Path:
    """Where this Python's own shared library is, if it has one."""
    import sysconfig

    return Path(sysconfig.get_config_var("LIBDIR") or "")


def _run(words: list[str]) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"not installed: {error}") from error
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise UnavailableError(f"not installed: {lines[-1] if lines else 'pip failed'}")
    return done.stdout.strip()
