"""``python -m trireme.simulations``: play a scenario, show what happened."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from .events import BatchSealed, RequestAbandoned, RequestAnswered, RequestSubmitted
from .history import History
from .scenarios import SCENARIOS
from .svg import draw_svg
from .timeline import draw_timeline
from .world import run_world


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    options = _parser().parse_args(arguments)
    history = run_world(SCENARIOS[options.scenario], options.seed)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(f"scenario {options.scenario}, seed {options.seed}, history {history.digest()}\n")
    console.print(draw_timeline(history, options.columns))
    console.print("\n".join(summary(history)))
    if options.history:
        options.history.write_bytes(history.to_bytes())
    if options.svg:
        options.svg.write_text(draw_svg(history), encoding="utf-8")
    return 0


def summary(history: History) -> list[str]:
    """How many of what, a line each."""
    answers = history.of(RequestAnswered)
    errors = Counter(_without_id(answer.error) for answer in answers if answer.error)
    reasons = Counter(batch.reason for batch in history.of(BatchSealed))
    answered, abandoned = len(answers) - errors.total(), len(history.of(RequestAbandoned))
    requests = f"{len(history.of(RequestSubmitted))} requests: {answered} answered"
    return [
        f"{requests}, {errors.total()} refused or failed, {abandoned} abandoned by their clients",
        *(f"    {count} times: {text}" for text, count in sorted(errors.items())),
        f"batches: {reasons.total()}",
        *(f"    {count} sealed: {reason}" for reason, count in sorted(reasons.items())),
    ]


def _without_id(text: str) -> str:
    """An error's text without the request's own number in front, so that equal ones can be counted."""
    return text.split("] ", 1)[-1] if text.startswith("[request id: ") else text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trireme.simulations",
        description="Play a scenario on Trireme's actors in virtual time. One seed gives one history.",
    )
    parser.add_argument("--seed", type=int, default=1, help="where all chance comes from (default: 1)")
    parser.add_argument("--scenario", choices=list(SCENARIOS), default="mixed", help="what to play (default: mixed)")
    parser.add_argument("--columns", type=_columns, default=120, help="width of the timeline (default: 120)")
    parser.add_argument("--history", type=Path, metavar="FILE", help="write every event here, as JSON lines")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the timeline here, as SVG")
    return parser


def _columns(text: str) -> int:
    columns = int(text)
    if columns < 1:
        raise argparse.ArgumentTypeError(f"at least 1 column is needed, not {columns}")
    return columns
