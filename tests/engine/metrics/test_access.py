"""Metrics by caller."""

from __future__ import annotations

from trireme.engine.access.control import AccessControl
from trireme.engine.access.credentials import NO_CREDENTIAL
from trireme.engine.access.rules import read_rules
from trireme.engine.errors import RefusalReason
from trireme.engine.metrics.access import access_families
from trireme.engine.metrics.page import write_text


def test_the_families_of_callers() -> None:
    control = AccessControl(read_rules('[anonymous]\nread = ["*"]', "f"), bytes(32), 0.0)
    caller = control.recognise(NO_CREDENTIAL, 0.0)
    assert caller is not None
    control.admit(caller, 0, 0.0)
    control.note_refusal(caller, RefusalReason.PERMISSION_DENIED)
    control.note_refusal(None, RefusalReason.UNAUTHENTICATED)
    lines = [line for line in write_text(access_families(control)).splitlines() if not line.startswith("#")]
    assert lines == [
        'trireme_caller_requests_total{caller="anonymous"} 1',
        'trireme_caller_in_flight{caller="anonymous"} 1',
        'trireme_caller_refused_total{caller="anonymous",reason="permission_denied"} 1',
        'trireme_caller_refused_total{caller="",reason="unauthenticated"} 1',
        'trireme_access_updates_total{event="rules_applied"} 0',
        'trireme_access_updates_total{event="rules_refused"} 0',
        'trireme_access_updates_total{event="keys_fetched"} 0',
        'trireme_access_updates_total{event="keys_failed"} 0',
    ]
