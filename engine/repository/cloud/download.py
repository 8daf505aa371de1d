"""Fetching what a model needs and the cache has not got: many ranges at a time, of however many files.

Rules:
 1. Ranges are fetched by threads of the download's own. It ends when all of them have ended.
 2. The first error ends the download; what is on the disk stays for the next attempt.
 3. A download that is cancelled begins no range any more, and fails when those that are under way are over.
 4. While it goes on, the log says how far it is, every `TELL_S` seconds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...cancellation import Cancellation
from ...clock import Clock
from ...errors import CancelledError, InternalError, TriremeError, UnavailableError
from .cache import PartialFile, RepositoryCache
from .listing import RemoteObject
from .plans import RANGE_BYTES, ByteRange, progress_text, size_text
from .store import ObjectReader

logger = logging.getLogger("trireme.repository")

THREADS = 8
"""Ranges that a download fetches at a time."""

TELL_S = 5.0


class Download:
    """See above.

    Args:
        name: of the model, for the log.
        wanted: what is to be fetched.
        directory: the model's, where each file gets a link when it is complete.
    """

    def __init__(
        self,
        name: str,
        wanted: Sequence[RemoteObject],
        directory: Path,
        store: ObjectReader,
        cache: RepositoryCache,
        cancellation: Cancellation,
        clock: Clock,
    ) -> None:
        self._name = name
        self._wanted = wanted
        self._directory = directory
        self._store = store
        self._cache = cache
        self._cancellation = cancellation
        self._clock = clock
        self._lock = threading.Lock()  # guards everything below
        self._error: TriremeError | None = None
        self._open: dict[PartialFile, int] = {}  # with how many ranges are still to come
        self._total = sum(each.size for each in wanted)
        self._there = 0
        self._resumed = 0
        self._began_s = self._told_s = clock.now_s()

    def run(self) -> None:
        """Fetch everything.

        Raises:
            ObjectChangedError: an object is not as it was listed any more.
            CancelledError: it was cancelled.
            TriremeError: it cannot be fetched, or not be written.
        """
        pieces = self._pieces()
        count = min(THREADS, sum(1 + each.size // RANGE_BYTES for each in self._wanted))
        names = (f"trireme download {self._name} {number}" for number in range(count))
        threads = [threading.Thread(target=self._work, args=(pieces,), name=name, daemon=True) for name in names]
        started: list[threading.Thread] = []
        for thread in threads:
            try:
                thread.start()
            except RuntimeError as error:  # those that there are do all of it
                if not started:
                    self._fail(UnavailableError(f"model '{self._name}' cannot be fetched: {error}"))
                break
            started.append(thread)
        for thread in started:
            thread.join()
        for part in self._open:
            part.close()
        if self._error is not None:
            raise self._error
        took_s = self._clock.now_s() - self._began_s
        again = f", of which {size_text(self._resumed)} were there from an earlier attempt" if self._resumed else ""
        logger.info("fetched %s of model '%s' in %.1f s%s", size_text(self._total), self._name, took_s, again)

    def _pieces(self) -> Iterator[tuple[PartialFile, ByteRange]]:
        """What is to be fetched, in order. Files are opened when it is their turn."""
        for each in self._wanted:
            part = self._cache.begin(each)
            self._open[part] = len(part.left)
            there = each.size - sum(end - first for first, end in part.left)
            self._there += there
            self._resumed += there
            if not part.left:
                self._complete(part)
            for piece in part.left:
                yield part, piece

    def _complete(self, part: PartialFile) -> None:
        self._cache.complete(part, self._directory)
        del self._open[part]
        part.close()

    def _work(self, pieces: Iterator[tuple[PartialFile, ByteRange]]) -> None:
        """A thread."""
        try:
            while (piece := self._next(pieces)) is not None:
                self._fetch(*piece)
        except TriremeError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - carried to the thread that waits for the download
            self._fail(InternalError(f"fetching model '{self._name}' failed: {type(error).__name__}: {error}"))

    def _next(self, pieces: Iterator[tuple[PartialFile, ByteRange]]) -> tuple[PartialFile, ByteRange] | None:
        with self._lock:
            if self._error is not None:
                return None
            if self._cancellation.cancelled:
                raise CancelledError(f"the download of model '{self._name}' was ended")
            return next(pieces, None)

    def _fail(self, error: TriremeError) -> None:
        with self._lock:
            self._error = self._error or error

    def _fetch(self, part: PartialFile, where: ByteRange) -> None:
        first, end = where
        data = self._store.read(part.wanted, first, end)
        with self._lock:
            part.write(first, data)
            self._open[part] -= 1
            if not self._open[part]:
                self._complete(part)
            self._there += end - first
            self._tell()

    def _tell(self) -> None:
        now_s = self._clock.now_s()
        if now_s - self._told_s >= TELL_S:
            self._told_s = now_s
            logger.info("fetching model '%s': %s", self._name, progress_text(self._there, self._total))
