"""Serving apps, Python files with models made from functions: `trireme serve app.py --reload` (docs/python.md).

An app becomes a repository of its own, in a temporary folder, whose models are ordinary ones of the Python backend.
With ``--reload`` the app and what it imports from beside are looked at every `LOOK_S`; when they have changed, the
repository is written again and looked through, as in the control mode "poll". An app that is faulty then changes
nothing: the log has file and line, and what was loaded goes on.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import trio

from ...actors import InferenceServer
from ...apps.app_models import AppModels, AppTarget
from ...apps.inspecting import AppError
from ...engine.backends.confinement import Account
from ...engine.description import ModelState
from ...engine.options import ControlMode, ServerOptions
from ...engine.repository.temporary import TemporaryFolder
from .checked_apps import in_app
from .findings import Finding
from .flags import ParsedFlags, UsageError, is_app

logger = logging.getLogger("trireme.apps")

LOOK_S = 0.5


class AppSettings(NamedTuple):
    """Which apps are served, and whether they are followed."""

    targets: tuple[AppTarget, ...]
    reload: bool


def app_settings(flags: ParsedFlags) -> AppSettings | None:
    """What the words that are no options ask for, but for directories; None if there is no app.

    Raises:
        UsageError: a word is neither an app nor a directory, or a flag does not go with it.
    """
    targets: list[AppTarget] = []
    for word in flags.operands:
        if is_app(word):
            targets.append(AppTarget.read(word))
        elif not Path(word).is_dir():
            raise UsageError(
                f"Unexpected argument: {word}\nthere is no directory '{word}'; words that are no flags are "
                "directories, or Python files (app.py, …)"
            )
    mode = ControlMode(flags["model-control-mode"])
    if flags["reload"]:
        if not targets:
            raise UsageError("Error: '--reload' has no effect without a Python file with models, such as app.py.")
        if mode.takes_orders:
            raise UsageError(f"Error: '--reload' and '--model-control-mode={mode.value}' cannot be combined.")
    return AppSettings(tuple(targets), flags["reload"]) if targets else None


class ServedApps:
    """The apps of a running server.

    Raises:
        OSError: there is no room for the folder.
    """

    def __init__(self, settings: AppSettings, options: ServerOptions) -> None:
        account = options.confinement.account
        self._settings = settings
        self._folder = TemporaryFolder("apps")
        if account is not None:
            self._folder.share()
        self._models = AppModels(settings.targets, self._folder.path, _process_options(account))
        self.options = replace(options, model_repository=(*options.model_repository, self._folder.path))

    def told(self, finding: Finding) -> Finding:
        """See `in_app`."""
        return in_app(finding, self._models)

    async def write(self) -> None:
        """Write the models of all apps; of those that are faulty later, if they are followed.

        Raises:
            AppError: they are faulty, and are not followed.
        """
        try:
            await trio.to_thread.run_sync(self._models.write, self._models.paths)
        except AppError as error:
            if not self._settings.reload:
                raise
            _tell_faulty(error, "it is served when it is mended")

    async def follow(self, server: InferenceServer) -> None:
        """Load what changes, until cancelled; returns at once if that was not asked for."""
        while self._settings.reload:
            await trio.sleep(LOOK_S)
            changed = await trio.to_thread.run_sync(self._models.changed)
            if not changed:
                continue
            try:
                await trio.to_thread.run_sync(self._models.write, changed)
            except AppError as error:
                _tell_faulty(error, "what was loaded of it goes on")
                if len(changed) == 1:
                    continue
            await server.follow_repositories()
            self._tell(server, changed)

    def _tell(self, server: InferenceServer, changed: list[Path]) -> None:
        ours = {path.name for path in self._folder.path.iterdir()}
        ready = [row.name for row in server.repository_index() if row.state is ModelState.READY and row.name in ours]
        names = ", ".join(path.name for path in changed)
        logger.info("%s changed; serving: %s", names, ", ".join(sorted(ready)) or "none of its models")

    def close(self) -> None:
        """Remove the folder."""
        self._folder.remove()


def _tell_faulty(error: AppError, consequence: str) -> None:
    first, _, others = str(error).partition("\n")
    logger.error("%s; %s", first, consequence, extra={"detail": others})


@contextlib.contextmanager
def open_apps(settings: AppSettings, options: ServerOptions) -> Iterator[ServedApps]:
    """The apps, for the length of a `with` block."""
    apps = ServedApps(settings, options)
    try:
        yield apps
    finally:
        apps.close()


def _process_options(account: Account | None) -> Mapping[str, Any] | None:
    """Of the process that imports an app: it runs as its models do."""
    if account is None:
        return None
    return {"user": account.uid, "group": account.gid, "extra_groups": account.groups}
