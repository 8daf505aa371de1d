"""Repositories in object stores: what is listed, fetched, kept, and said when something is wrong."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from obstore.exceptions import GenericError, PermissionDeniedError
from stored_models import ADDRESS, Told, repository

from trireme.engine.cancellation import Cancellation
from trireme.engine.errors import (
    CancelledError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    TriremeError,
    UnavailableError,
)
from trireme.engine.options import ServerOptions
from trireme.engine.repository.agents import AgentRegistry
from trireme.engine.repository.cloud import plans
from trireme.engine.repository.cloud.repository import CloudRepository, FetchedModel
from trireme.engine.repository.cloud.store import ObjectChangedError, RemoteStore

OPTIONS = ServerOptions()
CONFIG = b'backend: "valued" version_policy { latest { num_versions: 1 } }'
MODEL = {
    "m/config.pbtxt": CONFIG,
    "m/labels.txt": b"cat",
    "m/1/model.bin": b"one",
    "m/2/model.bin": b"two",
    "m/2/more/deep.bin": b"deep",
}


@pytest.fixture
def told() -> Told:
    store = Told()
    store.put(MODEL)
    return store


def fetch(where: CloudRepository, name: str = "m", config_json: str | None = None) -> FetchedModel:
    (model,) = (each for each in where.scan().models if each.name == name)
    fetched = model.fetch(OPTIONS, config_json, Cancellation())
    assert isinstance(fetched, FetchedModel)
    return fetched


def tree(fetched: FetchedModel) -> dict[str, bytes]:
    files = (path for path in fetched.directory.rglob("*") if path.is_file())
    return {path.relative_to(fetched.directory).as_posix(): path.read_bytes() for path in files}


def cached(cache: Path) -> int:
    return sum(1 for _ in cache.glob("*/objects/*"))


def test_a_look_fetches_nothing(told: Told, tmp_path: Path) -> None:
    told.put({"README.md": b"", "other/1/x": b"x"})
    scan = repository(told, tmp_path).scan()
    assert [model.name for model in scan.models] == ["m", "other"]
    assert told.asked == ["list"]
    assert list(tmp_path.iterdir()) == []


def test_what_the_configuration_asks_for_is_fetched(told: Told, tmp_path: Path) -> None:
    fetched = fetch(repository(told, tmp_path))
    assert tree(fetched) == {
        "config.pbtxt": CONFIG,
        "labels.txt": b"cat",
        "2/model.bin": b"two",
        "2/more/deep.bin": b"deep",
    }
    assert told.read[:2] == ["m/config.pbtxt", "m/labels.txt"]
    opened, config = fetched.open(OPTIONS, None, AgentRegistry())
    assert (opened, config.name, fetched.versions(config)) == (fetched, "m", (2,))
    assert fetched.files(2).model_directory.name == "m"


def test_with_a_configuration_of_the_request_its_versions_are_fetched(told: Told, tmp_path: Path) -> None:
    override = '{"name": "m", "backend": "valued", "version_policy": {"specific": {"versions": [1, 9]}}}'
    fetched = fetch(repository(told, tmp_path), config_json=override)
    assert {"1/model.bin"} == {path for path in tree(fetched) if path[0].isdigit()}


def test_with_agents_all_versions_are_fetched(told: Told, tmp_path: Path) -> None:
    told.put({"m/config.pbtxt": CONFIG + b' model_repository_agents { agents { name: "checksum" } }'})
    assert "1/model.bin" in tree(fetch(repository(told, tmp_path)))


def test_an_invalid_configuration_is_all_that_is_fetched(told: Told, tmp_path: Path) -> None:
    told.put({"m/config.pbtxt": b"backend 7"})
    with pytest.raises(InternalError, match="failed to read text proto from"):
        fetch(repository(told, tmp_path))
    assert set(told.read) == {"m/config.pbtxt", "m/labels.txt"}


def test_empty_version_directories_are_there(told: Told, tmp_path: Path) -> None:
    told.put({"e/config.pbtxt": b'platform: "ensemble"', "e/1": b""})
    fetched = fetch(repository(told, tmp_path), "e")
    assert (fetched.directory / "1").is_dir()


def test_what_did_not_change_is_not_fetched_again(told: Told, tmp_path: Path) -> None:
    """Neither by the same server nor by the next one."""
    here = repository(told, tmp_path)
    first = fetch(here)
    told.put({"m/config.pbtxt": CONFIG + b" max_batch_size: 4"})
    told.asked.clear()
    second = fetch(here)
    assert told.read == ["m/config.pbtxt"]
    assert tree(first)["config.pbtxt"] == CONFIG
    assert tree(second)["config.pbtxt"] != CONFIG
    told.asked.clear()
    third = fetch(repository(told, tmp_path))
    assert told.asked == ["list"]
    assert tree(third) == tree(second)
    weights = [each.directory / "2/model.bin" for each in (first, second, third)]
    assert len({path.stat().st_ino for path in weights}) == 1


def test_only_a_change_gives_a_new_revision(told: Told, tmp_path: Path) -> None:
    here = repository(told, tmp_path)

    def revisions() -> dict[str, int]:
        return {model.name: model.modified_ns() for model in here.scan().models}

    told.put({"n/1/x": b"x"})
    first = revisions()
    assert revisions() == first
    told.put({"n/1/x": b"y"})
    second = revisions()
    assert second["m"] == first["m"]
    assert second["n"] > max(first.values())
    told.drop("m/1/model.bin")
    assert revisions()["m"] > second["n"]


def test_contents_and_outdated(told: Told, tmp_path: Path) -> None:
    here = repository(told, tmp_path)
    first = fetch(here)
    assert not first.outdated(first.contents(), 0)
    told.put({"m/config.pbtxt": CONFIG + b" "})
    assert first.outdated(first.contents(), 0)
    second = fetch(here)
    assert second.contents() == first.contents()
    told.put({"m/1/model.bin": b"other"})
    assert fetch(here).contents() != first.contents()
    told.refusal = GenericError("out of reach")
    assert not first.outdated(first.contents(), 0)
    told.refusal = None
    told.drop(*MODEL)
    assert first.outdated(first.contents(), 0)


def test_what_changes_while_it_is_read_is_fetched_anew(told: Told, tmp_path: Path) -> None:
    """The directory is of one listing: it holds no file of the model before, and none of half a model."""

    def change(asked: Any) -> None:
        if asked[0] == "m/2/model.bin":
            told.before = lambda _asked: None
            told.put({"m/2/model.bin": b"new", "m/2/late.bin": b"late"})

    told.before = change
    files = tree(fetch(repository(told, tmp_path)))
    assert (files["2/model.bin"], files["2/late.bin"]) == (b"new", b"late")


def test_what_was_added_after_all_was_read_counts_too(told: Told, tmp_path: Path) -> None:
    def add(asked: Any) -> None:
        if asked == "list" and len(told.read) == 4:
            told.before = lambda _asked: None
            told.put({"m/2/late.bin": b"late"})

    told.before = add
    assert "2/late.bin" in tree(fetch(repository(told, tmp_path)))


def test_what_changes_all_the_time_is_given_up(told: Told, tmp_path: Path) -> None:
    def change(asked: Any) -> None:
        if asked[0] == "m/2/model.bin":
            told.put({"m/2/model.bin": b"new"})

    told.before = change
    with pytest.raises(UnavailableError, match=r"'m' of .* has changed 3 times while it was being fetched"):
        fetch(repository(told, tmp_path))
    assert list(tmp_path.glob("*/models/*")) == []


def test_a_store_that_knows_no_conditions_is_looked_at_all_the_same(told: Told) -> None:
    """What it gives is another object than the one that was listed, of the same size."""
    store = RemoteStore(ADDRESS, told)
    (listed,) = (each for each in store.list() if each.path == "m/2/model.bin")
    assert bytes(store.read(listed, 0, 3)) == b"two"
    told.put({"m/2/model.bin": b"new"})
    told.knows_conditions = False
    with pytest.raises(ObjectChangedError, match="has changed since it was listed"):
        store.read(listed, 0, 3)


def test_what_goes_while_it_is_read_is_gone(told: Told, tmp_path: Path) -> None:
    def drop(asked: Any) -> None:
        if asked[0] == "m/2/model.bin":
            told.before = lambda _asked: None
            told.drop(*MODEL)

    told.before = drop
    with pytest.raises(NotFoundError, match="model 'm' is not in the repository 's3://bucket/models' any more"):
        fetch(repository(told, tmp_path))


def test_names_that_cannot_be_files_end_the_load_of_their_model(told: Told, tmp_path: Path) -> None:
    told.put({"bad/1/x": b"x", "bad/1/x/y": b"y"})
    with pytest.raises(InvalidArgumentError, match="'s3://bucket/models' has no usable model 'bad': the object"):
        fetch(repository(told, tmp_path), "bad")
    assert tree(fetch(repository(told, tmp_path)))


def test_a_file_that_a_model_has_changed_is_fetched_again(told: Told, tmp_path: Path) -> None:
    here = repository(told, tmp_path)
    fetched = fetch(here)
    path = fetched.directory / "2/model.bin"
    assert path.stat().st_mode & 0o777 == 0o444
    path.chmod(0o644)
    path.write_bytes(b"bad")
    assert tree(fetch(here))["2/model.bin"] == b"two"


class TestRanges:
    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("trireme.engine.repository.cloud.cache.RECORD_BYTES", 20)
        left = plans.ranges_left
        monkeypatch.setattr(
            "trireme.engine.repository.cloud.cache.ranges_left", lambda size, done: left(size, done, 10)
        )

    def test_a_large_object_is_fetched_in_ranges(self, told: Told, tmp_path: Path) -> None:
        data = bytes(range(95))
        told.put({"m/2/model.bin": data})
        assert tree(fetch(repository(told, tmp_path)))["2/model.bin"] == data
        ranges = sorted(each[1:] for each in told.asked if each[0] == "m/2/model.bin" and isinstance(each, tuple))
        assert ranges == [(first, min(first + 10, 95)) for first in range(0, 95, 10)]

    def test_an_attempt_goes_on_with_what_the_last_one_has_left(self, told: Told, tmp_path: Path) -> None:
        data = bytes(range(95))
        told.put({"m/2/model.bin": data})

        def fail(asked: Any) -> None:
            if asked[:2] == ("m/2/model.bin", 70):
                raise GenericError("connection lost")

        told.before = fail
        with pytest.raises(TriremeError, match="connection lost"):
            fetch(repository(told, tmp_path))
        there = sum(1 for each in told.asked if each[0] == "m/2/model.bin")
        told.before = lambda _asked: None
        told.asked.clear()
        assert tree(fetch(repository(told, tmp_path)))["2/model.bin"] == data
        again = sum(1 for each in told.asked if each[0] == "m/2/model.bin")
        assert 1 <= again <= 10 - (there - 1)
        assert list(tmp_path.glob("*/parts/*")) == []

    def test_the_log_says_how_far_it_is(self, told: Told, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """From time to time, and at the end; also what an earlier attempt had got."""
        caplog.set_level("INFO")
        told.put({"m/2/model.bin": bytes(95)})
        clock = SimpleNamespace(now_s=lambda: 3.0 * len(told.asked))

        def fail(asked: Any) -> None:
            if asked[:2] == ("m/2/model.bin", 90):
                raise GenericError("connection lost")

        for told.before in (fail, lambda _asked: None):
            here = repository(told, tmp_path)
            here._clock = clock  # pyright: ignore[reportAttributeAccessIssue]
            with suppress(TriremeError):
                fetch(here)
        said = [record.message for record in caplog.records if "fetch" in record.message]
        assert any(re.fullmatch(r"fetching model 'm': \d+ % \(\d+ of 99 bytes\)", each) for each in said)
        end = r"fetched \d+ bytes of model 'm' in \d+\.0 s, of which \d+ bytes were there from an earlier attempt"
        assert re.fullmatch(end, said[-1]), said

    def test_ranges_of_another_object_do_not_count(self, told: Told, tmp_path: Path) -> None:
        """What was begun is of the object that was there then."""

        def fail(asked: Any) -> None:
            if asked[:2] == ("m/2/model.bin", 70):
                raise GenericError("connection lost")

        told.put({"m/2/model.bin": b"x" * 95})
        told.before = fail
        with pytest.raises(TriremeError, match="connection lost"):
            fetch(repository(told, tmp_path))
        told.before = lambda _asked: None
        told.put({"m/2/model.bin": b"y" * 95})
        assert tree(fetch(repository(told, tmp_path)))["2/model.bin"] == b"y" * 95
        assert list(tmp_path.glob("*/parts/*")) == []  # nothing lists it any more

    def test_a_cancelled_download_begins_nothing_more(self, told: Told, tmp_path: Path) -> None:
        told.put({"m/2/model.bin": b"x" * 1000})
        cancellation = Cancellation()

        def cancel(asked: Any) -> None:
            if asked[:2] == ("m/2/model.bin", 200):
                cancellation.cancel()

        told.before = cancel
        (model,) = repository(told, tmp_path).scan().models
        with pytest.raises(CancelledError, match="the download of model 'm' was ended"):
            model.fetch(OPTIONS, None, cancellation)
        assert sum(1 for each in told.asked if each[0] == "m/2/model.bin") <= 21 + 8
        assert list(tmp_path.glob("*/models/*")) == []

    def test_another_server_fetches_the_same_for_itself(self, told: Told, tmp_path: Path) -> None:
        """While one fetches an object, the other does not wait, and neither spoils what the other has."""
        others: list[dict[str, bytes]] = []
        told.put({"m/2/model.bin": bytes(range(95))})

        def other(asked: Any) -> None:
            if asked[:2] == ("m/2/model.bin", 50):
                told.before = lambda _asked: None
                others.append(tree(fetch(repository(told, tmp_path))))

        told.before = other
        files = tree(fetch(repository(told, tmp_path)))
        assert others == [files]
        assert cached(tmp_path) == 4


class TestCleaning:
    def test_what_is_listed_no_more_goes_when_it_is_not_used(self, told: Told, tmp_path: Path) -> None:
        here = repository(told, tmp_path)
        first = fetch(here)
        told.put({"m/2/model.bin": b"new"})
        second = fetch(here)
        assert tree(first)["2/model.bin"] == b"two"
        assert cached(tmp_path) == 5
        first.load_ended(True)
        first.dispose()
        assert cached(tmp_path) == 4
        second.load_ended(True)
        second.dispose()
        assert cached(tmp_path) == 4
        assert list(tmp_path.glob("*/models/*")) == []

    def test_a_limit_keeps_what_is_used(self, told: Told, tmp_path: Path) -> None:
        here = repository(told, tmp_path, limit_bytes=1)
        fetched = fetch(here)
        assert cached(tmp_path) == 4
        assert tree(fetched)["2/model.bin"] == b"two"
        fetched.load_ended(True)
        fetched.dispose()
        assert cached(tmp_path) == 0

    def test_the_limit_is_for_all_repositories_of_the_cache(self, told: Told, tmp_path: Path) -> None:
        other = tmp_path / "0123456789abcdef" / "objects"
        other.mkdir(parents=True)
        (other / "old").write_bytes(b"x" * 100)
        fetch(repository(told, tmp_path, limit_bytes=50))
        assert not (other / "old").exists()
        (other / "old").write_bytes(b"x" * 100)
        fetch(repository(told, tmp_path))
        assert (other / "old").exists()

    def test_what_a_killed_server_has_left_goes(self, told: Told, tmp_path: Path) -> None:
        fetched = fetch(repository(told, tmp_path))
        root = fetched.directory.parent.parent
        abandoned = root.with_name("trireme-model-abandoned")
        abandoned.mkdir()
        (abandoned / ".trireme-lock").touch()
        fetch(repository(told, tmp_path))
        assert not abandoned.exists()
        assert root.exists()


class TestErrors:
    def test_a_path_without_anything_is_none(self, tmp_path: Path) -> None:
        """Of a repository of which all models have gone that is no news."""
        told = Told()
        here = repository(told, tmp_path)
        with pytest.raises(InvalidArgumentError, match="repository path is not a valid directory: s3://bucket/models"):
            here.scan()
        told.put(MODEL)
        assert here.scan().models
        told.drop(*MODEL)
        assert here.scan().models == ()

    def test_a_token_in_an_address_is_not_told(self, told: Told, tmp_path: Path) -> None:
        told.refusal = GenericError("Error performing GET https://user:secret@a.b/c?sv=1&sig=secret in 1ms: odd")
        with pytest.raises(InternalError, match=r"GET https://a\.b/c in 1ms: odd$"):
            repository(told, tmp_path).scan()

    def test_access_refused(self, told: Told, tmp_path: Path) -> None:
        """The store is opened anew for the next look: there may be other credentials by then."""
        here = repository(told, tmp_path)
        opened: list[Any] = []
        opener = here._open_store
        here._open_store = lambda: opened.append(1) or opener()  # pyright: ignore[reportAttributeAccessIssue]
        told.refusal = PermissionDeniedError("no right to list")
        with pytest.raises(UnavailableError) as caught:
            here.scan()
        assert caught.value.message == (
            "failed to list the repository 's3://bucket/models': access was refused, check the credentials and what "
            "they allow (no right to list)"
        )
        told.refusal = None
        assert here.scan().models
        here.scan()
        assert len(opened) == 2

    @pytest.mark.parametrize(
        ("text", "kind", "said"),
        [
            (
                "status code: 403 Forbidden: <Code>X</Code><Message>why</Message>",
                UnavailableError,
                "access was refused, ",
            ),
            (
                "status code: 404 Not Found: <Code>NoSuchBucket</Code><Message>m",
                NotFoundError,
                "there is no such bucket",
            ),
            (
                "status code: 503 Slow Down: <Code>SlowDown</Code><Message>m",
                UnavailableError,
                "the store is overloaded",
            ),
            ("status code: 429 Too Many Requests", UnavailableError, "the store is overloaded"),
            ("status code: 301 Moved", InvalidArgumentError, "the store refuses the request, check the region"),
            (
                'error sending\n\nConnectError( "tcp", message: "refused"',
                UnavailableError,
                "the store cannot be reached",
            ),
            ("odd", InternalError, "odd"),
        ],
    )
    def test_what_the_library_says(
        self, told: Told, tmp_path: Path, text: str, kind: type[TriremeError], said: str
    ) -> None:
        told.refusal = GenericError(text)
        with pytest.raises(kind) as caught:
            repository(told, tmp_path).scan()
        assert caught.value.message.startswith(f"failed to list the repository 's3://bucket/models': {said}")

    def test_a_cache_that_cannot_be_written(self, told: Told, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(InternalError, match="failed to make the folders of 's3://bucket/models' in the repository"):
            fetch(repository(told, tmp_path / "file"))

    def test_a_disk_that_is_full(self, told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(_descriptor: int, _data: object, _position: int) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(
            InternalError, match=r"failed to write 'models/m/.*' in the repository cache: No space left"
        ):
            fetch(repository(told, tmp_path))
