"""The gateway's link to a replica: gRPC over a connection of our own (`gateway.links`)."""
