"""The local cache of one repository in an object store.

    <cache>/<repository>/objects/<key>           objects that are complete
    <cache>/<repository>/parts/<key>.<n>         objects that are being fetched, or were when a server was killed
    <cache>/<repository>/parts/<key>.<n>.json    which ranges of such a one are on the disk
    <cache>/<repository>/models/trireme-.../     a model directory for one load: links to objects

Rules:
 1. A model directory is of one load, and goes with it. Its files are hard links to the objects, so an object with
    another link than the cache's own is used, by whichever server; the kernel counts them.
 2. A file becomes an object when it is complete, by one rename. Before that, it has its link in the model directory.
 3. A file that is being fetched is locked (``flock``). A server that finds it without a lock goes on with it; one that
    needs the same object at the same time fetches it for itself.
 4. A range counts as fetched only when it is on the disk, so also after a power failure.
 5. Objects are read-only, and carry the time when they were modified in the store. One that a model has changed all the
    same is fetched again (`plans`, rule 1).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import orjson

from ...errors import InternalError
from ...tensor import Buffer
from ..temporary import TemporaryFolder, remove_abandoned
from .listing import RemoteModel, RemoteObject
from .plans import ByteRange, CachedFile, merged, plan_cleaning, plan_fetch, ranges_left

logger = logging.getLogger("trireme.repository")

RECORD_BYTES = 64 << 20
"""So much is fetched before it is written down what is on the disk: that is what a kill costs."""

_OBJECT_MODE = 0o444

_NAME = re.compile(r"[0-9a-f]{16}")
"""Of a repository's part: what else is in the directory is none of ours, and stays."""


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """What the file system refuses becomes an error that says what was done."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise InternalError(f"failed to {what} in the repository cache: {error.strerror}{where}") from error


class PartialFile:
    """An object that is being fetched. Locked until it is closed.

    Attributes:
        wanted: the object.
        left: ranges that are not there yet.
    """

    def __init__(self, path: Path, descriptor: int, wanted: RemoteObject) -> None:
        self.path = path
        self.wanted = wanted
        self._descriptor = descriptor
        self._record = path.with_name(f"{path.name}.json")
        self._done = self._read_record()
        self._unrecorded = 0
        self.left = ranges_left(wanted.size, self._done)

    def _read_record(self) -> list[ByteRange]:
        try:
            record = orjson.loads(self._record.read_bytes())
            done = [(int(first), int(end)) for first, end in record["done"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []
        size = os.fstat(self._descriptor).st_size
        return [each for each in done if each[1] <= size]

    def write(self, first: int, data: Buffer) -> None:
        """Put a range in its place. Not two at a time."""
        rest = memoryview(data).cast("B")
        end = first + len(rest)
        position = first
        with _told(f"write '{self.wanted.name}'"):
            while rest:
                written = os.pwrite(self._descriptor, rest, position)
                rest, position = rest[written:], position + written
            self._done.append((first, end))
            self._unrecorded += end - first
            if self._unrecorded >= RECORD_BYTES:
                self.record()

    def record(self) -> None:
        """Write down what is on the disk (rule 4)."""
        if not self._unrecorded:
            return
        os.fdatasync(self._descriptor)
        self._done = merged(self._done)
        about = {"object": self.wanted.name, "size": self.wanted.size, "tag": self.wanted.tag, "done": self._done}
        new = self._record.with_name(f"{self._record.name}.new")
        new.write_bytes(orjson.dumps(about))
        new.rename(self._record)
        self._unrecorded = 0

    def complete(self, target: Path, link: Path) -> None:
        """Every range is there: make it an object, and have it in a model directory (rule 2).

        Raises:
            InternalError: its size is wrong, or the file system refuses.
        """
        with _told(f"complete '{self.wanted.name}'"):
            if os.fstat(self._descriptor).st_size != self.wanted.size:
                raise InternalError(f"'{self.wanted.name}' was not fetched as a whole")
            os.fsync(self._descriptor)
            os.utime(self._descriptor, ns=(self.wanted.modified_ns, self.wanted.modified_ns))
            os.link(self.path, link)
            os.rename(self.path, target)
            os.fchmod(self._descriptor, _OBJECT_MODE)  # not before: a server killed there could not open it again
            self._record.unlink(missing_ok=True)
        self._unrecorded = 0

    def close(self) -> None:
        """Give up the lock; what is on the disk stays."""
        with contextlib.suppress(OSError):
            self.record()
        os.close(self._descriptor)


class RepositoryCache:
    """See above. Callable from several threads.

    Args:
        root: the cache, which may hold those of other repositories.
        address: of the repository.
        limit_bytes: of the whole cache; None for none (`plans`, rule 3).
        keep: what `root` is in, if that goes with this object.

    Raises:
        InternalError: it cannot be made.
    """

    def __init__(self, root: Path, address: str, limit_bytes: int | None, keep: TemporaryFolder | None = None) -> None:
        self._root = root
        self._keep = keep
        self._limit_bytes = limit_bytes
        self._own = root / hashlib.sha256(address.encode()).hexdigest()[:16]
        self._objects, self._parts, self._models = (self._own / each for each in ("objects", "parts", "models"))
        with _told(f"make the folders of '{address}'"):
            for folder in (self._objects, self._parts, self._models):
                folder.mkdir(parents=True, exist_ok=True)
            (self._own / "address").write_text(f"{address}\n")
        remove_abandoned(self._models)

    def new_model(self) -> TemporaryFolder:
        """An empty folder for a model directory (rule 1)."""
        with _told("make a model directory"):
            return TemporaryFolder("model", self._models)

    def link(self, wanted: Collection[RemoteObject], directory: Path) -> tuple[RemoteObject, ...]:
        """Put those objects that are complete into a model directory. What is missing is given back."""
        with _told("link a file"):
            plan = plan_fetch(wanted, {each.key: file for each in wanted if (file := self._object(each.key))})
            missing = list(plan.fetch)
            for each in plan.keep:
                link = directory / each.path
                link.parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.link(self._objects / each.key, link)
                except FileNotFoundError:  # another server has just cleaned the cache
                    missing.append(each)
                except FileExistsError:
                    continue
        return tuple(missing)

    def _object(self, key: str) -> CachedFile | None:
        try:
            status = (self._objects / key).stat()
        except FileNotFoundError:
            return None
        return CachedFile(status.st_size, status.st_mtime_ns)

    def begin(self, wanted: RemoteObject) -> PartialFile:
        """Begin to fetch an object, or go on with what is there of it (rule 3)."""
        with _told(f"open a file for '{wanted.name}'"):
            for number in range(1 << 16):
                path = self._parts / f"{wanted.key}.{number}"
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                with contextlib.ExitStack() as undo:
                    undo.callback(os.close, descriptor)
                    try:
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        if os.stat(path).st_ino != os.fstat(descriptor).st_ino:
                            continue  # it has become an object, and there is another one by now
                    except (BlockingIOError, FileNotFoundError):
                        continue
                    part = PartialFile(path, descriptor, wanted)
                    undo.pop_all()
                    return part
        raise InternalError(f"too many servers fetch '{wanted.name}' into the repository cache")

    def complete(self, part: PartialFile, directory: Path) -> None:
        """See `PartialFile.complete`; the model directory gets the file at its path."""
        link = directory / part.wanted.path
        with _told("make a directory"):
            link.parent.mkdir(parents=True, exist_ok=True)
        part.complete(self._objects / part.wanted.key, link)

    def clean(self, listed: Iterable[RemoteModel]) -> None:
        """Remove what may leave the cache (`plans`, rule 3).

        Args:
            listed: what the repository has now.
        """
        keys = {each.key for model in listed for each in model.objects}
        folders = [self._own] if self._limit_bytes is None else self._all()
        files: dict[str, CachedFile] = {}
        for folder in folders:
            here = keys if folder == self._own else None
            for kind in ("objects", "parts"):
                files.update((str(folder / kind / name), file) for name, file in self._cached(folder / kind, here))
        for path in plan_cleaning(files, self._limit_bytes):
            self._remove(Path(path), files[path])

    def _all(self) -> list[Path]:
        """The parts of all repositories; none if they cannot be read, which costs a model nothing that is unloaded."""
        try:
            found = [path for path in self._root.iterdir() if _NAME.fullmatch(path.name)]
            return [path for path in found if path.is_dir() and not path.is_symlink()]
        except OSError as error:
            logger.warning("the repository cache '%s' cannot be cleaned: %s", self._root, error.strerror)
            return []

    def _remove(self, path: Path, file: CachedFile) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as undo:
            if file.partial:
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                undo.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # another server may just have begun with it
                path.with_name(f"{path.name}.json").unlink(missing_ok=True)
            path.unlink()
            logger.debug("removed '%s' from the repository cache", path)

    @staticmethod
    def _cached(folder: Path, listed: Collection[str] | None = None) -> Iterator[tuple[str, CachedFile]]:
        """Files of the cache by name.

        Args:
            listed: keys that the repository has now; None if that is not known: then all may be.
        """
        partial = folder.name == "parts"
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            return
        for entry in entries:
            if entry.name.endswith((".json", ".new")):
                continue
            try:
                status = entry.stat()
            except OSError:
                continue
            key = entry.name.partition(".")[0]
            used = status.st_nlink > 1 or (partial and _is_locked(entry.path))
            here = listed is None or key in listed
            # The time of the last change is that of the last link: nothing else about an object changes.
            yield (
                entry.name,
                CachedFile(status.st_size, status.st_mtime_ns, used, status.st_ctime_ns, here, partial),
            )


def _is_locked(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
