"""Credentials, and the names in certificates."""

from __future__ import annotations

from trireme.engine.access.credentials import Credential, CredentialKind, certificate_names, read_names


def test_a_credential_does_not_show_its_value() -> None:
    assert repr(Credential(CredentialKind.API_KEY, b"secret")) == "<Credential API key, 6 bytes>"


def test_the_names_of_a_certificate() -> None:
    certificate = {
        "subject": ((("countryName", "DE"),), (("commonName", "ci=1"),), (("organizationName", "Ä"),)),
        "subjectAltName": (("DNS", "a.example"), ("DNS", "b.example"), ("URI", "spiffe://x/y"), ("DirName", "no")),
    }
    assert read_names(certificate_names(certificate)) == {
        "common-name": ["ci=1"],
        "organization": ["Ä"],
        "dns": ["a.example", "b.example"],
        "uri": ["spiffe://x/y"],
    }


def test_a_name_with_a_line_break_cannot_pose_as_another() -> None:
    assert read_names(certificate_names({"subject": ((("commonName", "x\ndns=admin"),),)})) == {"": [""]}
    assert certificate_names({}) == b""
