"""Who does it, and when: trio tasks with bounded mailboxes, supervised by nurseries."""

from .reply import Reply
from .server import InferenceServer, StartupError

__all__ = ["InferenceServer", "Reply", "StartupError"]
