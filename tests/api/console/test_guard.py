"""Who may do more by the console than look."""

from __future__ import annotations

import pytest

from trireme.api.console.guard import ConsoleGuard, ConsoleMode
from trireme.api.http.exchange import Headers

OWN: Headers = [(b"host", b"127.0.0.1:8002"), (b"x-trireme-console", b"1")]


def with_headers(*more: tuple[str, str]) -> Headers:
    """Those of the console's own page, or others of these names."""
    given = {name.encode(): value.encode() for name, value in more}
    return [*((name, value) for name, value in OWN if name not in given), *given.items()]


@pytest.mark.parametrize(
    ("mode", "has_rules", "address", "may"),
    [
        (ConsoleMode.AUTO, False, "127.0.0.1", True),
        (ConsoleMode.AUTO, False, "127.8.0.1", True),
        (ConsoleMode.AUTO, False, "::1", True),
        (ConsoleMode.AUTO, False, "::ffff:127.0.0.1", True),
        (ConsoleMode.AUTO, False, "10.0.0.7", False),
        (ConsoleMode.AUTO, False, "", False),
        (ConsoleMode.AUTO, True, "10.0.0.7", True),
        (ConsoleMode.FULL, False, "10.0.0.7", True),
        (ConsoleMode.VIEW, False, "127.0.0.1", False),
        (ConsoleMode.VIEW, True, "127.0.0.1", False),
    ],
)
def test_who_may(mode: ConsoleMode, has_rules: bool, address: str, may: bool) -> None:
    guard = ConsoleGuard(mode, has_rules)
    assert (guard.why_not(address, OWN) == "") is may
    assert (guard.refusal(address, OWN) is None) is may


@pytest.mark.parametrize("name", ["Forwarded", "X-Forwarded-For", "X-Real-IP", "Via"])
def test_what_a_proxy_passes_on_is_not_from_this_machine(name: str) -> None:
    guard = ConsoleGuard(ConsoleMode.AUTO, False)
    assert "from another machine" in guard.why_not("127.0.0.1", with_headers((name.lower(), "10.0.0.7")))


@pytest.mark.parametrize(
    "headers",
    [
        with_headers(),
        with_headers(("origin", "http://127.0.0.1:8002")),
        with_headers(("host", "[::1]:8002"), ("origin", "http://[::1]:8002"), ("sec-fetch-site", "same-origin")),
        with_headers(("host", "localhost"), ("sec-fetch-site", "none")),
        with_headers(("host", "box.lan:8002"), ("origin", "http://BOX.lan:8002")),
    ],
)
def test_own_pages_pass(headers: Headers) -> None:
    assert ConsoleGuard(ConsoleMode.FULL, False, ["box.lan"]).refusal("10.0.0.7", headers) is None


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ([(b"host", b"127.0.0.1")], "x-trireme-console is missing"),
        (with_headers(("origin", "http://evil.example")), "another origin"),
        (with_headers(("origin", "http://127.0.0.1:9999")), "another origin"),
        (with_headers(("origin", "null")), "another origin"),
        (with_headers(("sec-fetch-site", "cross-site")), "another site"),
        (with_headers(("sec-fetch-site", "same-site")), "another site"),
        (with_headers(("host", "evil.example"), ("origin", "http://evil.example")), "--http-allowed-hosts"),
        ([(b"x-trireme-console", b"1")], "expected an address"),
    ],
)
def test_others_do_not(headers: Headers, text: str) -> None:
    answer = ConsoleGuard(ConsoleMode.FULL, False, ["box.lan"]).refusal("127.0.0.1", headers)
    assert answer is not None
    assert answer.status == 403
    assert text in answer.body.decode()
