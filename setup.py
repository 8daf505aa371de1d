"""What the package index shows of Trireme: README.md, with links that lead to this version's files.

All the rest is in pyproject.toml. An SVG image becomes the PNG beside it, which every index shows.
"""

import re
import runpy
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
RELATIVE_LINK = re.compile(r"(!?)(\[[^\]\n]*\])\((?!https?:|#)([^)\s]+)\)")


def with_absolute_links(text: str, repository: str, tag: str) -> str:
    """The text of a document at the root of the repository, as it reads elsewhere."""

    def absolute(link: re.Match[str]) -> str:
        image, shown, path = link.groups()
        if image:
            return f"!{shown}({repository}/raw/{tag}/{path.removesuffix('.svg')}.png)"
        return f"{shown}({repository}/blob/{tag}/{path})"

    return RELATIVE_LINK.sub(absolute, text)


if __name__ == "__main__":
    urls = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]["urls"]
    version = runpy.run_path(str(HERE / "engine" / "version.py"))["VERSION"]
    readme = (HERE / "README.md").read_text()
    setup(
        long_description=with_absolute_links(readme, urls["Repository"], f"v{version}"),
        long_description_content_type="text/markdown",
    )
