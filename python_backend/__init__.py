"""The Python backend: a user's ``model.py``, each instance in a process of its own."""

from .backend import PythonBackend

__all__ = ["PythonBackend"]
