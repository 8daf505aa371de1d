"""The cache of repositories in object stores, when others use it, its directory or the machine, too."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from stored_models import Told, repository

from trireme.engine.cancellation import Cancellation
from trireme.engine.errors import UnavailableError
from trireme.engine.options import ServerOptions
from trireme.engine.repository.cloud import cache as cache_module
from trireme.engine.repository.cloud.cache import RepositoryCache
from trireme.engine.repository.cloud.listing import RemoteObject
from trireme.engine.repository.cloud.repository import CloudRepository, FetchedModel

MODEL = {"m/config.pbtxt": b'backend: "valued"', "m/1/model.bin": bytes(range(40))}


@pytest.fixture
def told() -> Told:
    store = Told()
    store.put(MODEL)
    return store


def fetch(where: CloudRepository) -> FetchedModel:
    (model,) = where.scan().models
    fetched = model.fetch(ServerOptions(), None, Cancellation())
    assert isinstance(fetched, FetchedModel)
    return fetched


def test_what_is_not_of_the_cache_stays(told: Told, tmp_path: Path) -> None:
    """Even if it looks like it: the directory may be one of others, too."""
    kept = [tmp_path / name for name in ("elsewhere/objects/mine", "project/objects/mine", "project/parts/mine")]
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 100)
    (tmp_path / "0123456789abcdef").symlink_to(tmp_path / "elsewhere")
    fetched = fetch(repository(told, tmp_path, limit_bytes=50))
    fetched.load_ended(True)
    fetched.dispose()
    assert all(path.exists() for path in kept)


def test_a_file_that_another_server_begins_with_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it was not locked yet when the cache was looked at."""
    monkeypatch.setattr(cache_module, "_is_locked", lambda path: False)
    cache = RepositoryCache(tmp_path, "s3://bucket", None)
    part = cache.begin(RemoteObject("1/model.bin", "m/1/model.bin", 3, "tag", True, 1))
    cache.clean([])
    assert part.path.exists()
    part.close()
    cache.clean([])
    assert not part.path.exists()


def test_a_cache_that_is_gone_costs_no_unload(told: Told, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    fetched = fetch(repository(told, cache, limit_bytes=50))
    fetched.load_ended(True)
    shutil.rmtree(cache)
    fetched.dispose()


@pytest.mark.parametrize("most", [0, 1])
def test_without_threads_it_is_slower_or_fails(
    most: int, told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing goes on behind the load that has failed, nor stays open."""
    start, started = threading.Thread.start, list[threading.Thread]()

    def limited(thread: threading.Thread) -> None:
        if len(started) == most:
            raise RuntimeError("can't start new thread")
        start(thread)
        started.append(thread)

    told.put({"m/2/large.bin": bytes(range(40))})
    here = repository(told, tmp_path)
    first = here.scan().models[0]
    wanted = here.model(first.name).objects
    folder, directory = here.new_directory("m")
    monkeypatch.setattr(threading.Thread, "start", limited)
    if most:
        assert here.bring("m", wanted, directory, Cancellation())
        assert (directory / "2/large.bin").read_bytes() == bytes(range(40))
    else:
        with pytest.raises(UnavailableError, match="model 'm' cannot be fetched: can't start new thread"):
            here.bring("m", wanted, directory, Cancellation())
    assert not any(thread.is_alive() for thread in started)
    folder.remove()
