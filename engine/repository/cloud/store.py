"""Object stores, through the client library obstore, which comes with the extra ``cloud``.

A store is asked two things: what it has (`RemoteStore.list`), and a range of an object (`RemoteStore.read`). Calls
block, and are made on threads. The library tries again when a store is overloaded or out of reach, with growing delays
and within the bounds that stand here; what it raises then becomes an error of ours that says what to look at.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain
from typing import Any, Protocol

from ...errors import InternalError, InvalidArgumentError, NotFoundError, TriremeError, UnavailableError
from ...plugins import import_package
from ...tensor import Buffer
from .addresses import StoreAddress
from .listing import RemoteObject
from .settings import StoreSettings

RETRY_S = 60.0
"""For so long a request is tried again."""

_RETRIES = 10
_REQUEST_S = 120.0
_CLIENT = {"connect_timeout": timedelta(seconds=5), "timeout": timedelta(seconds=_REQUEST_S)}
_BACKOFF = {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=10), "base": 2}
_PROBE_RETRIES = 2
_LIST_PAGE = 1000

_CODE = re.compile(r"<Code>([^<]*)</Code>\s*<Message>([^<\n]*)")
_STATUS = re.compile(r"status code: (\d{3})")
_USER = re.compile(r"(https?://)[^\s/@]*@")
_QUERY = re.compile(r"(https?://[^\s?]*)\?[^\s,]*")
"""Of a URL: it may hold a token, and what is before the host a password."""

_ODD_NAME = re.compile(r'Path "([^"]*)"')
_CAUSE = re.compile(r'message: "([^"]*)"|ConnectError\(\s*"([^"]*)"')


class ObjectChangedError(InternalError):
    """The object is not there any more as it was listed."""


class OddNameError(InvalidArgumentError):
    """The library cannot take the name of an object. It gives nothing of what it was asked for then.

    Attributes:
        name: of the object; empty if that is not known.
    """

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class ObjectReader(Protocol):
    """What a download needs of a store."""

    def read(self, wanted: RemoteObject, first: int, end: int) -> Buffer:
        """A range of an object, from one byte to before another.

        Raises:
            ObjectChangedError: it is another one by now, or gone.
            TriremeError: it cannot be read.
        """
        ...


class RemoteStore:
    """The objects of a repository.

    Args:
        store: the library's object for the bucket.
    """

    def __init__(self, address: StoreAddress, store: Any) -> None:
        self._address = address
        self._store = store

    def list(self, path: str = "") -> list[RemoteObject]:
        """All objects whose names begin with a path below the repository; their paths are relative to the repository.
        Of a model with a name that no file can have, there is only the object of that name.

        Raises:
            OddNameError: an object beside the models has such a name.
            TriremeError: the store cannot be read.
        """
        root = f"{self._address.prefix}/" if self._address.prefix else ""
        within = f"{root}{path}".rstrip("/")
        if path:
            return self._list_model(within, root)
        try:
            return self._list(within, root)
        except OddNameError:
            with _explained(self._address, "list"):
                top = self._store.list_with_delimiter(within or None)
            models = [self._list_model(each, root) for each in top["common_prefixes"]]
            return [*(_object(each, root) for each in top["objects"]), *chain.from_iterable(models)]

    def _list(self, within: str, root: str) -> list[RemoteObject]:
        found: list[RemoteObject] = []
        with _explained(self._address, "list"):
            for page in self._store.list(within or None, chunk_size=_LIST_PAGE):
                found += [_object(each, root) for each in page]
        return found

    def _list_model(self, within: str, root: str) -> list[RemoteObject]:
        try:
            return self._list(within, root)
        except OddNameError as error:
            name = error.name if error.name.startswith(f"{within}/") else f"{within}/.."
            return [RemoteObject(name.removeprefix(root), name, 1, "", False, 0)]

    def probe(self) -> None:
        """Look whether the repository can be listed. Raises `TriremeError` if not."""
        with _explained(self._address, "list"):
            next(iter(self._store.list(self._address.prefix or None, chunk_size=1)), None)

    def read(self, wanted: RemoteObject, first: int, end: int) -> Buffer:
        """See `ObjectReader`."""
        options: dict[str, Any] = {"range": (first, end)}
        if wanted.has_tag:
            options["if_match"] = f'"{wanted.tag}"'
        with _explained(self._address, f"read '{wanted.name}' of"):
            result = self._store.get(wanted.name, options=options)
            now = _object(result.meta, "")
            if (now.tag, now.size) != (wanted.tag, wanted.size):
                raise _changed(wanted)
            data = memoryview(result.bytes())
        if data.nbytes != end - first:
            raise InternalError(f"'{wanted.name}' of '{self._address}': {data.nbytes} of {end - first} bytes came")
        return data


def _object(meta: Any, root: str) -> RemoteObject:
    modified_ns = round(meta["last_modified"].timestamp()) * 1_000_000_000
    tag = (meta["e_tag"] or "").removeprefix("W/").strip('"')
    name: str = meta["path"]
    return RemoteObject(name.removeprefix(root), name, meta["size"], tag or str(modified_ns), bool(tag), modified_ns)


def _changed(wanted: RemoteObject) -> ObjectChangedError:
    return ObjectChangedError(f"the object '{wanted.name}' has changed since it was listed")


@contextmanager
def _explained(address: StoreAddress, what: str) -> Iterator[None]:
    """What the library raises becomes an error that says what was done, to which repository, and what may help."""
    base = import_package("obstore.exceptions", "repositories in object stores need", "cloud").BaseError
    try:
        yield
    except (base, FileNotFoundError, ValueError) as error:
        raise explain(error, address, what) from None


def explain(error: Exception, address: StoreAddress, what: str) -> TriremeError:
    """The error for what the library has raised.

    Args:
        what: was done with the repository: a verb, and what goes before "the repository".
    """
    text = _QUERY.sub(r"\1", _USER.sub(r"\1", str(error)))
    code, status = _CODE.search(text), _STATUS.search(text)
    number = int(status[1]) if status else 0
    name = type(error).__name__
    begin = f"failed to {what} the repository '{address}': "
    if name == "PreconditionError" or (isinstance(error, FileNotFoundError) and what != "list"):
        return ObjectChangedError(f"{begin}an object has changed since it was listed")
    if "with invalid path" in text:
        found = _ODD_NAME.search(text)
        return OddNameError(f"{begin}{text.partition(chr(10))[0]}", found[1] if found else "")
    if name == "InvalidPathError" or isinstance(error, ValueError):
        return InvalidArgumentError(f"{begin}{text.partition(chr(10))[0]}")
    said = f"{code[1]}: {code[2].strip()}" if code else _first_words(text)
    if number in (401, 403) or name in ("PermissionDeniedError", "UnauthenticatedError"):
        return UnavailableError(f"{begin}access was refused, check the credentials and what they allow ({said})")
    if number == 404 or isinstance(error, FileNotFoundError):
        return NotFoundError(f"{begin}there is no such bucket or container ({said})")
    if number in (429, 503):
        return UnavailableError(f"{begin}the store is overloaded, and stayed so when it was tried again ({said})")
    if number in (301, 307, 400):
        return InvalidArgumentError(f"{begin}the store refuses the request, check the region and the endpoint ({said})")
    if _CAUSE.search(text):
        return UnavailableError(f"{begin}the store cannot be reached ({said})")
    return InternalError(f"{begin}{said}")


def _first_words(text: str) -> str:
    """The library's own sentence, and the innermost reason, which only its details have."""
    sentence = text.partition("\n")[0].rstrip(": -")
    cause = _CAUSE.findall(text)
    return f"{sentence}: {next(filter(None, cause[-1]))}" if cause else sentence


def open_store(address: StoreAddress, settings: StoreSettings) -> RemoteStore:
    """The repository's store. Asks nothing of it yet, unless it has to be found out whether there is a credential.

    Raises:
        UnavailableError: obstore is not installed.
        TriremeError: the settings cannot be used, or the repository cannot be listed.
    """
    library = import_package("obstore.store", "repositories in object stores need", "cloud")
    kind = {"s3": "S3Store", "gs": "GCSStore", "as": "AzureStore"}[address.scheme]
    make: Callable[..., Any] = getattr(library, kind)

    def opened(retries: int = _RETRIES, **more: Any) -> RemoteStore:
        retry = {"max_retries": retries, "retry_timeout": timedelta(seconds=RETRY_S), "backoff": _BACKOFF}
        client = {**_CLIENT, "allow_http": settings.allow_http}
        config = {**settings.config, **more}
        with _explained(address, "open"):
            return RemoteStore(
                address, make(config=config, client_options=client, retry_config=retry, **_provider(settings))
            )

    if settings.anonymous:
        return opened(skip_signature=True)
    if not settings.then_anonymous:
        return opened()
    try:
        opened(_PROBE_RETRIES).probe()
    except TriremeError as error:
        try:
            opened(_PROBE_RETRIES, skip_signature=True).probe()
        except TriremeError:
            raise error from None
        return opened(skip_signature=True)
    return opened()


def _provider(settings: StoreSettings) -> dict[str, Any]:
    if settings.secret is not None:
        secret = dict(settings.secret)
        return {"credential_provider": lambda: secret}
    if settings.profile:
        return {"credential_provider": _profile_provider(settings.profile)}
    return {}


def _profile_provider(name: str) -> Any:
    """Signs requests with what boto3 finds out about a profile: a role, single sign-on, a process."""
    try:
        boto3 = importlib.import_module("boto3")
        provider = importlib.import_module("obstore.auth.boto3").Boto3CredentialProvider
    except ImportError as error:
        raise UnavailableError(
            f"the AWS profile '{name}' has no static key, which needs the package boto3: pip install boto3 ({error})"
        ) from error
    try:
        return provider(boto3.Session(profile_name=name))
    except (ValueError, importlib.import_module("botocore.exceptions").BotoCoreError) as error:
        raise InvalidArgumentError(f"the AWS profile '{name}' cannot be used: {error}") from error
