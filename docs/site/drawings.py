"""Draws the pictures of docs/architecture.md and README.md: the way of a request, and the tree of actors.

    python docs/site/drawings.py           # docs/pictures/*.svg
    python docs/site/drawings.py --png     # also the PNG of README's picture, with Chromium

The SVG files read in light and dark: they follow the reader's setting. A PNG remembers which SVG it was made of, so
that a test can say when it is out of date.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

PICTURES = Path(__file__).parents[1] / "pictures"
ON_THE_INDEX = "request"
"""The picture that README.md has: the package index shows its PNG."""

STYLE = """\
text { font: 14px system-ui, sans-serif; fill: #1f2937 } .small { font-size: 12px; fill: #4b5563 }
.head { font-weight: 600 } .middle { text-anchor: middle }
.box { fill: #f3f4f6; stroke: #6b7280; stroke-width: 1.2 } .actor { fill: #e0ecff; stroke: #3b6fd4 }
.outer { fill: none; stroke: #9ca3af; stroke-dasharray: 5 4 } .way { stroke: #4b5563; stroke-width: 1.6; fill: none }
.back { stroke: #0f8a5f; stroke-width: 1.6; fill: none } .tip { fill: #4b5563 } .backtip { fill: #0f8a5f }
@media (prefers-color-scheme: dark) {
text { fill: #e5e7eb } .small { fill: #b6bdc9 } .box { fill: #2a303b; stroke: #9ca3af }
.actor { fill: #1d3357; stroke: #7aa7f7 } .way { stroke: #b6bdc9 } .tip { fill: #b6bdc9 }
.back { stroke: #4fd3a2 } .backtip { fill: #4fd3a2 } .outer { stroke: #7c8593 }
}"""

MARKERS = """\
<defs>
<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path class="tip" \
d="M0 0L8 4L0 8z"/></marker>
<marker id="backtip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path \
class="backtip" d="M0 0L8 4L0 8z"/></marker>
</defs>"""


@dataclass
class Drawing:
    """An SVG picture that grows by what is drawn; coordinates are pixels from the top left."""

    title: str
    about: str
    width: int
    height: int
    parts: list[str] = field(default_factory=list)

    def box(self, x: int, y: int, width: int, height: int, *lines: str, kind: str = "box") -> None:
        """A rectangle with its name and, below that, smaller lines, all in its middle."""
        self.parts.append(f'<rect class="box {kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="7"/>')
        top = y + height / 2 + 5 - 8 * (len(lines) - 1)
        for number, line in enumerate(lines):
            self.text(x + width // 2, top + 17 * number, line, "small" if number else "head", "middle")

    def outline(self, x: int, y: int, width: int, height: int, name: str) -> None:
        """A dashed rectangle around other things."""
        self.parts.append(f'<rect class="outer" x="{x}" y="{y}" width="{width}" height="{height}" rx="9"/>')
        self.text(x + 12, y + 19, name, "small")

    def text(self, x: float, y: float, text: str, *classes: str) -> None:
        self.parts.append(f'<text class="{" ".join(classes)}" x="{x:g}" y="{y:g}">{escape(text)}</text>')

    def line(self, *points: tuple[int, int], kind: str = "way", tip: bool = True) -> None:
        """A line through points, by default with a tip at its end."""
        marker = f' marker-end="url(#{"backtip" if kind == "back" else "tip"})"' if tip else ""
        path = "M" + "L".join(f"{x} {y}" for x, y in points)
        self.parts.append(f'<path class="{kind}" d="{path}"{marker}/>')

    def svg(self) -> str:
        """The file's text."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img" aria-labelledby="title about">'
        )
        names = f'<title id="title">{escape(self.title)}</title>\n<desc id="about">{escape(self.about)}</desc>'
        return "\n".join([head, names, f"<style>{STYLE}</style>", MARKERS, *self.parts, "</svg>", ""])


def request_path() -> Drawing:
    """The way of a request from a client to a model and back."""
    drawing = Drawing(
        "The way of a request",
        "Clients send requests over HTTP or gRPC. A front end decodes them, admission checks them, the model's "
        "scheduler puts several into one batch, an instance executes it, and each answer goes back to its client.",
        920,
        270,
    )
    for number, name in enumerate(("tritonclient", "curl, a browser", "any gRPC stub")):
        drawing.box(10, 42 + 62 * number, 128, 44, name)
        drawing.line((138, 64 + 62 * number), (196, 126), tip=number == 1)
    drawing.outline(168, 12, 742, 246, "trireme serve: actors on one event loop, messages between them")
    drawing.box(198, 92, 122, 68, "Front end", "HTTP or gRPC:", "decode, encode")
    drawing.box(362, 92, 122, 68, "Admission", "ready? valid?", "room for it?")
    drawing.box(526, 92, 142, 68, "Scheduler", "which requests,", "when, where", kind="actor")
    drawing.line((320, 118), (360, 118))
    drawing.line((484, 118), (524, 118))
    for number, row in enumerate((44, 146)):
        drawing.box(
            726, row, 168, 62, f"Instance {number + 1}", "a batch at a time: thread,", "process or GPU", kind="actor"
        )
        drawing.line((668, 112 + 24 * number), (724, row + 31))
    drawing.line((810, 208), (810, 232), (258, 232), (258, 162), kind="back")
    drawing.text(534, 225, "an answer for each request, as soon as its batch is over", "small", "middle")
    return drawing


@dataclass(frozen=True)
class Actor:
    """A row of the tree: how deep it is, its name, and what it does."""

    depth: int
    name: str
    about: str


ACTORS: Sequence[Actor] = (
    Actor(0, "InferenceServer", "the facade that front ends and programs use; admits requests"),
    Actor(1, "RateLimiter", "shares resources out among the instances of all models"),
    Actor(1, "Routes", "names for which several models answer, by weights and steps"),
    Actor(1, "Shadows", "asks other models the same, and compares"),
    Actor(1, "Repository", "starts the versions of a load, and has them serve or drain together"),
    Actor(2, "Model", "one for each version: loading, ready, draining, unloaded or failed"),
    Actor(3, "CachedDoor", "answers from the response cache, if the model uses it"),
    Actor(3, "Scheduler", "forms batches: default, dynamic, sequence or adaptive"),
    Actor(3, "SlotActor", "one live sequence: its order, its queue, its idle deadline"),
    Actor(3, "Instance", "executes one batch at a time; is replaced when it dies or hangs"),
    Actor(4, "Executor", "in place, on a thread, in a process, or on a GPU's stream"),
    Actor(3, "Ensemble", "in place of all these: asks other models, step by step"),
)


def actor_tree() -> Drawing:
    """Who supervises whom."""
    step, row, left = 46, 44, 20
    drawing = Drawing(
        "The tree of actors",
        "Each actor runs in the nursery of the one above it, which handles its death. "
        + " ".join(f"{each.name}: {each.about}." for each in ACTORS),
        860,
        row * len(ACTORS) + 24,
    )
    last_at: dict[int, int] = {}
    for number, actor in enumerate(ACTORS):
        x, y = left + step * actor.depth, 12 + row * number
        if actor.depth:
            corner = x - step + 18
            drawing.line((corner, last_at[actor.depth - 1] + 32), (corner, y + 16), (x - 1, y + 16), tip=False)
        drawing.box(x, y, 148, 32, actor.name, kind="actor")
        drawing.text(x + 162, y + 21, actor.about, "small")
        last_at[actor.depth] = y
    return drawing


def drawings() -> dict[str, str]:
    """The pictures' texts, by their names."""
    return {"request": request_path().svg(), "actors": actor_tree().svg()}


def digest(svg: str) -> str:
    """What tells an SVG from another one."""
    return hashlib.sha256(svg.encode()).hexdigest()


def write_png(name: str, svg: str) -> None:
    """The picture as a PNG, twice as large, by Chromium; RuntimeError where there is none."""
    from PIL import Image, PngImagePlugin

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise RuntimeError("--png needs Chromium: apt-get install chromium")
    size = svg.split('viewBox="0 0 ')[1].split('"')[0].replace(" ", ",")
    with tempfile.TemporaryDirectory() as folder:
        page, shot = Path(folder, "page.html"), Path(folder, "shot.png")
        page.write_text(f'<body style="margin:0">{svg}</body>')
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--force-device-scale-factor=2"]
        command = [chromium, *options, f"--window-size={size}", f"--screenshot={shot}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True)
        told = PngImagePlugin.PngInfo()
        told.add_text("made of", digest(svg))
        Image.open(shot).convert("RGB").quantize(64).save(PICTURES / f"{name}.png", pnginfo=told, optimize=True)


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    for name, svg in drawings().items():
        (PICTURES / f"{name}.svg").write_text(svg)
        if name == ON_THE_INDEX and "--png" in sys.argv:
            write_png(name, svg)


if __name__ == "__main__":
    main()
