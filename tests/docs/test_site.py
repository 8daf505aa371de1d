"""The site of the documents: its index, its links, and that it loads nothing from elsewhere."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import make_site
import pytest

BASE = "https://example.org/blob/v1"


def test_links_out_of_the_documents_lead_to_the_repository() -> None:
    text = "[a](../CONTRIBUTING.md#the-house) [b](x.md#a) ![c](bench/bench.svg) [d](https://x.org/e) [f](#g)"
    assert make_site.with_links_of_the_site(text, ".", BASE) == (
        f"[a]({BASE}/CONTRIBUTING.md#the-house) [b](x.md#a) ![c](bench/bench.svg) [d](https://x.org/e) [f](#g)"
    )
    text = "[a](../../proto/) [b](README.md) [c](../README.md) [d](../../README.md) [e](../site/conf.py)"
    assert make_site.with_links_of_the_site(text, "reference", BASE) == (
        f"[a]({BASE}/proto) [b]({make_site.INDEX}) [c](../{make_site.INDEX}) [d]({BASE}/README.md) "
        f"[e]({BASE}/docs/site/conf.py)"
    )


def test_the_index_has_the_pages_of_the_tables() -> None:
    table = "| Page | |\n|---|---|\n| [a](x.md) | x |\n| [b](b/x.md) | y |\n"
    page = f"# All\n\n## Learn: by doing\n\n{table}\n## More\n\nText.\n"
    text = make_site.with_index(page)
    assert "```{toctree}\n:hidden:\n:caption: Learn\n\nx\nb/x\n```" in text
    assert text.count("toctree") == 1


@pytest.mark.slow
@pytest.mark.skipif(find_spec("sphinx") is None, reason="the site needs sphinx, furo and myst-parser")
def test_the_site_is_made_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    site = tmp_path / "site"
    assert make_site.build(site) == 0
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    outside = re.compile(
        r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["'](?:https?:)?//|<link\b[^>]*\bhref=["']https?:"""
    )
    assert [page.name for page in pages if outside.search(page.read_text())] == []
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.search(r"url\(['\"]?(?:https?:)?//|@import ['\"]https?:", styles)
    assert "adaptive_batching" in (site / "searchindex.js").read_text()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("sphinx") is None, reason="the site needs sphinx, furo and myst-parser")
def test_a_link_to_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "README.md").write_text("# All\n\n## Learn\n\n| Page | |\n|---|---|\n| [a](x.md) | x |\n")
    (docs / "x.md").write_text("# A\n\n[more](x.md#more)\n")
    monkeypatch.setattr(make_site, "DOCS", docs)
    assert make_site.build(tmp_path / "site") == 1
