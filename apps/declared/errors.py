"""What is wrong with a declaration."""

from __future__ import annotations


class DeclarationError(TypeError):
    """A model's declaration cannot be served. The text says where it stands, what is wrong, and what to write."""
