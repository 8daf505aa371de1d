"""Which replica of a fleet gets a request: decisions without I/O, for gateways and for the simulator."""
