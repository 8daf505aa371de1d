"""What a store lists, as models."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.repository.cloud.listing import RemoteModel, RemoteObject, group_models


def listed(*paths: str, empty: tuple[str, ...] = ()) -> list[RemoteObject]:
    return [RemoteObject(path, f"root/{path}", 0 if path in empty else 3, "t", True, 1) for path in paths]


def paths(model: RemoteModel) -> list[str]:
    return [each.path for each in model.objects]


def test_first_parts_of_names_are_models() -> None:
    found = group_models(listed("b/config.pbtxt", "a/1/x", "a/1/y/z", "README.md", "a/config.pbtxt"))
    assert {name: paths(model) for name, model in found.items()} == {
        "a": ["1/x", "1/y/z", "config.pbtxt"],
        "b": ["config.pbtxt"],
    }
    assert found["a"].objects[0].name == "root/a/1/x"
    assert found["a"].problem == ""


@pytest.mark.parametrize("marks", [("e/", "e/1/", "e/1/sub/"), ("e/1", "e/1/sub")])
def test_empty_objects_that_stand_for_directories(marks: tuple[str, ...]) -> None:
    """Tools make them with a slash at the end and without; a version's needs no file below it."""
    model = group_models(listed("e/config.pbtxt", "e/1/sub/file", *marks, empty=marks))["e"]
    assert (paths(model), model.directories, model.problem) == (["1/sub/file", "config.pbtxt"], (), "")
    model = group_models(listed("e/config.pbtxt", "e/1", empty=("e/1",)))["e"]
    assert (paths(model), model.directories, dict(model.versions)) == (["config.pbtxt"], ("1",), {"1": 1})


def test_an_empty_file_is_a_file() -> None:
    model = group_models(listed("m/1/empty", empty=("m/1/empty",)))["m"]
    assert (paths(model), model.directories) == (["1/empty"], ())


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("m/1/model", "m/1/model/x"), "the object 'root/m/1/model' is not empty, and others have names below it"),
        (("m/../x",), "the name '../x' of an object cannot be that of a file"),
        (("m/../../x/",), "the name '../../x' of an object cannot be that of a file"),
        (("m/1/./x",), "the name '1/./x' of an object"),
        (("m/1//x",), "the name '1//x' of an object"),
        (("m/1/\0",), "of an object cannot be that of a file"),
        (("m/1/" + "x" * 256,), "of an object cannot be that of a file"),
        (("../1/x",), "the name '..' of an object"),
    ],
)
def test_what_cannot_be_a_directory_is_said(names: tuple[str, ...], said: str) -> None:
    found = group_models(listed("good/1/x", *names, empty=("m/../../x/",)))
    (bad,) = (model for name, model in found.items() if name != "good")
    assert said in bad.problem
    assert found["good"].problem == ""


def test_versions() -> None:
    model = group_models(listed("m/1/x", "m/10/x", "m/07/x", "m/warmup/x", "m/config.pbtxt"))["m"]
    assert dict(model.versions) == {"1": 1, "10": 10}
    everything = ["07/x", "1/x", "10/x", "config.pbtxt", "warmup/x"]
    assert [each.path for each in model.of_versions(None)] == everything
    assert [each.path for each in model.of_versions([10])] == ["07/x", "10/x", "config.pbtxt", "warmup/x"]
    assert [each.path for each in model.of_versions([])] == ["07/x", "config.pbtxt", "warmup/x"]


def test_configurations() -> None:
    inside = {"config.pbtxt": True, "configs/a.pbtxt": True, "configs/a/b": False, "1/config.pbtxt": False}
    assert {path: listed(path)[0].in_config for path in inside} == inside


def test_a_key_is_of_name_size_and_tag() -> None:
    first = RemoteObject("p", "n", 1, "t", True, 5)
    assert RemoteObject("other/p", "n", 1, "t", True, 6).key == first.key
    others = [RemoteObject("p", *each, True, 5) for each in (("m", 1, "t"), ("n", 2, "t"), ("n", 1, "u"))]
    assert len({first.key, *(other.key for other in others)}) == 4


@given(st.lists(st.lists(st.text("ab1.", max_size=2), min_size=1, max_size=4).map("/".join), unique=True))
def test_whatever_is_listed_a_model_without_a_problem_is_a_tree_of_files(names: list[str]) -> None:
    """No file is outside of its directory, and none is a directory of another."""
    for model in group_models(listed(*names, empty=tuple(names[::2]))).values():
        if not model.problem:
            files = set(paths(model))
            parents = {path.rsplit("/", count)[0] for path in files for count in range(1, path.count("/") + 1)}
            assert not files & (parents | set(model.directories))
            assert not any(part in ("", ".", "..") for path in files for part in path.split("/"))
