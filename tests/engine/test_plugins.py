"""Classes that installed packages offer, whatever those packages are like."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from trireme.engine import plugins
from trireme.engine.backends.registry import BackendRegistry
from trireme.engine.cache import open_cache
from trireme.engine.clock import SystemClock
from trireme.engine.errors import InvalidArgumentError, UnavailableError
from trireme.engine.plugins import Plugins
from trireme.engine.repository.agents import AgentRegistry


class Base:
    """What they are subclasses of."""


class Own(Base):
    """Needs no entry point."""


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Installs entry points of the group: their values, by name."""

    def install(group: str, **values: str) -> None:
        points = [EntryPoint(name, value, group) for name, value in values.items()]

        def found(group: str, name: str | None = None) -> list[EntryPoint]:
            return [point for point in points if point.group == group and name in (None, point.name)]

        monkeypatch.setattr(plugins, "entry_points", found)

    return install


def test_our_own_come_first_and_others_are_imported_when_asked_for(installed: Callable[..., None]) -> None:
    installed("bases", own="no_such_package:Own", other=f"{__name__}:Own", elsewhere="no_such_package:Own")
    found = Plugins("bases", "base", Base, {"own": Own, "lazy": f"{__name__}:Own", "lost": f"{__name__}:Lost"})
    assert found.find("own") is found.find("other") is found.find("lazy") is Own
    with pytest.raises(UnavailableError, match=r"base 'lost' cannot be imported from '.*:Lost': .* no attribute"):
        found.find("lost")
    assert found.find("nobody") is None
    assert [name in found for name in ("own", "other", "nobody")] == [True, True, False]
    assert [found.place(name) for name in ("own", "lazy", "other", "nobody")] == ["", *[f"{__name__}:Own"] * 2, ""]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import no_such_package", "cannot be imported from 'odd_plugin:Thing': No module named 'no_such_package'"),
        ("raise RuntimeError('no licence')", "cannot be imported from 'odd_plugin:Thing': no licence"),
        ("def", "cannot be imported from 'odd_plugin:Thing': invalid syntax"),
        ("", "cannot be imported from 'odd_plugin:Thing': "),
        ("Thing = 3", "'odd_plugin:Thing' is not a subclass of the interface's "),
        ("class Thing: pass", "'odd_plugin:Thing' is not a subclass of the interface's "),
    ],
)
@pytest.mark.parametrize(
    ("group", "kind", "ask"),
    [
        ("trireme.backends", "backend", lambda: BackendRegistry(lambda _: {}).get("odd")),
        ("trireme.caches", "cache", lambda: open_cache({"odd": {}}, SystemClock())),
        ("trireme.repository_agents", "repository agent", lambda: AgentRegistry().make("odd", {})),
    ],
    ids=["backend", "cache", "agent"],
)
def test_one_that_cannot_be_used_is_named_with_its_place(
    installed: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    why: str,
    group: str,
    kind: str,
    ask: Callable[[], Any],
) -> None:
    """Whatever its import raises, for each kind in the same words."""
    (tmp_path / "odd_plugin.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "odd_plugin", raising=False)
    installed(group, odd="odd_plugin:Thing")
    with pytest.raises(UnavailableError) as caught:
        ask()
    assert caught.value.message.startswith(f"{kind} 'odd'")
    assert why in caught.value.message
    sys.modules.pop("odd_plugin", None)


def test_a_name_that_nobody_has_is_refused_in_each_kinds_own_words(installed: Callable[..., None]) -> None:
    installed("trireme.backends")
    with pytest.raises(InvalidArgumentError, match="unable to find backend library for backend 'nobody'"):
        BackendRegistry(lambda _: {}).get("nobody")
    with pytest.raises(InvalidArgumentError, match="libtritoncache_nobody"):
        open_cache({"nobody": {}}, SystemClock())
    with pytest.raises(InvalidArgumentError, match="unable to find repository agent 'nobody'"):
        AgentRegistry().make("nobody", {})
