"""The access file: what it says, and what is wrong with it."""

from __future__ import annotations

import pytest

from trireme.engine.access.callers import Right
from trireme.engine.access.limits import UNLIMITED, CallerLimits
from trireme.engine.access.rules import read_rules
from trireme.engine.errors import InvalidArgumentError

HASH = f"sha256:{'a' * 32}:{'b' * 64}"

FULL = f"""
open-health = false

[[issuers]]
name = "corp"
issuer = "https://id.example"
audience = "trireme"
jwks = "https://id.example/keys"
algorithms = ["ES256"]
leeway-seconds = 5

[[callers]]
name = "team-a"
infer = ["resnet*", "bert"]
read = ["*"]

[callers.limits]
requests-per-second = 100
burst = 200
in-flight = 8
bytes-per-second = 1e6

[[callers.keys]]
id = "k1ab"
hash = "{HASH}"
expires = 2030-01-01T00:00:00+01:00

[[callers.keys]]
id = "k2ab"
hash = "{HASH}"

[[callers]]
name = "ops"
admin = ["*"]
certificates = [{{ common-name = "ops-*", organization = ["Ops", "SRE"] }}]
tokens = [{{ issuer = "corp", subject = "ops|*", claims = {{ groups = "ml-*" }} }}]

[anonymous]
read = ["demo"]
"""


def test_a_file_with_everything() -> None:
    rules = read_rules(FULL, "access.toml")
    team, ops = rules.callers
    assert team.patterns == {Right.INFER: ("resnet*", "bert"), Right.READ: ("*",)}
    assert team.limits == CallerLimits(100, 200, 8, 1e6, 1e6)
    assert [(key.key_id, str(key.digest)) for key in team.keys] == [("k1ab", HASH), ("k2ab", HASH)]
    assert [key.expires_s for key in team.keys] == [1893452400.0, None]
    assert ops.limits == UNLIMITED
    assert {kind: each.patterns for kind, each in ops.certificates[0].names.items()} == {
        "common-name": ("ops-*",),
        "organization": ("Ops", "SRE"),
    }
    assert {claim: each.patterns for claim, each in ops.tokens[0].claims.items()} == {
        "sub": ("ops|*",),
        "groups": ("ml-*",),
    }
    issuer = rules.issuers["corp"]
    assert (issuer.algorithms, issuer.leeway_s, issuer.refresh_s, issuer.is_remote) == (("ES256",), 5.0, 300.0, True)
    assert rules.anonymous is not None
    assert rules.anonymous.patterns == {Right.READ: ("demo",)}
    assert not rules.open_health


KEY = f'keys = [{{ id = "k1ab", hash = "{HASH}" }}]\n'
CALLER = f'[[callers]]\nname = "a"\n{KEY}'
ISSUER = '[[issuers]]\nname = "i"\nissuer = "x"\naudience = "y"\njwks = "keys.json"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f: found no caller, expected [[callers]] or [anonymous]"),
        ("a = ", "f: not valid TOML: Invalid value (at end of document)"),
        ('[anonymous]\nraed = ["*"]', "limits, manage, read; did you mean read?"),
        ("[anonymos]", "callers, issuers, open-health; did you mean anonymous?"),
        ("open-health = 1\n[anonymous]", "f:1: open-health: found 1, expected true or false"),
        ('[anonymous]\nread = "*"', "f:2: anonymous.read: found '*', expected a list of patterns, such as ['resnet*']"),
        ('[anonymous]\nread = [""]', "f:2: anonymous.read[0]: found '' (it is empty), expected a list of patterns"),
        ("[anonymous]\nread = [3]", "f:2: anonymous.read[0]: found 3 (it is no text), expected"),
        ('[anonymous]\nread = ["a/b"]', "found 'a/b' (no model's name has a /), expected"),
        ('[[callers]]\nname = "a b"', "f:2: callers[0].name: found 'a b', expected 1 to 64 characters"),
        ("[[callers]]", "f:1: callers[0]: found no name, expected name = 1 to 64"),
        ('[[callers]]\nname = "a"\n[[callers.key]]\nid = "x"', "callers[0].key: found an unknown key"),
        ('[[callers]]\nname = "a"', "f:1: callers[0]: found nothing that caller 'a' is recognised by, expected keys, "),
        ('[[callers]]\nname = "anonymous"\n' + KEY, "f:2: callers[0].name: found 'anonymous', expected another name"),
        (CALLER + CALLER, "f:6: callers[1].keys[0].id: found 'k1ab' twice, expected an id of its own"),
        (CALLER + CALLER.replace("k1ab", "k2ab"), "f:5: callers[1].name: found 'a' twice, expected a name of its own"),
        (CALLER.replace("k1ab", "K"), "callers[0].keys[0].id: found 'K', expected 4 to 32 characters"),
        (CALLER.replace(HASH, "trk_secret"), "keys[0].hash: found another form, expected sha256:<salt>"),
        (CALLER.replace("}]", ", expires = 2030-01-01T00:00:00 }]"), "expires: found 2030-01-01 00:00:00, expected"),
        (CALLER + "callers = 3", "callers[0].callers: found an unknown key"),
        (CALLER + "limits = { burst = 3 }", "limits.burst: found burst alone, expected requests-per-second beside it"),
        (CALLER + "limits = { in-flight = 1.5 }", "limits.in-flight: found 1.5, expected a whole number"),
        (CALLER + "limits = { in-flight = true }", "found True, expected a whole number greater than 0"),
        (CALLER + "limits = { requests-per-second = 0 }", "found 0, expected a number greater than 0"),
        (CALLER + "limits = { requests-per-second = nan }", "found nan, expected a number greater than 0"),
        (CALLER + "limits = { requests-per-second = 1, burst = 0.5 }", "burst: found 0.5, expected a number of 1"),
        (CALLER + 'tokens = [{ issuer = "i" }]', "found 'i', expected a name of [[issuers]]: there is none"),
        (CALLER + "tokens = [3]", "f:4: callers[0].tokens[0]: found 3, expected a list of tables"),
        (ISSUER + CALLER + 'tokens = [{ issuer = "i", subject = [] }]', "subject: found an empty list, expected"),
        (ISSUER + CALLER + 'tokens = [{ issuer = "i", claims = { g = 3 } }]', "claims.g: found 3, expected a pattern"),
        (CALLER + "certificates = [{}]", "certificates[0]: found no name, expected one of common-name, organization,"),
        (CALLER + 'certificates = [{ cn = "x" }]', "certificates[0].cn: found an unknown key, expected one of"),
        (CALLER + 'certificates = [{ dns = "[x" }]', "[0].dns: found '[x' (a [ has no ]), expected a"),
        (ISSUER + ISSUER + CALLER, "f:7: issuers[1].name: found 'i' twice, expected a name of its own"),
        (ISSUER.replace("keys.json", "http://h/x") + CALLER, "found 'http://h/x', expected a file, or an address that"),
        (ISSUER + 'algorithms = ["HS256"]\n' + CALLER, "found 'HS256' (it is not allowed), expected a list of RS256"),
        (ISSUER + 'algorithms = ["none"]\n' + CALLER, "found 'none' (it is not allowed)"),
        (ISSUER + "algorithms = []\n" + CALLER, "f:6: issuers[0].algorithms: found an empty list"),
        (ISSUER + "leeway-seconds = 1000\n" + CALLER, "found 1000, expected a number from 0 to 300"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        read_rules(text, "f")
    assert message in caught.value.message


def test_a_number_that_is_too_long_to_read_is_an_error_of_the_file() -> None:
    with pytest.raises(InvalidArgumentError, match=r"the file: .*4300 digits"):
        read_rules(f"open-health = {'1' * 5000}", "the file")


def test_no_secret_gets_into_an_error() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        read_rules(CALLER.replace(HASH, f"trk_k1ab_{'s' * 64}"), "f")
    assert "sss" not in caught.value.message


def test_keys_may_be_fetched_over_tls_or_from_this_machine() -> None:
    for address in ("https://h/x", "http://localhost:1/x", "http://127.0.0.1/x", "http://[::1]/x"):
        assert read_rules(ISSUER.replace("keys.json", address) + CALLER, "f").issuers["i"].is_remote
    assert not read_rules(ISSUER + CALLER, "f").issuers["i"].is_remote
