"""`trireme profile`, from the command line to the file beside the model."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from trireme.api.cli.main import main
from trireme.clients.connections import HttpLoadConnection
from trireme.engine.errors import InvalidArgumentError, NotFoundError
from trireme.engine.logs.request_log import LoggedRequest, LoggedResult, RequestTraffic, write_request_log
from trireme.engine.options import ServerOptions
from trireme.engine.profiles import (
    NEVER_LATE,
    ExecutorKind,
    HostPoint,
    ModelProfile,
    TimeDistribution,
    Way,
    read_profile,
)
from trireme.foresight.busy_server import BusyServer, MeasuredWay
from trireme.foresight.models import ForeseenModels, ProfileStore
from trireme.foresight.progress import Progress
from trireme.foresight.served_models import ServedModels

REPOSITORY = Path(__file__).parents[2] / "model_repository"
QUICKLY = ("--error", "50", "--most-secs", "0.5", "--ways", "none")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Some models: batched, stateful, an ensemble with a member."""
    for name in ("simple_identity", "digits", "simple_sequence", "digits_pipeline", "digits_decode", "digits_label"):
        shutil.copytree(REPOSITORY / name, tmp_path / name)
    return tmp_path


def profiled(repository: Path, name: str, *words: str) -> ModelProfile:
    assert main(["profile", name, "--repository", str(repository), *QUICKLY, *words]) == 0
    path = repository / f"{name}.profile.json"
    return read_profile(path.read_text(), str(path))


def test_a_model_is_measured_and_its_profile_is_beside_it(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = profiled(repository, "digits", "--sizes", "1,8")
    assert [(point.rows, point.side_by_side) for point in profile.service] == [(1, 1), (8, 1)]
    assert profile.executor is ExecutorKind.PROVING
    assert all(0 < point.time.mean_s < 1 for point in profile.service)
    assert profile.config["max_batch_size"] == 32
    shown, progress = capsys.readouterr()
    assert "digits: proving" in shown
    assert "100%  digits" in progress
    assert main(["profile", "digits", "--repository", str(repository), "--check"]) == 0
    assert capsys.readouterr().out == "digits: up to date\n"


def test_ctrl_c_ends_a_measurement_wherever_it_comes(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even amid code from which no exception gets out: as libraries' callbacks are."""
    progress: list[str] = []

    @contextlib.contextmanager
    def shown(_title: str) -> Iterator[Progress]:
        def deaf(text: str, _part: float) -> None:
            progress.append(text)
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)

        yield deaf

    monkeypatch.setattr("trireme.foresight.progress.shown_progress", shown)
    words = ["profile", "digits", "--repository", str(repository), *QUICKLY, "--sizes", "1,2,4,8"]
    assert main(words) == 130
    assert progress == ["digits: 1 rows, 1 side by side"]
    assert not (repository / "digits.profile.json").exists()


def test_an_interrupt_while_a_server_starts_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:

        def interrupt(_seconds: float) -> None:
            patched.undo()
            raise KeyboardInterrupt

        patched.setattr("trireme.foresight.served_models.time.sleep", interrupt)
        served = ServedModels(ServerOptions(model_repository=(tmp_path,)))
        with pytest.raises(KeyboardInterrupt), served:
            pass
    assert served.process.returncode is not None


def test_what_requests_cost_the_server_is_measured_by_each_way(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On servers of their own, without and with a front end, with real clients, whose connections are made once: what
    they cost a server is no cost of a request."""
    monkeypatch.setattr("trireme.foresight.host_costs._RESTS_S", (0.003, 0.01))
    made: list[int] = []

    def connect(port: int, *given: object, **named: object) -> HttpLoadConnection:
        made.append(port)
        return HttpLoadConnection(port, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("trireme.clients.player.HttpLoadConnection", connect)
    profile = profiled(repository, "digits", "--sizes", "1", "--ways", "http,grpc", "--front-ends")
    assert list(Counter(made).values()) == [8, 8]
    kinds = [(point.way.value, point.front_ends) for point in profile.host]
    assert kinds == [("http", 0), ("grpc", 0), ("http", 1), ("grpc", 1)]
    for point in profile.host:
        assert (0 < point.front_request_s + point.front_turn_s < 0.1) is (point.front_ends == 1)
        # With a front end a request costs the server itself so little that other work on the machine may hide it.
        assert 0 <= point.request_s + point.batch_s < 0.1
        assert point.request_s + point.batch_s or point.front_ends == 1
        assert point.nbytes > 0
        assert point.outside.count > 0
        assert [each.rest_s for each in point.rested][::2] == [0.0, 0.01]
        assert (point.rested[0].loop_s, point.rested[0].outside_s) == (0, 0)
        assert all(0 <= each.loop_s < 0.1 and 0 <= each.outside_s < 1 for each in point.rested)
    shown = capsys.readouterr().out
    assert re.search(r"^  http, [\d,]+ bytes: ", shown, re.MULTILINE)
    assert re.search(r"^  grpc, [\d,]+ bytes, with a front end: ", shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "cores", "wanted"),
    [((), 2, (0,)), ((), 4, (0, 1)), (("--front-ends",), 2, (0, 1)), (("--no-front-ends",), 4, (0,))],
)
def test_front_ends_are_measured_where_a_server_has_some_or_who_asks(
    repository: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], cores: int, wanted: tuple[int, ...]
) -> None:
    asked: list[object] = []

    def measure(*given: object) -> list[object]:
        asked.append(given[-1])
        return []

    monkeypatch.setattr("trireme.foresight.profiling.measure_host", measure)
    monkeypatch.setattr("trireme.foresight.profile_command.usable_cores", lambda: cores)
    profiled(repository, "digits", "--sizes", "1", "--ways", "http", *words)
    assert asked == [wanted]


@pytest.mark.parametrize("beside", [0.0, 1.0])
def test_how_late_threads_get_a_core_is_measured_of_models_that_compute_beside_the_loop(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], beside: float
) -> None:
    point = HostPoint(Way.HTTP, 8, 0, 0.0001, 0.0, TimeDistribution.constant(0.0))
    way = MeasuredWay([point], BusyServer((), 0.0, 0.0, 0.0, 0.0, ()))
    late = TimeDistribution.constant(0.002)
    monkeypatch.setattr("trireme.foresight.profiling.measure_host", lambda *_given: [way])
    monkeypatch.setattr("trireme.foresight.profiling.most_cores", lambda _models: beside)
    monkeypatch.setattr("trireme.foresight.profiling.measure_crowding", lambda *_given: late)
    profile = profiled(repository, "digits", "--sizes", "1", "--ways", "http")
    assert [each.crowded for each in profile.host] == [late if beside else NEVER_LATE]
    told = "a thread gets a core 2.00 ms late on average, and 2.0 ms one time in a hundred, while others have all"
    assert (told in capsys.readouterr().out) is (beside > 0)


def test_a_profile_that_is_out_of_date_is_said_to_be(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profiled(repository, "digits", "--sizes", "1")
    path = repository / "digits.profile.json"
    document = json.loads(path.read_text())
    document["origin"]["versions"]["trireme"] = "0.0.1"
    document["origin"]["files"] = "other"
    path.write_text(json.dumps(document))
    capsys.readouterr()
    assert main(["profile", "digits", "simple_identity", "--repository", str(repository), "--check"]) == 1
    digits, identity = capsys.readouterr().out.splitlines()
    assert digits.startswith("digits: the model's files have changed; trireme was 0.0.1 and is ")
    assert identity.endswith("make one with: trireme profile simple_identity")


def test_sequences_are_measured_together(repository: Path) -> None:
    profile = profiled(repository, "simple_sequence", "--sizes", "1,4")
    assert [point.rows for point in profile.service] == [1, 4]


def test_the_configuration_is_completed_from_the_profile(repository: Path) -> None:
    """A replay needs no backend to know what the model's inputs are."""
    profiled(repository, "digits", "--sizes", "1")
    (repository / "digits" / "config.pbtxt").write_text("backend: 'onnxruntime' instance_group { count: 3 }")
    models = ForeseenModels(ServerOptions(model_repository=(repository,)))
    found = models.foreseen("digits")
    assert found.config.input
    assert found.config.max_batch_size == 32
    assert found.config.instance_group[0].count == 3


def test_an_ensemble_stands_for_its_members(repository: Path) -> None:
    models = ForeseenModels(ServerOptions(model_repository=(repository,)))
    assert models.with_members(["digits_pipeline", "digits"]) == [
        *("digits_decode", "digits", "digits_label", "digits_pipeline"),
    ]
    assert models.foreseen("digits_pipeline").profile is None
    with pytest.raises(NotFoundError, match=r"has no profile at '.*digits.profile.json'; make one"):
        models.foreseen("digits")


def test_profiles_can_be_in_a_folder_of_their_own(repository: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made" / "profiles"
    words = ("--repository", str(repository), "--profiles", str(folder), "--sizes", "1")
    assert main(["profile", "digits", *QUICKLY, *words]) == 0
    assert read_profile((folder / "digits.profile.json").read_text(), "it").model == "digits"


def test_inputs_come_from_a_file(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (name,) = [
        each.name
        for each in ForeseenModels(ServerOptions(model_repository=(repository,))).written_config("digits").input
    ] or ["image"]
    file = tmp_path / "inputs.npz"
    np.savez(file, nothing=np.zeros((3, 4), np.float32))
    assert main(["profile", "digits", "--repository", str(repository), *QUICKLY, "--inputs", str(file)]) == 1
    assert f"model 'digits' has no input 'nothing'; it has {name}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("nothing",), "there is no model 'nothing'"),
        (("digits", "--sizes", "64"), "batches of 'digits' have 1 to 32 rows, not 64"),
        (("digits", "--inputs", "missing.npz"), "'missing.npz' is no file of arrays"),
        (("digits", "--from-traces", "missing.json"), "trace file 'missing.json' cannot be read"),
    ],
)
def test_what_is_wrong_is_said(
    repository: Path, words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *words, "--repository", str(repository), *QUICKLY]) == 1
    assert text in capsys.readouterr().err


def test_no_repository_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "m", "--repository", str(tmp_path / "none")]) == 1
    assert "is no directory; name one with --repository" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--sizes", "0"), ("--error", "x"), ("--ways", "smoke"), ("--shape", "3")])
def test_arguments_are_checked(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["profile", "m", *words])
    assert "expected" in capsys.readouterr().err


def test_traces_of_real_traffic_make_a_profile(repository: Path, tmp_path: Path) -> None:
    elements = []
    for number in range(1, 21):
        at = number * 1_000_000
        stamps = {"COMPUTE_START": at, "COMPUTE_INPUT_END": at, "COMPUTE_OUTPUT_START": at, "COMPUTE_END": at + 500_000}
        elements += [
            {"id": number, "model_name": "digits", "model_version": 1},
            {"id": number, "timestamps": [{"name": name, "ns": ns} for name, ns in stamps.items()]},
        ]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(elements))
    assert main(["profile", "digits", "--repository", str(repository), "--from-traces", str(file)]) == 0
    profile = read_profile((repository / "digits.profile.json").read_text(), "it")
    assert profile.recorded
    assert [(point.rows, point.time.mean_s) for point in profile.service] == [(1, pytest.approx(0.0005))]


def test_a_request_log_with_results_makes_a_profile(repository: Path, tmp_path: Path) -> None:
    result = LoggedResult(900.0, queue_us=100.0, infer_us=700.0, batch=2, instance="digits_0")
    log = [LoggedRequest(float(at), "digits", rows=2, result=result) for at in range(20)]
    file = tmp_path / "log.jsonl"
    file.write_text("".join(write_request_log(RequestTraffic(log))))
    assert main(["profile", "digits", "--repository", str(repository), "--from-log", str(file)]) == 0
    profile = read_profile((repository / "digits.profile.json").read_text(), "it")
    assert [(point.rows, point.time.mean_s) for point in profile.service] == [(2, pytest.approx(0.0007))]
    assert profile.version == 1


def test_a_profile_of_another_model_is_refused(repository: Path) -> None:
    profiled(repository, "digits", "--sizes", "1")
    shutil.copy(repository / "digits.profile.json", repository / "simple_identity.profile.json")
    with pytest.raises(InvalidArgumentError, match="is one of 'digits'"):
        ForeseenModels(ServerOptions(model_repository=(repository,)), ProfileStore()).foreseen("simple_identity")
