"""The client's side: puts load on a server, and measures what its clients see.

Plain synchronous Python on one epoll, so that it costs the machine little; for a process of its own, or a thread.
"""
