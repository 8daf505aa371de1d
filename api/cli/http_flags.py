"""What front ends that speak HTTP are told: flags of the groups HTTP and OpenAI."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..http.app import HttpApplication, HttpService
from ..http.exchange import HttpOptions
from ..http.routes import ROUTES
from ..openai.routes import OPENAI_ROUTES
from ..sockets.limits import Limits
from ..sockets.service import ServiceOptions
from ..sockets.transport import TlsOptions
from .cloud_flags import bind
from .flags import ParsedFlags, UsageError

if TYPE_CHECKING:
    from ...actors.facade import Facade
    from ..logging import LogFacade


class HttpSettings(NamedTuple):
    """What an HTTP front end is told.

    Attributes:
        openai: it has OpenAI's paths, too.
    """

    service: ServiceOptions
    options: HttpOptions
    openai: bool = False

    def open(self, server: Facade, log: LogFacade | None) -> HttpService:
        """The service; it does not listen yet."""
        routes = (*ROUTES, *OPENAI_ROUTES) if self.openai else ROUTES
        return HttpService(HttpApplication(server, self.options, log, routes), self.service)


def http_settings(flags: ParsedFlags) -> HttpSettings:
    """From the flags of the group HTTP. UsageError for TLS without certificate or key."""
    return HttpSettings(_service(flags), http_options(flags), flags["openai-on-http"])


def openai_settings(flags: ParsedFlags) -> HttpSettings | None:
    """Of the port for OpenAI's clients alone; None if there is none. UsageError as for HTTP."""
    port = flags["openai-port"]
    if port is None:
        return None
    address = bind(flags["http-address"], port)
    service = replace(_service(flags), bind=(address,), reuse_port=False, name="OpenAI")
    return HttpSettings(service, http_options(flags))


def _service(flags: ParsedFlags) -> ServiceOptions:
    return ServiceOptions(
        bind=(bind(flags["http-address"], flags["http-port"]),),
        tls=tls_options(flags, "http", verify=True) if flags["http-use-ssl"] else None,
        limits=http_limits(flags),
        reuse_port=flags["reuse-http-port"],
        name="HTTP",
    )


def http_options(flags: ParsedFlags) -> HttpOptions:
    """Of every front end that speaks HTTP."""
    return HttpOptions(
        max_input_bytes=flags["http-max-input-size"],
        max_management_bytes=flags["http-max-management-size"],
        header_forward_pattern=flags["http-header-forward-pattern"],
        allow_client_shm=flags["allow-client-shm"],
        restrictions=flags["http-restricted-api"],
        max_json_values=flags["http-max-json-values"],
        max_compression_ratio=flags["http-max-compression-ratio"],
        allowed_origins=flags["http-allowed-origins"],
        allowed_hosts=flags["http-allowed-hosts"],
    )


def http_limits(flags: ParsedFlags) -> Limits:
    """Of every front end that speaks HTTP."""
    return Limits(address_share=flags["max-address-share"] / 100, idle_timeout_s=flags["http-idle-timeout"] or None)


def tls_options(flags: ParsedFlags, protocol: str, *, verify: bool) -> TlsOptions:
    """The flags of `protocol` that name files; `verify` clients by the root certificates, if there are any."""
    certificate, key, root = (f"{protocol}-{what}" for what in ("server-cert", "server-key", "root-cert"))
    for name in (certificate, key):
        if not flags[name]:
            raise UsageError(f"Error: --{protocol}-use-ssl needs --{name}.")
    if verify and protocol == "grpc" and not flags[root]:
        raise UsageError(f"Error: --grpc-use-ssl-mutual needs --{root}.")
    return TlsOptions(
        certificate=Path(flags[certificate]),
        key=Path(flags[key]),
        client_ca=Path(flags[root]) if verify and flags[root] else None,
    )
