"""What to do about an error of a configuration, of a load or of a start: a line for those who read its text.

The table is ``remedies.toml``; docs/errors.md shows it at work.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

_FALLBACK = "see docs/reference/model-configuration.md for what a configuration may say"


def remedy(text: str) -> str:
    """What to do about an error with this text."""
    for row in all_remedies():
        if found := re.search(row["text"], text):
            what = row["do"]
            for number, group in enumerate(found.groups(), start=1):
                what = what.replace(f"{{{number}}}", group or "")
            return what.replace("{backends}", _backends()) if "{backends}" in what else what
    return _FALLBACK


def all_remedies() -> list[dict[str, str]]:
    """The table: of each, the pattern of texts (``text``) and what to do then (``do``)."""
    return tomllib.loads(Path(__file__).with_name("remedies.toml").read_text(encoding="utf-8"))["remedy"]


def _backends() -> str:
    from ...engine.backends.registry import ENTRY_POINT_GROUP, OWN
    from ...engine.plugins import entry_points

    return ", ".join(sorted({*OWN, *(point.name for point in entry_points(ENTRY_POINT_GROUP))}))
