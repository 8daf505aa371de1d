"""The drawing of timelines in a browser, for the pages of the simulator and for the console of a server."""

from .drawing import timeline_part

__all__ = ["timeline_part"]
