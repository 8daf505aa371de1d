"""What runs in the process of a Python model: the standard library and numpy, nothing of the rest of Trireme.

Any interpreter from Python 3.9 on that has numpy can host it, so nothing here imports from outside this folder. The
server may import from it (the channel has two ends), never the other way round.
"""
