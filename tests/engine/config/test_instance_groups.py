"""Instance groups: defaults and refusals (docs/reference/model-configuration.md#instance-groups)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trireme.engine.config import ModelConfig
from trireme.engine.config.instance_groups import leaves_kind_open, validate_instance_groups
from trireme.engine.config.model import ModelConfigMessage
from trireme.engine.errors import InternalError, InvalidArgumentError
from trireme.engine.gpu.discovery import Gpu, Gpus

Load = Callable[..., ModelConfig]
Row = tuple[str, str, int, tuple[int, ...]]


def _rows(config: ModelConfig) -> list[Row]:
    return [(group.name, group.kind, group.count, group.gpus) for group in config.instance_group]


@pytest.mark.parametrize(
    ("text", "gpus", "expected"),
    [
        ("", (), [("m", "KIND_CPU", 1, ())]),
        ("", (0, 2), [("m", "KIND_GPU", 1, (0, 2))]),
        ("instance_group { }", (), [("m_0", "KIND_CPU", 1, ())]),
        ("instance_group [ { count: 3 }, { name: 'x' }, { } ]", (),
         [("m_0", "KIND_CPU", 3, ()), ("x", "KIND_CPU", 1, ()), ("m_2", "KIND_CPU", 1, ())]),
        ("instance_group { count: -3 kind: KIND_CPU }", (), [("m_0", "KIND_CPU", 1, ())]),
        ("instance_group { gpus: [ 1 ] }", (0, 1), [("m_0", "KIND_GPU", 1, (1,))]),
        ("instance_group { kind: KIND_GPU count: 2 }", (0, 1), [("m_0", "KIND_GPU", 2, (0, 1))]),
        ("instance_group { kind: KIND_MODEL }", (0,), [("m_0", "KIND_MODEL", 1, ())]),
        ("instance_group { kind: KIND_CPU }", (0,), [("m_0", "KIND_CPU", 1, ())]),
    ],
)  # fmt: skip
def test_open_values_are_filled_in(load: Load, text: str, gpus: tuple[int, ...], expected: list[Row]) -> None:
    assert _rows(load(f'backend: "python" {text}', gpus=gpus)) == expected


@pytest.mark.parametrize(
    ("backend", "kind", "count"),
    [
        ("onnxruntime", "KIND_CPU", 2),
        ("onnxruntime", "KIND_GPU", 1),
        ("onnxruntime", "KIND_MODEL", 1),
        ("pytorch", "KIND_CPU", 1),
    ],
)
def test_default_count_depends_on_backend_and_kind(load: Load, backend: str, kind: str, count: int) -> None:
    config = load(f'backend: "{backend}" instance_group {{ kind: {kind} }}', gpus=(0,))
    assert config.instance_group[0].count == count


def test_default_group_of_onnxruntime_has_two_instances_on_cpu(load: Load) -> None:
    assert _rows(load('backend: "onnxruntime"')) == [("m", "KIND_CPU", 2, ())]


REFUSED: list[tuple[str, tuple[int, ...], str]] = [
    ("kind: KIND_GPU", (), "instance group m_0 of model m has kind KIND_GPU but no GPUs are available"),
    *(
        (
            "kind: KIND_GPU gpus: [ 0, 7 ]",
            gpus,
            (
                f"instance group m_0 of model m specifies invalid or unsupported gpu id {wrong}. GPUs with at least "
                f"the minimum required CUDA compute compatibility of 6.000000 are: {listed}"
            ),
        )
        for gpus, wrong, listed in (((), 0, ""), ((0, 1), 7, "0, 1"))
    ),
    ("gpus: 0", (), "instance group m_0 of model m has kind KIND_CPU but specifies one or more GPUs"),
    ("gpus: 5", (0,), "instance group m_0 of model m has kind KIND_CPU but specifies one or more GPUs"),
    (
        "kind: KIND_MODEL gpus: 0",
        (0,),
        "instance group m_0 of model m has kind KIND_MODEL but specifies one or more GPUs",
    ),
    (
        'profile: "0"',
        (),
        (
            "instance group m_0 of model m and platform specifies profile field which is only supported for TensorRT "
            "models"
        ),
    ),
    (
        "count: 1 passive: true",
        (),
        "all instance groups of model m are passive, so that none would execute its requests",
    ),
    (
        "kind: KIND_GPU count: 513",
        (0, 1),
        "the instance groups of model m ask for 1026 instances, more than the 1024 that there can be",
    ),
]


@pytest.mark.parametrize(("group", "gpus", "reason"), REFUSED)
def test_groups_are_refused(load: Load, group: str, gpus: tuple[int, ...], reason: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        load(f'backend: "python" instance_group {{ {group} }}', gpus=gpus)
    assert str(caught.value) == reason


@pytest.mark.parametrize("profile", ["-1", "x", "", "1.5"])
def test_profiles_must_be_whole_numbers(load: Load, profile: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        load(f'backend: "tensorrt" instance_group {{ profile: [ "3", "{profile}" ] }}')
    assert str(caught.value) == (
        f"instance group m_0 of model m and platform tensorrt_plan specifies invalid profile {profile}. "
        "The field should contain the string representation of a non-negative integer."
    )


def test_kind_that_does_not_exist_is_refused(load: Load) -> None:
    with pytest.raises(InternalError, match="instance group m_0 of model m has unexpected kind 9"):
        load('backend: "python" instance_group { kind: 9 }')


def test_groups_that_were_never_filled_in_are_refused() -> None:
    message = ModelConfigMessage(name="m", backend="python")
    with pytest.raises(InvalidArgumentError, match="must specify one or more 'instance group's for m"):
        validate_instance_groups(message)
    message.instance_group.add(name="g", kind=1)
    with pytest.raises(
        InvalidArgumentError, match="instance group g of model m has kind KIND_GPU but specifies no GPUs"
    ):
        validate_instance_groups(message, Gpus((Gpu(0),)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [("m", "KIND_CPU", 1, ())]),
        ("instance_group { count: 2 }", [("m_0", "KIND_CPU", 2, ())]),
        ("instance_group { kind: KIND_GPU }", [("m_0", "KIND_GPU", 1, (0, 1))]),
        ("instance_group { gpus: 1 }", [("m_0", "KIND_GPU", 1, (1,))]),
    ],
)
def test_what_is_left_open_stays_on_the_cpu_if_the_backend_uses_no_gpus(
    load: Load, text: str, expected: list[Row]
) -> None:
    """But what asks for GPUs gets them, so that the backend can say why it does not."""
    assert _rows(load(f'backend: "python" {text}', gpus=(0, 1), automatic=False)) == expected


@pytest.mark.parametrize(
    ("text", "is_open"),
    [
        ("", True),
        ("instance_group { count: 2 }", True),
        ("instance_group [ { kind: KIND_CPU }, { } ]", True),
        ("instance_group [ { kind: KIND_CPU }, { kind: KIND_GPU }, { kind: KIND_MODEL }, { gpus: 0 } ]", False),
    ],
)
def test_a_backend_is_asked_only_where_it_matters(poll: Load, text: str, is_open: bool) -> None:
    assert leaves_kind_open(poll(text).message) is is_open


def test_a_refusal_names_the_capability_that_gpus_must_have(load: Load) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        load('backend: "python" instance_group { gpus: 3 kind: KIND_GPU }', gpus=(0, 2), min_compute_capability=7.5)
    assert str(caught.value).endswith("CUDA compute compatibility of 7.500000 are: 0, 2")
