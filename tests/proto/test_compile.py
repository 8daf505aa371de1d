"""What is committed is what the sources compile to."""

from __future__ import annotations

from pathlib import Path

import pytest

from trireme.proto import compile as proto_compile
from trireme.proto.descriptors import FOLDER, SOURCES


def files_in(folder: Path) -> dict[Path, bytes]:
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def test_committed_descriptors_are_what_the_sources_compile_to(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    proto_compile.compile_descriptors(tmp_path)
    assert files_in(tmp_path) == {Path(f"{source}.pb"): (FOLDER / f"{source}.pb").read_bytes() for source in SOURCES}


def test_committed_classes_are_what_the_sources_compile_to(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    pytest.importorskip("betterproto2_compiler")
    target = tmp_path / "messages"
    target.mkdir()
    (target / "stale.py").touch()
    proto_compile.compile_messages(target)
    assert files_in(target) == files_in(FOLDER / "messages")


def test_every_source_is_compiled() -> None:
    assert {path.stem for path in FOLDER.glob("*.proto")} == set(SOURCES)


def test_a_source_that_does_not_compile_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    monkeypatch.setattr(proto_compile, "SOURCES", ("no_such_source",))
    with pytest.raises(RuntimeError, match=r"could not compile no_such_source\.proto"):
        proto_compile.compile_descriptors(tmp_path)
