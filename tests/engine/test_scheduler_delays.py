"""What the environment asks of schedulers."""

from __future__ import annotations

from trireme.engine.scheduler_delays import SchedulerDelays


def test_the_environment_says_how_many() -> None:
    names = "TRITONSERVER_DELAY_SCHEDULER", "TRITONSERVER_BACKLOG_DELAY_SCHEDULER"
    assert SchedulerDelays.of({}) == SchedulerDelays(0, 0)
    assert SchedulerDelays.of({names[0]: "12", names[1]: " 3x"}) == SchedulerDelays(12, 3)
    assert SchedulerDelays.of({names[0]: "", names[1]: "-1"}) == SchedulerDelays(0, 0)
