"""Plain tables: columns as wide as their widest cell, without frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Its lines; cells that are numbers stand to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = [
            cell.rjust(width) if _is_number(cell) else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        ]
        yield "  ".join(cells).rstrip()


def _is_number(cell: str) -> bool:
    return cell == "-" or cell.replace(".", "", 1).replace("%", "").replace(",", "").isdigit()
