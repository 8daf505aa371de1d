"""How what user code raised is told to people: type, text, and where in the user's own code
(docs/reference/python-backend.md#error-texts)."""

from __future__ import annotations

import os
import traceback

MOST_CHARACTERS = 32 << 10

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""What user code calls; its frames say nothing to the user."""
_DRIVERS = tuple(os.path.join(os.path.dirname(os.path.abspath(__file__)), name) for name in ("runner.py", "loading.py"))
"""What calls user code; neither do these, or those outside of them (of an event loop, say)."""


class ModelError(Exception):
    """User code failed, or is not what it must be; the text is for people, with the user's file and line."""


def describe(error: BaseException) -> str:
    """``ValueError: text``, then the user's frames, the innermost first.

    A group of one exception, as nurseries and task groups raise, is about that one.
    """
    while len(getattr(error, "exceptions", ())) == 1:
        error = error.exceptions[0]  # type: ignore[attr-defined]
    frames = user_frames(error)
    where = "".join(f"  {filename}({line}): {function}\n" for filename, line, function in frames)
    text = f"{type(error).__name__}: {_text(error)}"
    return shortened(f"{text}\n\nAt:\n{where}" if where else text)


def shortened(text: str) -> str:
    """A text for the server: of one that is longer than `MOST_CHARACTERS`, the beginning and the end."""
    if len(text) <= MOST_CHARACTERS:
        return text
    half = MOST_CHARACTERS // 2
    return f"{text[:half]}\n... ({len(text) - 2 * half} characters) ...\n{text[-half:]}"


def user_frames(error: BaseException) -> list[tuple[str, int, str]]:
    """File, line and function of the frames outside of this folder and the import machinery, the innermost first."""
    walked = traceback.walk_tb(error.__traceback__)
    frames = [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in walked]
    drivers = [number for number, frame in enumerate(frames, 1) if frame[0] in _DRIVERS]
    frames = frames[max(drivers, default=0) :]
    frames = [frame for frame in frames if not frame[0].startswith((_OURS, "<frozen "))]
    if not frames and isinstance(error, SyntaxError) and error.filename:
        frames = [(error.filename, error.lineno or 0, "<module>")]
    return frames[::-1]


def _text(error: BaseException) -> str:
    try:
        return str(error) or "<EMPTY MESSAGE>"
    except Exception as second:  # noqa: BLE001 - a __str__ of user code
        return f"<no text: {type(second).__name__}>"
