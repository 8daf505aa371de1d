"""Log records as JSON, one object a line (``--log-format json``), for programs that read logs.

    {"time":"2026-11-20T16:21:18.253141Z","level":"info","logger":"trireme.repository","message":"loading: m:1",
     "model":"m","file":"repository.py","line":160,"pid":17195}

`level` is ``verbose``, ``info``, ``warning`` or ``error``. `model` and `request_id` are there where they are known,
`exception` (a traceback) where there was one. Each line is an object, also what other formats print as a table or
without a preamble.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime

_REQUEST = re.compile(r"\[request id: ([^\]]*)\] ")
"""How messages about a request begin; an error that is logged brings it along."""

_LEVELS = {logging.INFO: "info", logging.WARNING: "warning", logging.ERROR: "error", logging.CRITICAL: "error"}


class JsonFormatter(logging.Formatter):
    """Makes a record into a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if getattr(record, "bare", False) and "\n" in message:  # lines that a model has printed
            return "\n".join([self._format(record, line) for line in message.split("\n")])
        return self._format(record, message)

    def _format(self, record: logging.LogRecord, message: str) -> str:
        found = _REQUEST.search(message)
        request_id = getattr(record, "request_id", "") or (found[1] if found else "")
        fields: dict[str, object] = {
            "time": f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
            "level": _LEVELS.get(record.levelno, "verbose"),
            "logger": record.name,
            "message": message.rstrip("\n"),
        }
        if detail := getattr(record, "detail", ""):
            fields["detail"] = detail
        if model := getattr(record, "model", ""):
            fields["model"] = model
        if request_id:
            fields["request_id"] = request_id
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        fields |= {"file": record.filename, "line": record.lineno, "pid": record.process}
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
