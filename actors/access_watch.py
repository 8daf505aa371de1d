"""Keeps access rules up to date: reads the access file when it changes, and fetches the keys of issuers.

Rules:
 1. The file is watched (`watched_file`). What is read of it replaces the rules as a whole. A missing or faulty one is
    refused: the old rules hold on, and the log says why, once.
 2. Keys are fetched when they are due, and when a token asks for one that is not known. One fetch of an
    issuer's keys is under way at a time. It is bounded in size and time, and follows no redirection. It belongs to
    the watch, and goes on if the client that asked has left.
 3. Both read outside of the event loop, and change the rules on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio

from ..engine.access.control import AccessControl
from ..engine.access.rules import AccessRules, IssuerRule, read_rules
from ..engine.access.tokens import MAX_JWKS_BYTES, Issuer, VerificationKey, read_jwks, require_library
from ..engine.clock import Clock
from ..engine.errors import InvalidArgumentError, TriremeError
from .watched_file import POLL_S, Fingerprint, WatchedFile, read_text

logger = logging.getLogger("trireme.access")

FETCH_LIMIT_S = 15.0
_SOCKET_LIMIT_S = 10.0
_FETCH_THREADS = 8  # of their own: one that was given up may hang on, and others wait for threads, too


class AccessWatch:
    """The task.

    Args:
        path: of the access file.
        seen: what the file was like when the rules in `control` were read.
        poll_s: see rule 1.
    """

    def __init__(
        self, control: AccessControl, path: Path, clock: Clock, seen: Fingerprint = None, poll_s: float = POLL_S
    ) -> None:
        self._control = control
        self._file = WatchedFile(path, seen)
        self._clock = clock
        self._poll_s = poll_s
        self._nursery: trio.Nursery | None = None
        self._began = trio.Event()
        self._fetches: dict[str, trio.Event] = {}
        self._complaints: dict[str, str] = {}
        self._threads = trio.CapacityLimiter(_FETCH_THREADS)

    async def run(self) -> None:
        """Until it is cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._began.set()
            while True:
                for issuer in self._control.keys_due(self._clock.now_s()):
                    self._begin_fetch(issuer)
                await trio.sleep(self._poll_s)
                await self.look()

    async def look(self) -> None:
        """Look at the file, and read it if it has changed (rule 1)."""
        if not await self._file.has_changed():
            return
        try:
            rules = await trio.to_thread.run_sync(load_rules, self._file.path)
        except TriremeError as error:
            self._control.updates["rules_refused"] += 1
            logger.error("the access file is refused, the rules stay as they were: %s", error.message)
            return
        self._control.apply(rules, self._clock.now_s())
        logger.info("the access file was read again: %d callers", len(rules.callers))

    async def fetch_keys(self, name: str) -> None:
        """Fetch the keys of an issuer, once `run` does. What goes wrong is logged, and the token refused then."""
        issuer = self._control.issuer(name)
        if issuer is not None:
            await self._began.wait()
            await self._begin_fetch(issuer).wait()

    def _begin_fetch(self, issuer: Issuer) -> trio.Event:
        """Fetch keys, unless that is under way; what tells its end."""
        name = issuer.rule.name
        done = self._fetches.get(name)
        if done is None:
            assert self._nursery is not None
            done = self._fetches[name] = trio.Event()
            self._nursery.start_soon(self._fetch, issuer, done)
        return done

    async def _fetch(self, issuer: Issuer, done: trio.Event) -> None:
        try:
            await self._fetch_once(issuer)
        finally:
            del self._fetches[issuer.rule.name]
            done.set()

    async def _fetch_once(self, issuer: Issuer) -> None:
        rule, complaint = issuer.rule, "it took too long"
        with trio.move_on_after(FETCH_LIMIT_S):
            fetch: Callable[[], tuple[VerificationKey, ...]] = partial(fetch_jwks, rule, self._file.path.parent)
            try:
                keys = await trio.to_thread.run_sync(fetch, abandon_on_cancel=True, limiter=self._threads)
            except (TriremeError, OSError, RuntimeError, ValueError) as error:  # the last for names that cannot be
                complaint = error.message if isinstance(error, TriremeError) else str(error)
            else:
                self._complaints.pop(rule.name, None)
                self._control.keys_fetched(issuer, keys, self._clock.now_s())
                return
        self._control.keys_failed(issuer, self._clock.now_s())
        if self._complaints.get(rule.name) != complaint:
            self._complaints[rule.name] = complaint
            logger.error("the keys of issuer '%s' cannot be read from %s: %s", rule.name, rule.jwks, complaint)


def load_rules(path: Path) -> AccessRules:
    """The rules in an access file.

    Raises:
        InvalidArgumentError: it cannot be read, or is faulty.
        UnavailableError: it asks for a library that is not installed.
    """
    rules = read_rules(read_text(path), str(path))
    if rules.issuers:
        require_library()
    return rules


def fetch_jwks(rule: IssuerRule, folder: Path) -> tuple[VerificationKey, ...]:
    """The keys of an issuer, from its file or its address. Blocks.

    Raises:
        InvalidArgumentError: what is there are no keys.
        OSError: it cannot be read.
    """
    if rule.is_remote:
        from http.client import HTTPException
        from urllib.request import HTTPRedirectHandler, build_opener

        class NoRedirects(HTTPRedirectHandler):
            def redirect_request(self, *args: object, **others: object) -> None:
                return None

        try:
            with build_opener(NoRedirects).open(rule.jwks, timeout=_SOCKET_LIMIT_S) as answer:
                data = answer.read(MAX_JWKS_BYTES + 1)
        except HTTPException as error:
            raise InvalidArgumentError(f"{type(error).__name__}: {error}") from error
    else:
        with (folder / rule.jwks).open("rb") as file:
            data = file.read(MAX_JWKS_BYTES + 1)
    if len(data) > MAX_JWKS_BYTES:
        raise InvalidArgumentError(f"larger than {MAX_JWKS_BYTES} bytes")
    return read_jwks(data)
