"""What a log record is about, where that is known; structured logs tell it in fields of their own."""

from __future__ import annotations


def about(model: str = "", request_id: str = "") -> dict[str, str]:
    """For ``extra`` of a logging call: the model, and the client's name for the request; empty for neither."""
    return {"model": model, "request_id": request_id}
