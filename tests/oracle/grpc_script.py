"""The scripted session over gRPC: calls, valid and invalid, to be put to both servers in this order.

It asks what the HTTP session asks, wherever that translates, and what only gRPC has. A call that carries `newer` is
answered differently by the reference build at hand (2.51) than the specification of the current release says, or
plainly wrongly; the replay then checks `expected`. Left to other tests, because they need flags of their own:
restricted protocols, forwarded headers, compressed answers, limits and TLS.
"""

from __future__ import annotations

from collections.abc import Iterator

import grpc
from grpc_calls import FOUR, Call, ask, failed, infer, pb, plain, request, unary
from grpc_infer_script import bad_core, bad_inputs, order, outputs, parameters, types, valid
from grpc_stream_script import decoupled_streams, ending_streams, plain_streams

CLIENT_SHARED_MEMORY = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."


def script() -> Iterator[Call]:
    """All calls."""
    yield from _server()
    yield from _models()
    yield from _versions()
    yield from valid()
    yield from types()
    yield from bad_inputs()
    yield from bad_core()
    yield from parameters()
    yield from outputs()
    yield from order()
    yield from _wire()
    yield from plain_streams()
    yield from decoupled_streams()
    yield from ending_streams()
    yield from _repository()
    yield from _shared_memory()
    yield from _settings()


def afterwards() -> Iterator[Call]:
    """What to ask when the whole script has been put once to a fresh server: did both count alike?"""
    yield ask("stats of all models", "ModelStatistics")
    yield ask("stats of one model", "ModelStatistics", name="plain")
    yield ask("stats of one version", "ModelStatistics", name="add_sub", version="1")


def _server() -> Iterator[Call]:
    yield ask("live", "ServerLive")
    yield ask("ready", "ServerReady")
    yield ask("server metadata", "ServerMetadata")
    yield unary("health", "/grpc.health.v1.Health/Check")
    yield unary("health of a service", "/grpc.health.v1.Health/Check", b"\x0a\x07nothing")
    yield unary("health watched", "/grpc.health.v1.Health/Watch")
    yield unary("unknown method", "Nothing")
    yield unary("unknown service", "/other.Service/ServerLive")
    yield unary("no service", "/ServerLive")


def _models() -> Iterator[Call]:
    yield ask("model ready", "ModelReady", name="plain")
    yield ask("unknown model ready", "ModelReady", name="nothing")
    yield ask("no model ready", "ModelReady")
    yield ask("metadata", "ModelMetadata", name="add_sub")
    yield ask("metadata of strings", "ModelMetadata", name="identity_bytes", version="1")
    yield ask("metadata of unknown model", "ModelMetadata", name="nothing")
    yield ask("metadata of no model", "ModelMetadata")
    for name in ("add_sub", "ranked", "repeat", "type_bf16"):
        yield ask(f"config of {name}", "ModelConfig", name=name)
    yield ask("config of unknown model", "ModelConfig", name="nothing")
    yield ask("stats of unknown model", "ModelStatistics", name="nothing")
    yield ask("index", "RepositoryIndex")
    yield ask("index ready", "RepositoryIndex", ready=True)
    yield ask("index of a repository", "RepositoryIndex", repository_name="here")


def _versions() -> Iterator[Call]:
    """A version is read as far as it is a number: ``1x`` is 1."""
    for version in ("1", "7", "0", "x", "-1", "99999999999999999999", "1x", " 1", "+1", "1.5", " ", "-x"):
        for method in ("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"):
            if method != "ModelStatistics" or version in ("7", "0", "x", "-1"):
                yield ask(f"{method} of version {version!r}", method, name="plain", version=version)
        yield infer(f"infer of version {version!r}", plain(version=version))


def _wire() -> Iterator[Call]:
    """What is no message, or not one message."""
    good = plain(id="1").SerializeToString()
    yield unary("not a protobuf", "ServerLive", b"\xff\xff\xff")
    yield infer("infer with no protobuf", b"\xff\xff\xff")
    yield infer("infer with half a protobuf", good[:-5])
    yield infer("an empty infer request", b"")
    yield unary("a field that nobody knows", "ServerLive", b"\x08\x01")
    yield infer("infer with a field that nobody knows", good + b"\xf8\x07\x01")
    yield infer("text that is not UTF-8", b"\x0a\x02\xff\xfe")
    yield infer("text beyond ASCII", request("modèle 50%", [FOUR]))
    yield Call("no message at all", "ServerLive", ())
    yield Call("two messages", "ServerReady", (b"", b""))
    yield infer("in gzip", good, compression=grpc.Compression.Gzip)
    yield infer("in deflate", good, compression=grpc.Compression.Deflate)
    yield infer("metadata of all kinds", good, metadata=(("x-text", "a"), ("x-bin", b"\0\1"), ("x-text", "b")))


def _repository() -> Iterator[Call]:
    """Models come and go only in mode EXPLICIT."""
    for verb in ("Load", "Unload"):
        method = f"RepositoryModel{verb}"
        yield ask(f"{verb}", method, model_name="plain")
        yield ask(f"{verb} an unknown model", method, model_name="nothing")
        yield ask(f"{verb} from a repository", method, model_name="plain", repository_name="here")
        for name in ("config", "file:1/model", "unload_dependents", "other"):
            for kind, value in (("bool", {"bool_param": True}), ("bytes", {"bytes_param": b"{}"})):
                parameters = {name: pb.ModelRepositoryParameter(**value)}
                yield ask(f"{verb} with {name} as {kind}", method, model_name="plain", parameters=parameters)
    index = {"repository_name": "here", "model_name": "plain", "parameters": {"other": pb.ModelRepositoryParameter()}}
    yield ask("Load, all wrong", "RepositoryModelLoad", **index)


def _shared_memory() -> Iterator[Call]:
    off = {
        "newer": "docs/reference/shared-memory.md: off unless --allow-client-shm",
        "expected": failed("UNIMPLEMENTED", CLIENT_SHARED_MEMORY),
    }
    for kind in ("System", "Cuda"):
        base = f"{kind}SharedMemory"
        yield ask(f"{kind} status", f"{base}Status")
        yield ask(f"{kind} status of a region", f"{base}Status", name="r")
        for verb in ("Register", "Unregister"):
            message = getattr(pb, f"{base}{verb}Request")
            yield unary(f"{kind} {verb}", f"{base}{verb}", message(name="r"), **off)
            yield unary(f"{kind} {verb}, nameless", f"{base}{verb}", message(), **off)


def _settings() -> Iterator[Call]:
    yield unary("trace settings", "TraceSetting")
    of_model = pb.TraceSettingRequest(model_name="plain")
    yield unary("trace settings of a model", "TraceSetting", of_model)
    file = pb.TraceSettingRequest(settings={"trace_file": pb.TraceSettingRequest.SettingValue(value=["f"])})
    yield unary("trace file", "TraceSetting", file)
    yield ask("log settings", "LogSettings")
    log = pb.LogSettingsRequest(settings={"log_info": pb.LogSettingsRequest.SettingValue(string_param="x")})
    yield unary("log setting of the wrong type", "LogSettings", log)
