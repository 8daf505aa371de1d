"""`trireme openapi`: the HTTP interface as a document."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any


def add_openapi_command(commands: Any) -> None:
    """Add the sub-command to those of `argparse`."""
    parser = commands.add_parser("openapi", help="print the HTTP interface as an OpenAPI document")
    parser.set_defaults(run=_print_document)


def _print_document(_given: argparse.Namespace) -> int:
    from ..http.openapi import document

    sys.stdout.write(json.dumps(document(), indent=2) + "\n")
    return 0
