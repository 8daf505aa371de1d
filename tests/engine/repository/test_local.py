"""Model repositories on disk: which directories are models, which are versions (docs/reference/model-control.md#layout,
docs/reference/model-control.md#versions)."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

from trireme.engine.config.model import ModelConfig, VersionPolicy
from trireme.engine.errors import InternalError, InvalidArgumentError
from trireme.engine.options import ServerOptions
from trireme.engine.repository.agents import AgentRegistry
from trireme.engine.repository.local import LocalModel, LocalRepository, version_directories
from trireme.engine.repository.source import Scan


def make(root: Path, *directories: str) -> Path:
    for directory in directories:
        (root / directory).mkdir(parents=True)
    return root


def names(scan: Scan) -> list[str]:
    return [model.name for model in scan.models]


class TestModels:
    def test_every_directory_is_a_model_in_the_order_of_names(self, tmp_path: Path) -> None:
        repository = LocalRepository([make(tmp_path, "zebra", "ape/1", "1", ".hidden", "two words")])
        assert names(repository.scan()) == [".hidden", "1", "ape", "two words", "zebra"]

    def test_files_and_links_that_lead_nowhere_are_ignored(self, tmp_path: Path) -> None:
        make(tmp_path, "model")
        (tmp_path / "notes.txt").write_text("notes")
        (tmp_path / "dangling").symlink_to("nowhere")
        (tmp_path / "circle").symlink_to("circle")
        (tmp_path / "file_link").symlink_to("notes.txt")
        assert names(LocalRepository([tmp_path]).scan()) == ["model"]

    def test_a_link_to_a_directory_is_a_model_under_its_own_name(self, tmp_path: Path) -> None:
        make(tmp_path, "elsewhere/original/3", "repository")
        (tmp_path / "repository" / "linked").symlink_to("../elsewhere/original")
        (model,) = LocalRepository([tmp_path / "repository"]).scan().models
        assert model.name == "linked"
        assert model.versions(ModelConfig("linked")) == (3,)

    @pytest.mark.parametrize("namespacing", [False, True])
    def test_a_directory_whose_name_is_no_text_is_no_model(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, namespacing: bool
    ) -> None:
        """It could not be listed to clients; it is told of once, as long as it is there."""
        make(tmp_path, "model", "b\udcff")
        repository = LocalRepository([tmp_path], namespacing=namespacing)
        for _ in range(2):
            assert names(repository.scan()) == ["model"]
        text = f"ignore model directory '{tmp_path}/b\udcff' whose name is no valid UTF-8"
        assert caplog.messages == [text]
        (tmp_path / "b\udcff").rmdir()
        repository.scan()
        make(tmp_path, "b\udcff")
        repository.scan()
        assert caplog.messages == [text, text]

    def test_an_empty_repository_has_no_models(self, tmp_path: Path) -> None:
        assert LocalRepository([tmp_path]).scan() == Scan(())

    def test_what_came_and_went_is_seen_by_the_next_scan(self, tmp_path: Path) -> None:
        repository = LocalRepository([make(tmp_path, "old")])
        assert names(repository.scan()) == ["old"]
        (tmp_path / "old").rename(tmp_path / "new")
        assert names(repository.scan()) == ["new"]

    def test_several_repositories_are_looked_at_as_one(self, tmp_path: Path) -> None:
        make(tmp_path, "a/one", "a/three", "b/two")
        assert names(LocalRepository([tmp_path / "b", tmp_path / "a"]).scan()) == ["one", "three", "two"]

    def test_a_name_in_two_repositories_is_no_model_but_a_duplicate(self, tmp_path: Path) -> None:
        make(tmp_path, "a/both", "a/one", "b/both", "b/two", "c/both")
        scan = LocalRepository([tmp_path / each for each in "abc"]).scan()
        assert names(scan) == ["one", "two"]
        assert scan.duplicates == ("both",)

    def test_the_same_repository_twice_counts_once(self, tmp_path: Path) -> None:
        scan = LocalRepository([make(tmp_path, "model"), tmp_path]).scan()
        assert (names(scan), scan.duplicates) == (["model"], ())

    @pytest.mark.parametrize("kind", ["missing", "circle"])
    def test_a_path_that_cannot_be_read_is_named(self, tmp_path: Path, kind: str) -> None:
        path = tmp_path / kind
        if kind == "circle":
            path.symlink_to("circle")
        with pytest.raises(InternalError) as caught:
            LocalRepository([tmp_path, path]).scan()
        assert caught.value.message == f"failed to stat file {path}"

    def test_a_file_is_no_repository(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(InvalidArgumentError) as caught:
            LocalRepository([tmp_path, tmp_path / "file"]).scan()
        assert caught.value.message == f"repository path is not a valid directory: {tmp_path / 'file'}"


class TestVersions:
    def test_plain_numbers_are_versions_in_numerical_order(self, tmp_path: Path) -> None:
        assert version_directories(make(tmp_path, "10", "9", "0", "123456789")) == (0, 9, 10, 123456789)

    @pytest.mark.parametrize("name", ["warmup", "initial_state", "configs"])
    def test_reserved_names_are_passed_over_in_silence(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
    ) -> None:
        assert version_directories(make(tmp_path, name, "1")) == (1,)
        assert caplog.records == []

    @pytest.mark.parametrize("name", ["07", "00", "010"])
    def test_leading_zeros_are_warned_about(self, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
        assert version_directories(make(tmp_path, name, "1")) == (1,)
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert record.getMessage() == (
            f"ignore version directory '{name}' which contains leading zeros in its directory name"
        )

    @pytest.mark.parametrize(
        "name", ["one", "1a", "-1", "+1", "1.0", "1_0", " 1", "²", "٣", "Warmup", str(2**63), "9" * 200]
    )
    def test_what_is_no_number_is_warned_about(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
    ) -> None:
        assert version_directories(make(tmp_path, name, "1")) == (1,)
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert record.getMessage() == (f"ignore version directory '{name}' which fails to convert to integral number")

    def test_files_are_ignored_whatever_they_are_called(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        make(tmp_path, "1")
        for name in ("2", "03", "config.pbtxt", "labels.txt"):
            (tmp_path / name).write_text("")
        (tmp_path / "4").symlink_to("4")
        assert version_directories(tmp_path) == (1,)
        assert caplog.records == []

    def test_the_policy_chooses(self, tmp_path: Path) -> None:
        model = LocalModel(make(tmp_path, "1", "2", "11", "warmup"))
        for policy, chosen in (
            (VersionPolicy(latest=1), (11,)),
            (VersionPolicy(latest=2), (2, 11)),
            (VersionPolicy(all_versions=True), (1, 2, 11)),
            (VersionPolicy(specific=(1, 5)), (1,)),
        ):
            assert model.versions(ModelConfig("m", version_policy=policy)) == chosen

    def test_no_version_is_an_error_of_the_model(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidArgumentError, match=r"at least one version must be available .* 'm'"):
            LocalModel(make(tmp_path, "warmup", "one")).versions(ModelConfig("m"))

    def test_a_model_that_went_away_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(InternalError) as caught:
            LocalModel(tmp_path / "gone").versions(ModelConfig("gone"))
        assert caught.value.message == f"failed to stat file {tmp_path / 'gone'}"


def test_a_model_knows_its_files(tmp_path: Path) -> None:
    make(tmp_path, "m/3")
    (tmp_path / "m" / "config.pbtxt").write_text(
        'backend: "b" input { name: "I" data_type: TYPE_FP32 dims: 1 }'
        ' output { name: "O" data_type: TYPE_FP32 dims: 2 label_filename: "words.txt" }'
    )
    (tmp_path / "m" / "words.txt").write_text("zero\none\n")
    model = LocalModel(tmp_path / "m")
    same, config = model.open(ServerOptions(), None, AgentRegistry())
    assert same is model
    assert (config.name, config.backend) == ("m", "b")
    assert model.files(3).version_directory == tmp_path / "m" / "3"
    assert model.labels(config) == {"O": ("zero", "one")}


class TestContents:
    """What tells a change of anything but the configuration (docs/reference/model-control.md#changes-in-place)."""

    @pytest.fixture
    def model(self, tmp_path: Path) -> LocalModel:
        make(tmp_path, "m/1", "m/configs")
        for name in ("config.pbtxt", "configs/other.pbtxt", "1/model.onnx", "labels.txt"):
            (tmp_path / "m" / name).write_text("a")
        return LocalModel(tmp_path / "m")

    @pytest.mark.parametrize("name", ["config.pbtxt", "configs/other.pbtxt", "configs/new.pbtxt"])
    def test_configurations_do_not_count(self, model: LocalModel, name: str) -> None:
        before = model.contents()
        (model.directory / name).write_text("another one")
        os.utime(model.directory, ns=(1, 1))
        assert model.contents() == before

    @pytest.mark.parametrize("name", ["1/model.onnx", "labels.txt", "1/new", ".config.pbtxt.swp", "1/config.pbtxt"])
    def test_everything_else_does(self, model: LocalModel, name: str) -> None:
        before = model.contents()
        (model.directory / name).write_text("another one")
        assert model.contents() != before

    def test_so_do_times_alone_and_what_is_gone(self, model: LocalModel) -> None:
        seen = {model.contents()}
        os.utime(model.directory / "1" / "model.onnx", ns=(1, 1))
        seen.add(model.contents())
        os.utime(model.directory / "1", ns=(1, 1))
        seen.add(model.contents())
        (model.directory / "labels.txt").unlink()
        seen.add(model.contents())
        assert len(seen) == 4

    def test_another_place_is_another_model(self, model: LocalModel, tmp_path: Path) -> None:
        shutil.copytree(model.directory, tmp_path / "n")
        assert LocalModel(tmp_path / "n").contents() != model.contents()


def test_namespaces_tell_models_apart(tmp_path: Path) -> None:
    for each in "ab":
        make(tmp_path / each, "m", each)
    scan = LocalRepository([tmp_path / "b", tmp_path / "a"], namespacing=True).scan()
    places = [str(tmp_path / each) for each in "aabb"]
    assert [model.namespace for model in scan.models] == places
    assert [model.id for model in scan.models] == [
        f"{place}::{name}" for place, name in zip(places, ("a", "m", "b", "m"), strict=True)
    ]
    assert not scan.duplicates


def test_a_directory_that_cannot_be_looked_at_is_not_outdated(tmp_path: Path) -> None:
    """It may be in the middle of being replaced."""
    unreadable = LocalModel(tmp_path / ("x" * 300), "model")
    assert not unreadable.outdated(unreadable.contents(), 0)
