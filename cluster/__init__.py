"""A fleet of servers as one application of Ray Serve (`trireme cluster`): it starts, watches, scales and replaces them.

Ray is the control plane only: requests go from clients to gateways and from there to replicas, not through its handles.
Needs the extra `ray`.
"""
