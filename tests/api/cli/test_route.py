"""`trireme route`: what it says to people; what it does to a server is tested over the wire."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from trireme.api.cli.main import main
from trireme.api.cli.route import route_table

COUNTS, FEW = {"requests": 9512, "failures": 3}, {"requests": 7, "failures": 0}
DIGITS = {
    "name": "digits",
    "targets": {"digits:1": 100, "digits:2": 0},
    "sticky": "header:x-user",
    "shadow": {"target": "digits:3"},
    "state": {
        "targets": [
            {
                "target": "digits:1",
                "weight": 100,
                "share": 95.0,
                "ready": True,
                "why": "",
                "requests": 9512,
                "failures": 3,
            },
            {
                "target": "digits:2",
                "weight": 0,
                "share": 0,
                "ready": False,
                "why": "gone",
                "requests": 7,
                "failures": 0,
            },
        ],
        "rollout": {"target": "digits:2", "state": "back", "step": 0, "steps": 5, "percent": 0, "reason": "it is slow"},
        "shadow": {"equal": 3},
    },
}
TABLE = """\
ROUTE   TARGET    WEIGHT  SHARE  READY  REQUESTS  FAILURES
digits  digits:1    100%    95%  yes       9,512         3
        digits:2      0%     0%  no            7         0
  'digits:2' is not ready: gone
  sticky by header:x-user
  canary 'digits:2': went back to 0%: it is slow
  shadow 'digits:3': equal 3
"""


def test_the_table() -> None:
    assert route_table([DIGITS]) == TABLE
    assert route_table([]) == "there are no routes\n"


@pytest.mark.parametrize(("left_s", "shown"), [(42.4, "5%, 42 s left: it can serve"), (0, "5%: it can serve")])
def test_the_table_tells_how_much_time_is_left_of_a_step(left_s: float, shown: str) -> None:
    step = {"state": "step", "step": 1, "percent": 5, "left_s": left_s, "reason": "it can serve"}
    state = {**DIGITS["state"], "rollout": {**DIGITS["state"]["rollout"], **step}}
    assert f"  canary 'digits:2': step 1 of 5, {shown}\n" in route_table([{**DIGITS, "state": state}])


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["route", *words])
    return code, capsys.readouterr().err


def test_without_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    code, said = run(capsys, "list", "--url", f"http://127.0.0.1:{port}")
    assert (code, said.split(": ")[1]) == (3, f"no server answers at http://127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("set", "a"), 2, "nothing to set: give a file, or --target MODEL:VERSION=WEIGHT for each target"),
        (("set", "a", "--target", "b"), 2, "--target: found 'b', expected MODEL[:VERSION]=WEIGHT, such as digits:1=90"),
        (("set", "a", "--target", "b=1%"), 2, "--target: found '1%', expected a whole percent, such as 90"),
        (("set", "a", "--target", "b=1", "--target", "b=99"), 2, "--target: 'b' is given twice, expected once"),
        (
            ("set", "a", "--target", "b=1", "--steps", "x"),
            2,
            "--steps: found 'x', expected a whole percent, such as 5",
        ),
        (("list", "--url", "ftp://a"), 2, "--url is ftp://a, expected http://HOST:PORT or https://HOST:PORT"),
        (("list", "--header", "a"), 2, "--header is a, expected NAME:VALUE"),
        (("set", "a", "missing.toml"), 1, "missing.toml: No such file or directory"),
    ],
)
def test_wrong_command_lines(
    words: tuple[str, ...], code: int, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, *words) == (code, f"trireme route: {expected}\n")


@pytest.mark.parametrize("name", ["", "a b", "a/b", "%41", "gr\u00f6\u00dfe", "a?b", "a#b"])
def test_names_that_no_url_can_have(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """They would become other names on their way."""
    code, said = run(capsys, "remove", name)
    assert code == 2
    assert said.startswith(
        f"trireme route: the name is '{name}', expected one that a URL can have: ASCII without blanks "
    )


def test_faulty_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "routes.toml"
    path.write_text("[routes.b]\n")
    assert run(capsys, "set", "a", str(path)) == (1, f"trireme route: {path}: there is no [routes.a], only b\n")
    path.write_text("{")
    assert run(capsys, "set", "a", str(path))[1].startswith(f"trireme route: {path}: neither TOML nor JSON: ")
