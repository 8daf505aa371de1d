"""Chromium for tests of pages: Debian's, driven by Playwright, where both are there."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

if CHROMIUM is None:
    WHY_NOT = "there is no chromium here (apt-get install chromium)"
elif importlib.util.find_spec("playwright") is None:
    WHY_NOT = "playwright is not installed (pip install -e '.[browser]')"
else:
    WHY_NOT = ""
"""Why tests in a browser are left out; empty if they are not."""

PATIENCE_MS = 60_000


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright  # pyright: ignore[reportMissingImports]

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page_of(browser: Any, scheme: str = "light", **more: Any) -> Iterator[Any]:
    """A page whose errors, and those that it writes to the browser's console, fail the test at the end.

    Args:
        scheme: ``light`` or ``dark``.
        more: of the page; `allowed` are texts of errors that may come.
    """
    allowed = more.pop("allowed", ())
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 860}, **more)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    try:
        yield page
        assert [text for text in wrong if not any(each in text for each in allowed)] == []
    finally:
        context.close()
