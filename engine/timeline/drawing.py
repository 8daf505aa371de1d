"""The files of the drawing. `timeline.js` says on its top what data it draws."""

from __future__ import annotations

from importlib import resources


def timeline_part(name: str) -> str:
    """The text of ``timeline.js`` or ``timeline.css``."""
    return resources.files(__package__ or "").joinpath(name).read_text(encoding="utf-8")
