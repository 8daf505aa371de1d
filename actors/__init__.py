"""Who does it, and when: trio tasks with bounded mailboxes, supervised by nurseries."""

from .not_started import StartupError
from .reply import Reply
from .server import InferenceServer

__all__ = ["InferenceServer", "Reply", "StartupError"]
