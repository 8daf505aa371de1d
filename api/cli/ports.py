"""Where services listen, checked before any of them does."""

from __future__ import annotations

from .flags import ParsedFlags, UsageError


def check_ports(flags: ParsedFlags) -> None:
    """UsageError if two services are to listen at one place, or one outside the range that SageMaker leaves to the
    others."""
    http_address = flags["http-address"]
    services = [
        (title, address, port)
        for title, allowed, address, port in (
            ("HTTP", flags["allow-http"], http_address, flags["http-port"]),
            ("GRPC", flags["allow-grpc"], flags["grpc-address"], flags["grpc-port"]),
            ("metrics", flags["allow-metrics"], flags["metrics-address"] or http_address, flags["metrics-port"]),
            ("SageMaker", flags["allow-sagemaker"], http_address, flags["sagemaker-port"]),
            ("Vertex AI", flags["allow-vertex-ai"], http_address, flags["vertex-ai-port"]),
            ("OpenAI", flags["openai-port"] is not None, http_address, flags["openai-port"]),
        )
        if allowed and port
    ]
    for index, (title, address, port) in enumerate(services):
        for other_title, other_address, other_port in services[index + 1 :]:
            if (address, port) == (other_address, other_port):
                raise UsageError(
                    f"The server cannot listen to {title} requests and {other_title} requests at the same address and "
                    f"port {address}:{port}"
                )
    safe_range = flags["sagemaker-safe-port-range"]
    if safe_range is None:
        return
    first, last = safe_range
    for title, _, port in services:
        if title != "SageMaker" and not first <= port <= last:
            raise UsageError(
                f"The server cannot listen to {title} requests at port {port}, allowed port range is [{first}, {last}]"
            )
