"""API keys: ``trk_<id>_<secret>``.

The access file has the id, and a salted SHA-256 digest of the secret. The secret is 256 random bits, so there is
nothing that a slow digest would protect: it cannot be guessed, whatever a guess costs.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass

PREFIX = b"trk_"
_KEY = re.compile(rb"trk_([a-z0-9]{4,32})_([A-Za-z0-9]{32,128})")
_ID = re.compile(r"[a-z0-9]{4,32}")
_DIGEST = re.compile(r"sha256:([0-9a-f]{16,64}):([0-9a-f]{64})")

KEY_FORM = "trk_<id>_<secret>"
ID_FORM = "4 to 32 characters of a-z and 0-9"
DIGEST_FORM = "sha256:<salt>:<digest>, as `trireme key new` prints it"


@dataclass(frozen=True, slots=True)
class KeyDigest:
    """What the file has of a key's secret."""

    salt: bytes
    digest: bytes

    def admits(self, secret: bytes) -> bool:
        """Whether this is the secret; how long that takes does not tell how much of it is right."""
        return hmac.compare_digest(_digest(self.salt, secret), self.digest)

    def __str__(self) -> str:
        return f"sha256:{self.salt.hex()}:{self.digest.hex()}"


UNKNOWN_KEY = KeyDigest(bytes(16), bytes(32))
"""Admits nothing, and takes as long as another one to find out."""


def make_key(key_id: str, secret: str, salt: bytes) -> tuple[str, KeyDigest]:
    """A key, and what of it goes into the access file. The secret and the salt have to be random."""
    key = f"trk_{key_id}_{secret}"
    assert _KEY.fullmatch(key.encode()), f"not of the form {KEY_FORM}"
    return key, KeyDigest(salt, _digest(salt, secret.encode()))


def split_key(value: bytes) -> tuple[str, bytes] | None:
    """Id and secret of a key; None if it is none."""
    found = _KEY.fullmatch(value)
    return None if found is None else (found[1].decode(), found[2])


def is_key_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def read_digest(text: str) -> KeyDigest | None:
    """What `str` has made of a digest; None if it is something else."""
    found = _DIGEST.fullmatch(text)
    if found is None or len(found[1]) % 2:
        return None
    return KeyDigest(bytes.fromhex(found[1]), bytes.fromhex(found[2]))


def _digest(salt: bytes, secret: bytes) -> bytes:
    return hashlib.sha256(salt + secret).digest()
