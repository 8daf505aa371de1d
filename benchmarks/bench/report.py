"""The results as tables: Markdown for a file, and rich's for the terminal."""

from __future__ import annotations

from collections.abc import Callable

from rich.table import Table

from .document import METRICS, SUBJECT, Document, RowFacts, is_ahead, ratio, spread

NOTHING = "–"
FINE_BELOW = 100
"""Smaller figures have at least a digit behind the point."""
SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(metric: str, value: float) -> str:
    digits = METRICS[metric].digits
    return f"{value:,.{max(digits, 1) if value < FINE_BELOW else digits}f}"


class Notes:
    """Footnotes: each text has one number."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def mark(self, text: str) -> str:
        if text not in self.texts:
            self.texts.append(text)
        return str(self.texts.index(text) + 1).translate(SUPERSCRIPT)


def cell(
    document: Document,
    row: str,
    peer: str,
    metric: str,
    notes: Notes,
    strong: Callable[[str, bool], str],
    between: str = "; ",
) -> str:
    """A peer's figure, then the subject's by it with its spread; or why there is none.

    Args:
        strong: marks a ratio, as being ahead or not.
        between: what stands between figure and spread.
    """
    figures = spread(list(document.values(row, peer, metric).values()))
    if figures is None:
        reason = document.reason(row, peer)
        return NOTHING if reason is None else f"{NOTHING}{notes.mark(reason)}"
    text = number(metric, figures.median)
    if (note := document.notes.get(row, {}).get(peer)) is not None:
        text += notes.mark(note)
    if peer == SUBJECT:
        return f"{text}{between.strip(';')}({number(metric, figures.low)} … {number(metric, figures.high)})"
    by = ratio(document, row, peer, metric)
    if by is None:
        return text
    marked = strong(f"{by.median:.2f}", is_ahead(metric, by.median))
    return f"{text}{between}{marked} ({by.low:.2f} … {by.high:.2f})"


def shown(document: Document) -> list[str]:
    """Peers with a column: all that have been measured at least once, or could have been."""
    measured = {sample.peer for sample in document.samples}
    refused = {peer for row in document.missing.values() for peer in row}
    return [name for name in document.peers if name in measured | refused | document.unavailable.keys()]


def terminal_table(
    document: Document, rows: list[RowFacts] | None = None, *, full: bool = False
) -> tuple[Table, list[str]]:
    """The table for the terminal, and its footnotes.

    Args:
        rows: of the table; None for all.
        full: every metric of each row, and not only the first.
    """
    table = Table(
        title="Trireme beside its peers: medians; in brackets the lowest and the highest; Trireme's by theirs"
    )
    table.add_column("what", min_width=24)
    table.add_column("figure")
    peers = shown(document)
    for peer in peers:
        table.add_column(document.peers[peer], justify="right", no_wrap=True)
    notes = Notes()
    for row in document.rows if rows is None else rows:
        for place, metric in enumerate(row.metrics if full else row.metrics[:1]):
            cells = [cell(document, row.key, peer, metric, notes, _coloured, "\n") for peer in peers]
            table.add_row(row.key if place == 0 else "", METRICS[metric].title, *cells)
    return table, notes.texts


def _coloured(text: str, ahead: bool) -> str:
    return f"[{'green' if ahead else 'red'}]{text}[/]"


def markdown(document: Document) -> str:
    """The whole report: what was run where, a table of what each row is about, then one for each other metric."""
    lines = ["# Trireme beside its peers", "", *_facts(document), ""]
    peers, notes = shown(document), Notes()
    lines += _markdown_table(document, "What each row is about", peers, notes, lambda row: list(row.metrics[:1]))
    for metric in METRICS:
        if any(metric in row.metrics[1:] for row in document.rows):
            title = METRICS[metric].title
            chosen = {row.key: [metric] if metric in row.metrics else [] for row in document.rows}
            lines += _markdown_table(document, title, peers, notes, lambda row, chosen=chosen: chosen[row.key])
    lines += [f"{place}. {text}" for place, text in enumerate(notes.texts, start=1)]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_table(
    document: Document, title: str, peers: list[str], notes: Notes, metrics: Callable[[RowFacts], list[str]]
) -> list[str]:
    heads = ["What", "Figure", *(document.peers[peer] for peer in peers)]
    lines = [f"## {title[:1].upper()}{title[1:]}", "", _line(heads), _line(["---", "---", *["---:"] * len(peers)])]
    for row in document.rows:
        for metric in metrics(row):
            cells = [cell(document, row.key, peer, metric, notes, lambda text, _ahead: f"**{text}**") for peer in peers]
            lines.append(_line([row.key, METRICS[metric].title, *cells]))
    return [*lines, ""]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(each.replace('|', '/') for each in cells)} |"


def _facts(document: Document) -> list[str]:
    facts = document.facts
    machine = facts.get("machine", {})
    versions = ", ".join(f"{document.peers.get(name, name)} {version}" for name, version in document.versions.items())
    where = [
        machine.get("processor", "unknown processor"),
        f"{machine.get('cores', '?')} cores",
        f"{machine.get('memory_gib', '?')} GiB",
        machine.get("system", "unknown system"),
        f"Python {machine.get('python', '?')}",
    ]
    how = f"{facts.get('alternations', '?')} alternations, each of three windows of {facts.get('seconds', '?')} s"
    lines = [
        f"{facts.get('began', '?')}, commit {facts.get('commit', '?')}. {', '.join(where)}. {versions}.",
        "",
        f"Load average {facts.get('load_before', ['?'])[0]} before. Medians of {how}.",
        "A peer's cell has its figure, and Trireme's by it; in brackets the lowest and the highest of one alternation.",
    ]
    if facts.get("warning"):
        lines += ["", f"**{facts['warning']}**"]
    if document.ended != "complete":
        lines += ["", f"**The run is not complete: {document.ended}.**"]
    return lines
