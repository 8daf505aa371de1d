"""Who does it, and when: trio tasks with bounded mailboxes, supervised by nurseries."""

from .reply import Reply
from .repository import StartupError
from .server import InferenceServer

__all__ = ["InferenceServer", "Reply", "StartupError"]
