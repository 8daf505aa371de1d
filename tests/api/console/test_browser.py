"""The console in Chromium: its views, their errors, a connection that is lost and comes back, and the keyboard.

With SCREENSHOTS in the environment it also writes the pictures of docs/console.md: `make screenshots`.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import WHY_NOT, chromium, page_of
from PIL import Image, ImageDraw
from repository_models import REPOSITORY, link_models
from ruled_server import key_of, rules_text
from serve_process import ServeProcess, serve_process

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]

ROOT = Path(__file__).parents[3]
SCREENSHOTS = os.environ.get("SCREENSHOTS")
NETWORK = ("Failed to load resource", "ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "net::ERR")
HOSTILE = "<img src=x onerror=alert(1)>&\"'"
EXPLICIT = ("--model-control-mode", "explicit", "--load-model", "*")
VIEWS = {
    "models": "What the server does",
    "models/digits/1": "Where the time of a request goes",
    "timeline": "The last seconds",
    "actors": "The actors of the server",
    "try/digits/1": "Send a request",
    "settings": "Settings",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """Busy, so that there is something to be seen."""
    repository = link_models(
        tmp_path_factory.mktemp("console") / "models", "digits", "simple", "identity_fp32", "simple_sequence"
    )
    with serve_process(repository, *EXPLICIT) as running, busy(running):
        yield running


@contextmanager
def busy(server: ServeProcess) -> Iterator[None]:
    """Clients that ask for digits, one row or several, and for sums, and sequences."""
    over = threading.Event()
    digit = [{"name": "IMAGE", "datatype": "FP32", "shape": [1, 8, 8], "data": [0.5] * 64}]
    several = [{"name": "IMAGE", "datatype": "FP32", "shape": [3, 8, 8], "data": [0.5] * 192}]
    sums = [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": [1] * 16} for name in ("INPUT0", "INPUT1")]

    def ask(model: str, inputs: list[dict[str, Any]], pause_s: float) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
        body = json.dumps({"inputs": inputs})
        while not over.wait(pause_s):
            connection.request("POST", f"/v2/models/{model}/infer", body)
            connection.getresponse().read()
        connection.close()

    def go_on(number: int, pause_s: float) -> None:
        """Sequences, one after the other."""
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
        tensor = {"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [1]}
        for step in itertools.cycle(range(30)):
            if over.wait(pause_s):
                break
            flags = {"sequence_id": number, "sequence_start": step == 0, "sequence_end": step == 29}
            body = json.dumps({"inputs": [tensor], "parameters": flags})
            connection.request("POST", "/v2/models/simple_sequence/infer", body)
            connection.getresponse().read()
        connection.close()

    loads = [("digits", digit, 0.011), ("digits", digit, 0.013), ("digits", several, 0.012), ("simple", sums, 0.02)]
    clients = [threading.Thread(target=ask, args=load) for load in [*loads, *loads]]
    clients += [threading.Thread(target=go_on, args=(number, 0.03 + number / 100)) for number in (1, 2, 3)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        over.set()
        for client in clients:
            client.join()


def address(server: ServeProcess, view: str = "models") -> str:
    return f"http://127.0.0.1:{server.metrics_port}/console#{view}"


def open_view(page: Any, server: ServeProcess, view: str) -> None:
    page.goto(address(server, view))
    page.get_by_text("Live", exact=True).wait_for()
    page.get_by_text(VIEWS[view]).first.wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_view(browser: Any, server: ServeProcess, scheme: str) -> None:
    with page_of(browser, scheme) as page:
        grounds = set()
        for view in VIEWS:
            open_view(page, server, view)
            grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            assert page.locator("main h1").count() == 1
            unnamed = page.locator("button:not([aria-label]), input, select, textarea").evaluate_all(
                "each => each.filter((node) => !(node.textContent.trim() || node.labels && node.labels.length)).length"
            )
            assert unnamed == 0, "every control has a name"
        (ground,) = grounds
        assert (sum(map(int, re.findall(r"\d+", ground)[:3])) > 384) is (scheme == "light")


def test_models_and_one_of_them(browser: Any, server: ServeProcess) -> None:
    with page_of(browser) as page:
        open_view(page, server, "models")
        row = page.get_by_role("row", name=re.compile("digits v1"))
        row.get_by_text(re.compile(r"^[\d.]+ of 32$")).wait_for()
        row.get_by_role("link").click()
        page.get_by_text("ran with 1 row because the queue delay is 0").wait_for()
        page.get_by_text(re.compile(r"percentiles of [\d,]+ requests seen last")).wait_for()
        cells = page.get_by_role("row", name=re.compile("^the model")).get_by_role("cell").all_inner_texts()
        assert all(re.fullmatch(r"[\d.]+ ms", cell) for cell in cells), cells
        page.get_by_role("link", name="Send it a request").click()
        page.get_by_role("heading", name="Send a request").wait_for()


def test_the_timeline_is_stopped_and_zoomed(browser: Any, server: ServeProcess) -> None:
    with page_of(browser) as page:
        open_view(page, server, "timeline")
        canvas = page.locator("canvas")
        canvas.wait_for()
        page.locator(".tt-legend").get_by_text("answered", exact=True).wait_for()  # a frame with batches has come
        span = "() => { const line = document.querySelector('canvas'); return line.toDataURL(); }"
        page.get_by_role("button", name="Stop").click()
        page.get_by_text("stopped: zoom and move as you like").wait_for()
        before = page.evaluate(span)
        page.wait_for_function("() => document.querySelector('#connection').textContent === 'Live'")
        assert page.evaluate(span) == before, "it stands still"
        canvas.focus()
        page.keyboard.press("+")
        zoomed = page.evaluate(span)
        assert zoomed != before
        page.keyboard.press("0")
        assert page.evaluate(span) == before
        page.get_by_text(re.compile("batches as a table")).click()
        page.get_by_role("columnheader", name="Closed because").wait_for()
        page.locator("details tbody tr").nth(5).wait_for()  # filled once it is open
        page.get_by_role("button", name="Go on").click()
        page.wait_for_function("before => document.querySelector('canvas').toDataURL() !== before", arg=before)


ROWS = """async () => {
  const {modelGroup} = await import("./console/timeline_view.js"), {State} = await import("./console/state.js");
  const state = new State(), source = new EventSource("./console/stream");
  const seen = await new Promise((told) => source.addEventListener("frame", (event) => {
    state.take(JSON.parse(event.data));
    const known = state.all.find((each) => each.model.name === "simple_sequence");
    const rows = known ? modelGroup(known, 0, state.frame.t).lanes.filter((lane) => lane.kind === "rows") : [];
    if (rows.length === 3) told(rows.map((lane) => lane.title));
  }));
  source.close();
  return seen;
}"""


def test_sequences_have_lanes_for_their_rows(browser: Any, server: ServeProcess) -> None:
    """Three sequences, each with a row of its own."""
    with page_of(browser) as page:
        open_view(page, server, "timeline")
        rows = page.evaluate(ROWS)
        assert rows == ["row 0", "row 1", "row 2"]


REQUESTS = """async () => {
  const {modelGroup} = await import("./console/timeline_view.js"), {State} = await import("./console/state.js");
  const state = new State();
  const model = {
    name: "m", version: 1, namespace: "", success: 0, fail: 0, ended: 0, rows: 0, executions: 0, pending: 0,
    executing: 3, ns: {}, sealed: {}, alone: {}, refused: {}, sizes: [], batching: null, batches: [], requests: [],
  };
  const batch = [7, "m_0_0", -1, 2, 0, 50e6, 51e6, 59e6, 60e6, 61e6, 2, 0, [20e3, 10e3], [31e3, 21e3], []];
  const refused = [40e6, null, 41e6, "refused: queue full", ""], cached = [62e6, 63e6, 70e6, "cached", ""];
  const noted = [refused, cached, [30e6, 35e6, null, "", "m_0_1"]];
  const add = (t, more) => state.take({t, refused: {}, models: [{...model, ...more}]});
  const look = () => {
    const {note, lanes} = modelGroup(state.all[0], 0, state.frame.t), [lane] = lanes;
    const tracks = lane.tracks.map((track) => track.map((bar) => bar.map((each) => each / 1e6 || each)));
    return [note, lane.title, tracks, lane.gaps];
  };
  add(10e6, {});
  add(80e6, {ended: 9, success: 8, executions: 1, batches: [batch], requests: noted});
  const first = look();
  add(90e6, {ended: 9, success: 8, executions: 1});
  return [first, look()];
}"""


def test_requests_have_bars_from_arrival_to_answer(browser: Any, server: ServeProcess) -> None:
    """Two of a batch, one that was refused, one from the cache and an open one; five ended that are not drawn, and two
    more are being executed."""
    with page_of(browser) as page:
        open_view(page, server, "timeline")
        first, then = page.evaluate(REQUESTS)
        tracks = [
            [[30, 50, 61, "answered", "m_0_0"], [62, 63, 70, "answered from the cache", ""]],
            [[30, 35, 80, "not answered yet", "m_0_1"]],
            [[40, None, 41, "refused: queue full", ""]],
            [[40, 50, 61, "answered", "m_0_0"]],
        ]
        assert first == ["5 of 12 requests drawn", "requests", tracks, [[10e6, 80e6, 5]]]
        assert then[0] == "4 of 12 requests drawn", "nothing that is open is told of any more"
        assert sum(map(len, then[2])) == 4


def test_the_timeline_shows_requests_one_by_one(browser: Any, server: ServeProcess) -> None:
    with page_of(browser) as page:
        open_view(page, server, "timeline")
        page.locator(".tt-legend").get_by_text("answered", exact=True).wait_for()
        page.get_by_text("The last requests as a table").click()
        page.get_by_role("columnheader", name="Waited").wait_for()
        page.locator("details tbody tr").nth(5).wait_for()
        page.get_by_role("button", name="Stop").click()
        texts = page.locator("details[open] tbody tr").first.get_by_role("cell").all_inner_texts()
        assert re.fullmatch(r"[a-z_0-9]+", texts[0]), texts
        assert [bool(re.fullmatch(r"[\d.,]+ ms", text)) for text in texts[1:3]] == [True, True], texts
        assert texts[3] in ("answered", "not answered yet")


def test_the_tree_of_actors(browser: Any, server: ServeProcess) -> None:
    with page_of(browser) as page:
        open_view(page, server, "actors")
        page.get_by_text("digits_0_0").wait_for()
        texts = page.locator(".tree .row").all_inner_texts()
        assert any("scheduler" in text and "digits" in text and "mailbox" in text for text in texts)
        assert page.locator(".tree .tree").count() == 0
        assert page.locator(".tree > li > ul > li").count() >= 1


def test_a_request_from_an_image(browser: Any, server: ServeProcess, tmp_path: Path) -> None:
    one = Image.new("L", (80, 80), 0)
    ImageDraw.Draw(one).line((40, 5, 40, 75), fill=255, width=14)
    one.save(tmp_path / "one.png")
    with page_of(browser) as page:
        open_view(page, server, "try/digits/1")
        page.get_by_label("From an image").set_input_files(tmp_path / "one.png")
        page.locator("canvas.preview").wait_for()
        page.get_by_role("button", name="Send").click()
        page.get_by_text(re.compile("digits version 1 answered after")).wait_for()
        likely = page.get_by_role("list", name="Likeliest classes of PROBABILITIES").get_by_role("listitem")
        labels = (REPOSITORY / "digits" / "labels.txt").read_text().split()
        assert set(likely.all_inner_texts()[::2]) <= set(labels)
        assert likely.count() == 10, "five classes, and what each has"
        values = json.loads(page.get_by_label("Values, as JSON").input_value())
        assert (len(values), len(values[0]), len(values[0][0])) == (1, 8, 8)


def test_wrong_values_and_a_wrong_shape(browser: Any, server: ServeProcess) -> None:
    with page_of(browser, allowed=NETWORK) as page:
        open_view(page, server, "try/digits/1")
        text = page.get_by_label("Values, as JSON")
        text.fill("[1, 2")
        page.get_by_role("button", name="Send").click()
        page.get_by_text("IMAGE: write numbers as JSON").wait_for()
        text.fill("[1, 2]")
        page.get_by_role("button", name="Send").click()
        page.get_by_text("unexpected shape for input 'IMAGE'").wait_for()


def test_load_unload_and_settings(browser: Any, server: ServeProcess) -> None:
    with page_of(browser) as page:
        open_view(page, server, "settings")
        page.get_by_role("button", name="Unload identity_fp32").click()
        page.get_by_role("button", name="Load identity_fp32", exact=True).click()
        page.get_by_text("identity_fp32 is loaded.").wait_for()
        page.get_by_label("verbose level").fill("1")
        page.get_by_role("button", name="Change").first.click()
        page.get_by_text("The settings are changed.").wait_for()
        assert server.ask("GET", "/v2/logging")[1]["log_verbose_level"] == 1
        server.ask("POST", "/v2/logging", {"log_verbose_level": 0})


def test_the_keyboard_reaches_everything(browser: Any, server: ServeProcess) -> None:
    with page_of(browser) as page:
        open_view(page, server, "models")
        page.get_by_role("link", name="digits v1").wait_for()
        walked = []
        for _ in range(10):
            page.keyboard.press("Tab")
            walked.append(page.evaluate("document.activeElement.textContent.trim()"))
            if " v1" in walked[-1] and page.evaluate("document.activeElement.tagName") == "A":
                break
        assert walked[:6] == ["Skip to content", "Models", "Timeline", "Actors", "Try a model", "Settings"]
        assert walked[-1].endswith(" v1"), "the first model"
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.keyboard.press("Enter")
        page.get_by_text("Where the time of a request goes").wait_for()
        assert page.evaluate("document.activeElement.id") == "content"
        assert page.locator("nav [aria-current=page]").inner_text() == "Models"


def test_hostile_names_are_only_text(browser: Any, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    (repository / HOSTILE).mkdir(parents=True)
    config = (REPOSITORY / "identity_fp32" / "config.pbtxt").read_text()
    (repository / HOSTILE / "config.pbtxt").write_text(re.sub(r"^name:.*$", "", config, flags=re.MULTILINE))
    for path in (REPOSITORY / "identity_fp32").iterdir():
        if path.name != "config.pbtxt":
            (repository / HOSTILE / path.name).symlink_to(path)
    with serve_process(repository) as server, page_of(browser, allowed=NETWORK) as page:
        for view in ("models", "timeline", "actors", "settings", "try"):
            page.goto(address(server, view))
            page.get_by_text("Live", exact=True).wait_for()
            if view != "timeline":
                page.get_by_text(HOSTILE).first.wait_for(state="attached")
            assert page.locator("main img").count() == 0
        page.goto(address(server, "models"))
        page.get_by_role("link", name=re.compile("onerror")).click()
        page.get_by_role("heading", name=HOSTILE).wait_for()
        assert page.locator("main img").count() == 0


def test_a_lost_connection_comes_back(browser: Any, tmp_path: Path) -> None:
    repository = link_models(tmp_path / "models", "simple")
    with page_of(browser, allowed=NETWORK) as page:
        with serve_process(repository) as server:
            port = str(server.metrics_port)
            page.goto(address(server))
            page.get_by_text("Live", exact=True).wait_for()
        page.get_by_text("Reconnecting…").wait_for()
        page.get_by_role("alert").get_by_text("The connection to the server is lost").wait_for()
        with serve_process(repository, "--metrics-port", port):
            page.get_by_text("Live", exact=True).wait_for()
            page.get_by_text("The connection to the server is lost").wait_for(state="hidden")


def test_a_key_where_there_are_rules(browser: Any, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(rules_text(reader='read = ["*"]'))
    flags = ("--access-config", str(rules))
    models = link_models(tmp_path / "models", "simple")
    with serve_process(models, *flags) as server, page_of(browser, allowed=NETWORK) as page:
        page.goto(address(server))
        page.get_by_text("Not allowed").wait_for()
        assert "console/stream" not in page.get_by_role("alert").inner_text()
        page.get_by_role("button", name="API key").click()
        page.get_by_label("Key or token").fill(key_of("reader"))
        page.keyboard.press("Enter")
        page.get_by_text("Live", exact=True).wait_for()
        page.get_by_role("link", name="Try a model").click()
        page.get_by_role("button", name="Send").click()
        page.get_by_text("does not have the right 'infer' on model 'simple'").wait_for()


def test_a_console_that_only_shows_says_so(browser: Any, tmp_path: Path) -> None:
    flags = ("--console", "view")
    with serve_process(link_models(tmp_path / "models", "simple"), *flags) as server, page_of(browser) as page:
        for view in ("try", "settings"):
            page.goto(address(server, view))
            page.get_by_text("this server's console only shows").wait_for()


@pytest.mark.skipif(not SCREENSHOTS, reason="made by `make screenshots` only")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_screenshots(browser: Any, server: ServeProcess, scheme: str, tmp_path: Path) -> None:
    folder = ROOT / "docs" / "images"
    folder.mkdir(exist_ok=True)
    shown = {
        "models": "models",
        "models/digits/1": "model",
        "timeline": "timeline",
        "actors": "actors",
        "try/digits/1": "try",
        "settings": "settings",
    }
    drawn = tmp_path / "seven.png"
    digit = np.load(REPOSITORY / "digits_heldout.npz")["images"][7].reshape(8, 8)
    Image.fromarray((digit / digit.max() * 255).astype(np.uint8)).resize((80, 80), Image.Resampling.NEAREST).save(drawn)
    with page_of(browser, scheme) as page:
        page.set_viewport_size({"width": 1100, "height": 620})
        page.goto(address(server))
        page.get_by_text("Live", exact=True).wait_for()
        page.wait_for_timeout(12_000)
        for view, name in shown.items():
            page.evaluate("view => { location.hash = view; }", view)
            page.wait_for_timeout(2_500)
            if name == "try":
                page.get_by_label("Values go from").select_option("16")
                page.get_by_label("From an image").set_input_files(drawn)
                page.locator("canvas.preview").wait_for()
                page.get_by_role("button", name="Send").click()
                page.get_by_text(re.compile("digits version 1 answered after")).wait_for()
            path = folder / f"console-{name}-{scheme}.png"
            page.evaluate("() => scrollTo(0, 0)")
            page.screenshot(path=path, full_page=name == "try")
            Image.open(path).convert("P", palette=Image.Palette.ADAPTIVE, colors=96).save(path, optimize=True)
