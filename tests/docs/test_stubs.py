"""Clients in other languages, made of the .proto files as docs/stubs.md says; skipped where their tools are missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from documents import NODE_MODULES, ROOT, Reader

JARS = Path("/usr/share/java")
GO = Path("/usr/share/gocode/src/google.golang.org/grpc")
LANGUAGES = {
    "JavaScript": ("node", NODE_MODULES / "@grpc" / "grpc-js"),
    "Java": ("javac", "protoc", "grpc_java_plugin", *(JARS / f"{name}.jar" for name in ("grpc-stub", "netty-all"))),
    "C++": ("g++", "pkg-config", "protoc", "grpc_cpp_plugin", Path("/usr/include/grpcpp")),
    "Go": ("go", "protoc", GO, Path("/usr/share/doc/protoc-gen-go-1-3")),  # later ones do not fit that grpc
}
"""What the sections of docs/stubs.md need: programs and files."""


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_client_in_another_language(language: str, tmp_path: Path) -> None:
    needed = LANGUAGES[language]
    missing = [str(each) for each in needed if not (each.exists() if isinstance(each, Path) else shutil.which(each))]
    if missing:
        pytest.skip(f"a client in {language} needs {', '.join(missing)}")
    with Reader(tmp_path) as reader:
        reader.read(ROOT / "docs" / "stubs.md", language)
