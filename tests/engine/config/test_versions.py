"""Which versions are served (docs/reference/model-control.md#versions)."""

from __future__ import annotations

import logging

import pytest

from trireme.engine.config import select_versions
from trireme.engine.config.model import VersionPolicy
from trireme.engine.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        (VersionPolicy(latest=1), (10,)),
        (VersionPolicy(latest=2), (3, 10)),
        (VersionPolicy(latest=9), (0, 3, 10)),
        (VersionPolicy(all_versions=True), (0, 3, 10)),
        (VersionPolicy(specific=(10, 0)), (0, 10)),
    ],
)
def test_policy_chooses(policy: VersionPolicy, chosen: tuple[int, ...]) -> None:
    assert select_versions(policy, [3, 10, 0], "m") == chosen


def test_missing_version_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert select_versions(VersionPolicy(specific=(3, 4)), [3], "m") == (3,)
    assert caplog.messages == ["version 4 is specified for model 'm', but the version directory is not present"]


@pytest.mark.parametrize(
    ("policy", "available"),
    [
        (VersionPolicy(latest=1), []),
        (VersionPolicy(all_versions=True), []),
        (VersionPolicy(specific=(4,)), [3]),
        (VersionPolicy(specific=()), [3]),
        (VersionPolicy(latest=0), [3]),
    ],
)
def test_nothing_left_is_refused(policy: VersionPolicy, available: list[int]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        select_versions(policy, available, "m")
    assert str(caught.value) == "at least one version must be available under the version policy of model 'm'"
