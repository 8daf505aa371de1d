"""Where a configuration comes from, and what the poll phase says when it cannot be had
(docs/reference/model-configuration.md#where-it-comes-from)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_configs import read_config

from trireme.engine.config import ModelConfig, config_json
from trireme.engine.errors import InternalError, TriremeError

MakeModel = Callable[..., Path]
COMPLETE = 'backend: "python" input { name: "A" data_type: TYPE_FP32 dims: 1 }'


def test_override_replaces_the_file(make_model: MakeModel) -> None:
    directory = make_model('backend: "python" max_batch_size: 3 parameters { key: "a" value { } }')
    config = read_config(directory, override_json='{"backend":"python","max_batch_size":5}')
    assert config.max_batch_size == 5
    assert config.parameters == {}


def test_named_config_is_preferred_where_it_exists(make_model: MakeModel) -> None:
    directory = make_model('backend: "python" max_batch_size: 1')
    (directory / "configs").mkdir()
    (directory / "configs" / "big.pbtxt").write_text('backend: "python" max_batch_size: 8')
    assert read_config(directory).max_batch_size == 1
    assert read_config(directory, config_name="big").max_batch_size == 8
    assert read_config(directory, config_name="small").max_batch_size == 1
    (directory / "config.pbtxt").unlink()
    assert read_config(directory, config_name="big", auto_complete=False).max_batch_size == 8


def test_missing_file_is_an_empty_configuration(make_model: MakeModel) -> None:
    config = read_config(make_model(files=("model.onnx",)))
    assert (config.name, config.backend, config.input) == ("m", "onnxruntime", ())


def test_strict_server_demands_the_file(make_model: MakeModel) -> None:
    directory = make_model(files=("model.onnx",))
    with pytest.raises(InternalError) as caught:
        read_config(directory, auto_complete=False)
    path = directory / "config.pbtxt"
    assert str(caught.value) == f"failed to open text file for read {path}: No such file or directory"


def test_strict_server_takes_a_complete_configuration(make_model: MakeModel) -> None:
    assert read_config(make_model(COMPLETE), auto_complete=False).input[0].name == "A"


def test_file_that_is_a_directory_is_refused(make_model: MakeModel) -> None:
    directory = make_model()
    (directory / "config.pbtxt").mkdir()
    with pytest.raises(InternalError, match=r"failed to open text file for read .*config.pbtxt: Is a directory"):
        read_config(directory)


@pytest.mark.parametrize(
    "text",
    [
        "nosuch: 1",
        "max_batch_size: 4 max_batch_size: 5",
        "max_batch_size: 4.0",
        'max_batch_size: "4"',
        "max_batch_size: 99999999999",
        "max_batch_size 4",
        "maxBatchSize: 4",
        "max_batch_size: 4}",
        "{ max_batch_size: 4 }",
        "dynamic_batching { } dynamic_batching { }",
        "dynamic_batching { } sequence_batching { }",
        "dynamic_batching { preserve_ordering: 2 }",
        "input { data_type: type_fp32 }",
        "input [ { dims: [ 1, 2, ] } ]",
        "instance_group [ { }, ]",
        'platform: "a\nb"',
        "\ufeffmax_batch_size: 4",
        "version_policy { } \x00",
        "[foo.bar]: 1",
    ],
)
def test_text_that_triton_refuses_is_refused_and_logged(
    make_model: MakeModel, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    directory = make_model(text)
    with caplog.at_level(logging.ERROR), pytest.raises(InternalError) as caught:
        read_config(directory)
    assert str(caught.value) == f"failed to read text proto from {directory / 'config.pbtxt'}"
    assert "Error parsing text-format inference.ModelConfig: " in caplog.text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('max_batch_size: "invalid_value"', '1:17: Expected integer, got: "invalid_value"'),
        ("max_batch_size: 1.5", "1:17: Expected integer, got: 1.5"),
        ("max_batch_size: 12345678901", "1:17: Integer out of range (12345678901)"),
        ("max_batch_size: -99999999999", "1:17: Integer out of range (99999999999)"),
        ("ensemble_scheduling { max_inflight_requests: -5 }", "1:46: Expected integer, got: -"),
        ("ensemble_scheduling { max_inflight_requests: 12345678901 }", "1:46: Integer out of range (12345678901)"),
        ("nonsense: 3", '1:1: Message type "inference.ModelConfig" has no field named "nonsense".'),
        ("input { name: 5 }", "1:15: Expected string but found: '5'"),
    ],
)
def test_what_is_wrong_is_told_in_the_words_of_protobuf(
    make_model: MakeModel, caplog: pytest.LogCaptureFixture, text: str, told: str
) -> None:
    """Of its C++ parser, which Triton uses, where integers are concerned."""
    directory = make_model(text)
    with caplog.at_level(logging.ERROR), pytest.raises(InternalError):
        read_config(directory)
    assert caplog.messages == [
        f"Error parsing text-format inference.ModelConfig: {told} ({directory / 'config.pbtxt'})"
    ]


def test_log_tells_line_and_column(make_model: MakeModel, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(InternalError):
        read_config(make_model("max_batch_size: 4\nmax_batch_size: x"))
    assert "2:17" in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        "# comment\nmax_batch_size: 4 # more",
        "max_batch_size: 0x4",
        "max_batch_size: 04",
        "max_batch_size: 4; name: 'm',",
        "max_batch_size: 4 dynamic_batching < preserve_ordering: t >",
        "max_batch_size: 4 input [ ] name: 'm' \"\"",
        "max_batch_size: 4 input { data_type: 11 dims: 1 dims: 2 }",
    ],
)
def test_text_that_triton_accepts_is_accepted(make_model: MakeModel, text: str) -> None:
    assert read_config(make_model(f'backend: "python" {text}')).max_batch_size == 4


def test_comment_in_another_encoding_does_no_harm(make_model: MakeModel) -> None:
    directory = make_model()
    (directory / "config.pbtxt").write_bytes(b'# caf\xe9\nbackend: "python"')
    assert read_config(directory).backend == "python"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text()
    | st.lists(st.sampled_from(["input", "{", "}", "[", "]", ":", '"a"', "1", "-", "name", ","])).map(" ".join)
)
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    directory = tmp_path_factory.mktemp("models") / "m"
    directory.mkdir()
    (directory / "config.pbtxt").write_text(text, errors="surrogatepass")
    try:
        config_json(read_config(directory))
    except TriremeError as error:
        str(error).encode()


def test_reading_again_gives_an_equal_configuration(poll: Callable[[str], ModelConfig], tmp_path: Path) -> None:
    config = poll("max_batch_size: 4 dynamic_batching { }")
    assert read_config(tmp_path / "m") == config
