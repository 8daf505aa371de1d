"""TLS: files that are wrong, versions that are too old, and HTTP/1.1 over it."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

import pytest
import trio
import trustme
from authority import Authority
from http_sockets import (
    LONG_S,
    QUICK,
    UNHURRIED,
    Responses,
    connect,
    echo,
    read_body,
    read_to_end,
    reply,
    serving,
    until,
)
from trio.testing import MockClock

from trireme.api.http.app import HttpService
from trireme.api.http.exchange import Exchange
from trireme.api.sockets.roster import ConnectionPhase
from trireme.api.sockets.transport import TlsOptions, server_context
from trireme.engine.errors import InvalidArgumentError


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


async def tls_connect(service: HttpService, context: ssl.SSLContext) -> trio.SSLStream[trio.SocketStream]:
    stream = trio.SSLStream(await connect(service), context, server_hostname="localhost", https_compatible=True)
    try:
        await stream.do_handshake()
    except trio.BrokenResourceError:
        await trio.aclose_forcefully(stream)
        raise
    return stream


@pytest.mark.parametrize("protocols", [(), ("http/1.1",)])
async def test_http_1_1_over_tls(authority: Authority, protocols: tuple[str, ...]) -> None:
    """Small and large bodies both ways, pipelined, and the end."""
    body = bytes(range(256)) * 8_000
    async with serving(echo, tls=authority.options) as service:
        async with await tls_connect(service, authority.context(*protocols)) as stream:
            assert stream.selected_alpn_protocol() == (protocols[0] if protocols else None)
            responses = Responses(stream)
            async with trio.open_nursery() as nursery:
                request = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
                nursery.start_soon(stream.send_all, request + b"GET /2 HTTP/1.1\r\nHost: x\r\n\r\n")
                assert (await responses.next()).body == b"POST / " + body
                assert (await responses.next()).body == b"GET /2 "
            await stream.send_all(b"GET /3 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert (await read_to_end(stream)).endswith(b"GET /3 ")
        await until(lambda: service.statistics().connections == 0)


async def test_refusals_reach_tls_clients(authority: Authority, leaping_clock: MockClock) -> None:
    async with serving(echo, tls=authority.options, limits=UNHURRIED) as service:
        async with await tls_connect(service, authority.context()) as stream:
            await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 200_000)
            assert (await Responses(stream).next()).status == 431
        async with await tls_connect(service, authority.context()) as stream:
            await stream.send_all(b"GET / HT")
            await until(lambda: any(each.phase is ConnectionPhase.HEAD for each in service._roster._connections))
            leaping_clock.jump(LONG_S)
            assert (await Responses(stream).next()).status == 408


async def test_vanishing_client_cancels_the_application(authority: Authority) -> None:
    started, cancelled = trio.Event(), trio.Event()

    async def app(exchange: Exchange) -> None:
        await read_body(exchange)
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    async with serving(app, tls=authority.options) as service:
        stream = await tls_connect(service, authority.context())
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await started.wait()
        await stream.aclose()
        await cancelled.wait()
        await until(lambda: service.statistics().connections == 0)


async def test_client_that_does_not_read_is_given_up(authority: Authority, leaping_clock: MockClock) -> None:
    async def app(exchange: Exchange) -> None:
        await reply(exchange, bytes(50_000_000))

    async with (
        serving(app, tls=authority.options, limits=UNHURRIED) as service,
        await tls_connect(service, authority.context()) as stream,
    ):
        (connection,) = service._roster._connections
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(
            lambda: connection.phase is ConnectionPhase.SENDING and service._roster.now_s > connection.since_s + 0.05
        )
        leaping_clock.jump(LONG_S)
        await until(lambda: service.statistics().connections == 0)
        assert service.statistics().timeouts == 1


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01"])
async def test_handshake_that_is_none(authority: Authority, sent: bytes) -> None:
    """Plain HTTP on the TLS port, half a handshake, or silence: closed, without a word of HTTP."""
    async with serving(echo, tls=authority.options, limits=QUICK) as service:
        async with await connect(service) as stream:
            if sent:
                await stream.send_all(sent)
            assert b"HTTP" not in await read_to_end(stream)
        await until(lambda: service.statistics().connections == 0)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_tls_1_1_is_refused(authority: Authority) -> None:
    context = authority.context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with serving(echo, tls=authority.options) as service:
        with pytest.raises(trio.BrokenResourceError):
            await tls_connect(service, context)


async def test_client_certificates(authority: Authority, tmp_path: Path) -> None:
    """With a client CA, only clients that it has certified are served."""
    options = TlsOptions(authority.certificate, authority.key, client_ca=authority.root)
    known, unknown = authority.context(), authority.context()
    authority.ca.issue_cert("someone").configure_cert(known)
    trustme.CA().issue_cert("someone").configure_cert(unknown)
    async with serving(echo, tls=options) as service:
        async with await tls_connect(service, known) as stream:
            await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await Responses(stream).next()).status == 200
        for context in (unknown, authority.context()):
            stream = trio.SSLStream(await connect(service), context, server_hostname="localhost", https_compatible=True)
            with contextlib.suppress(trio.BrokenResourceError):  # in TLS 1.3 the client learns of it later
                await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await read_to_end(stream) == b""
            await trio.aclose_forcefully(stream)
        assert service.statistics().requests == 1


def test_wrong_files_are_named(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path)
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("not PEM")
    missing = tmp_path / "missing.pem"
    cases = [
        (TlsOptions(missing, authority.key), f"cannot read TLS certificate {missing}: No such file or directory"),
        (TlsOptions(authority.certificate, missing), f"cannot read TLS key {missing}: No such file or directory"),
        (TlsOptions(tmp_path, authority.key), f"cannot read TLS certificate {tmp_path}: Is a directory"),
        (
            TlsOptions(authority.certificate, other.key),
            f"TLS key {other.key} does not belong to certificate {authority.certificate}",
        ),
        (TlsOptions(rubbish, authority.key), f"TLS certificate {rubbish} or key {authority.key} is not valid PEM"),
        (TlsOptions(authority.certificate, authority.key, missing), f"cannot read TLS client CA {missing}"),
        (TlsOptions(authority.certificate, authority.key, rubbish), f"TLS client CA {rubbish} is not valid PEM"),
    ]
    for options, text in cases:
        with pytest.raises(InvalidArgumentError) as caught:
            server_context(options, ("h2", "http/1.1"))
        assert caught.value.message.startswith(text)


def test_encrypted_key_is_refused(authority: Authority, tmp_path: Path) -> None:
    """Rather than asking for its password on the terminal."""
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(authority.key.read_bytes(), None)
    encrypted = tmp_path / "encrypted.key"
    form = serialization.PrivateFormat.TraditionalOpenSSL
    lock = serialization.BestAvailableEncryption(b"secret")
    encrypted.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, lock))
    with pytest.raises(InvalidArgumentError, match="encrypted"):
        server_context(TlsOptions(authority.certificate, encrypted), ("h2",))
