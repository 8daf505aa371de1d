"""The Python backend: a user's ``model.py``, each instance in a process of its own."""
