"""What front ends know of the models (`kinds.MODELS`): the engine's table, and a front end's copy of it, by which it
answers what `InferenceServer.describe` would.

A row says what there is to say of one name: ``[name, latest, others, [[version, result], ...]]``, or ``[name]`` alone
if there is no such model any more. A result is the number of a description, or an error; `latest` is that of a request
without a version, and `others` an error, or None for the one that a version has that there is not. Descriptions are
sent once. ``[number, model, version, versions, header, bytes of the configuration, bytes of the texts]`` says what one
is. Rows and descriptions are JSON in the payload, which may be as long as what models say of themselves, and before the
configurations and texts, which are the labels and the chat template.

The table has a *generation*, which grows with every change; so the engine knows which front ends have heard of it. Only
names of which something has changed are looked at again, however many models there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

import orjson

from ..engine.backends.services import NOT_READY
from ..engine.clock import Clock
from ..engine.config.chat import ChatTemplate
from ..engine.config.model import ModelConfigMessage, model_config
from ..engine.description import ModelDescription
from ..engine.errors import ColdModelError, NotFoundError, TriremeError, UnavailableError
from ..engine.request import LATEST
from ..python_backend.child.codec import Payload
from .kinds import MODELS
from .link import LinkHead
from .requests import NO_DESCRIPTION
from .slots import aligned, check_payload, read_json
from .values import broken, read_bool, read_error, read_integer, read_list, read_text, write_error, write_text

_ROWS, _DESCRIPTIONS = 256, 32
"""Of one message: to read one is not to take long."""

_MESSAGE_BYTES = 128 << 10
"""About; of one that tells of several models: it is to fit into a ring (`FrontEndLink.send_plainly`)."""

_AGAIN_S = 1.0

_NO_VERSION = -(2**62)
"""What no model has: to learn what is said of versions that there are not."""

ModelRow = list[Any]


class ModelChange(NamedTuple):
    """What has changed in a table.

    Attributes:
        descriptions: new ones, by their numbers, which rows may name.
    """

    started: bool
    rows: Sequence[ModelRow]
    descriptions: Mapping[int, ModelDescription]

    @property
    def empty(self) -> bool:
        return not (self.rows or self.descriptions)


class ModelTable:
    """The engine's: one for all front ends.

    Args:
        describe: as `InferenceServer.describe`.
        versions: of a name, whatever their states; None if there is no such name.
        started: as `InferenceServer.started`.

    Attributes:
        generation: grows with each change.
    """

    def __init__(
        self,
        describe: Callable[[str, int], ModelDescription],
        versions: Callable[[str], Sequence[int] | None],
        started: Callable[[], bool] = lambda: True,
    ) -> None:
        self.generation = 0
        self._describe = describe
        self._versions = versions
        self._started = started
        self._was_started = True
        self._touched: dict[str, None] = {}
        self._rows: dict[str, ModelRow] = {}
        self._described: dict[int, ModelDescription] = {}
        self._numbers: dict[str, dict[int, int]] = {}  # by name and version
        self._last = NO_DESCRIPTION

    def get(self, number: int) -> ModelDescription | None:
        """The description of this number, as it is now; None if it does not hold any more."""
        return self._described.get(number)

    def touch(self, name: str) -> None:
        """Something may have changed of a name, or be about to."""
        self._touched[name] = None

    def refresh(self) -> ModelChange:
        """Look again at the names that were touched; what has changed since the last call."""
        started = self._started()
        touched, self._touched = self._touched, {}
        if started is not self._was_started:
            touched |= dict.fromkeys(self._rows)
        changed: list[ModelRow] = []
        new: dict[int, ModelDescription] = {}
        for name in touched:
            row = self._look(name, new)
            before = self._rows.pop(name, None)
            if row is not None:
                self._rows[name] = row
            if row != before:
                changed.append([write_text(name)] if row is None else row)
        if changed or started is not self._was_started:
            self.generation += 1
        self._was_started = started
        return ModelChange(started, changed, new)

    def _look(self, name: str, new: dict[int, ModelDescription]) -> ModelRow | None:
        """What there is to say of a name now, with descriptions that were not known; None if there is no such name."""
        former, numbers = self._numbers.pop(name, {}), dict[int, int]()
        described: dict[int, ModelDescription] = {}

        def result(version: int) -> Any:
            try:
                description = self._describe(name, version)
            except TriremeError as error:
                return write_error(error)
            number = numbers.get(description.version)
            if number is None:
                number = former.get(description.version)
                if number is None or not _same(self._described[number], description):
                    self._last = number = self._last + 1
                    new[number] = description
                numbers[description.version] = number
            if number not in described or version == LATEST:
                described[number] = description
            return number

        row: ModelRow | None = None
        versions = self._versions(name)
        if versions is not None:
            latest = result(LATEST)
            others = result(_NO_VERSION)
            plain = others == write_error(_not_there(name, _NO_VERSION))
            results = [[version, result(version)] for version in versions]
            row = [write_text(name), latest, None if plain else others, results]
        for number in former.values():
            self._described.pop(number, None)
        self._described |= described
        if numbers:
            self._numbers[name] = numbers
        return row

    def everything(self) -> ModelChange:
        """For a front end that knows nothing yet: all that `refresh` has said."""
        return ModelChange(self._was_started, list(self._rows.values()), dict(self._described))


def _same(one: ModelDescription, other: ModelDescription) -> bool:
    """Whether two descriptions say the same."""
    same = one.config is other.config and one.versions == other.versions and one.labels == other.labels
    return same and (one.key_header, one.chat, one.adapters) == (other.key_header, other.chat, other.adapters)


def write_models(generation: int, change: ModelChange) -> Iterator[tuple[LinkHead, Payload]]:
    """The messages that a change becomes; the last one has the generation, those before it 0."""
    described = list(change.descriptions.items())
    rows = list(change.rows)
    while len(described) > (together := _together(described)):
        yield _message(0, change.started, (), described[:together])
        del described[:together]
    while len(rows) > _ROWS:
        yield _message(0, change.started, rows[:_ROWS], described)
        described = []
        del rows[:_ROWS]
    yield _message(generation, change.started, rows, described)


def _together(described: Sequence[tuple[int, ModelDescription]]) -> int:
    """How many of these descriptions go in one message."""
    nbytes = 0
    for count, (_, each) in enumerate(described[:_DESCRIPTIONS]):
        nbytes += each.config.message.ByteSize() + sum([len(text) for texts in each.labels.values() for text in texts])
        nbytes += 0 if each.chat is None else len(each.chat.text)
        nbytes += sum(map(len, each.adapters))
        if nbytes > _MESSAGE_BYTES:
            return max(count, 1)
    return min(len(described), _DESCRIPTIONS)


def _message(
    generation: int, started: bool, rows: Sequence[ModelRow], described: Sequence[tuple[int, ModelDescription]]
) -> tuple[LinkHead, Payload]:
    payload = Payload()
    descriptions: list[Any] = []
    contents: list[bytes] = []
    for number, each in described:
        config = each.config.message.SerializeToString()
        labels = [[write_text(name), list(map(write_text, texts))] for name, texts in each.labels.items()]
        chat = each.chat
        template = [] if chat is None else list(map(write_text, (chat.text, chat.bos_token, chat.eos_token)))
        texts = orjson.dumps((labels, template, list(map(write_text, each.adapters))))
        contents += config, texts
        numbers = number, write_text(each.name), each.version, each.versions, write_text(each.key_header)
        descriptions.append([*numbers, len(config), len(texts)])
    said = orjson.dumps((rows, descriptions))
    for part in (said, *contents):
        payload.add(part)
    return (MODELS, generation, started, len(said)), payload


class ModelMirror:
    """A front end's copy.

    Args:
        clock: of a server whose models are loaded on demand: for a name that is not known it is to be asked (`asked`),
            once a second at most. None for any other.

    Attributes:
        numbers: of the descriptions that it gives.
        generation: of what it was told last.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock
        self._again_s = -math.inf
        self.generation = 0
        self.numbers: dict[ModelDescription, int] = {}
        self._started = True
        self._described: dict[int, ModelDescription] = {}
        self._found: dict[tuple[str, int], ModelDescription] = {}
        self._errors: dict[tuple[str, int], TriremeError] = {}
        self._others: dict[str, TriremeError | None] = {}  # of every name
        self._keys: dict[str, list[tuple[str, int]]] = {}

    def describe(self, name: str, version: int = LATEST) -> ModelDescription:
        """See `InferenceServer.describe`."""
        found = self._found.get((name, version))
        if found is not None:
            return found
        if self._clock is not None and self._is_unknown(name) and self._clock.now_s() >= self._again_s:
            raise ColdModelError(name)
        raise self._refusal(name, version)

    def with_adapter(self, adapter: str) -> list[ModelDescription]:
        """See `Facade`."""
        of_models = (each for (_, version), each in self._found.items() if version == LATEST)
        return [each for each in of_models if adapter in each.adapters]

    def asked(self, name: str) -> None:
        """The server is asked for a model, or has answered that."""
        if self._clock is not None and self._is_unknown(name):
            self._again_s = self._clock.now_s() + _AGAIN_S

    def _is_unknown(self, name: str) -> bool:
        """Whether there is no such model, or none any more, as far as this was told."""
        gone = name not in self._others or isinstance(self._errors.get((name, LATEST)), NotFoundError)
        return self._started and gone

    def _refusal(self, name: str, version: int) -> TriremeError:
        if not self._started:
            return UnavailableError(NOT_READY)
        if name not in self._others:
            return NotFoundError(f"Request for unknown model: '{name}' is not found")
        error = self._errors.get((name, version)) or self._others[name]
        # A copy: what is raised comes to hold the frames that it passes.
        return _not_there(name, version) if error is None else copy(error)

    def read(self, head: list[Any], payload: memoryview) -> None:
        """Take in a message.

        Raises:
            LinkError: it is none.
        """
        _, generation, started, nbytes = read_list(head, 4, 4)
        rows, descriptions = read_list(read_json(nbytes, payload), 2, 2)
        self._started = read_bool(started)
        at = aligned(nbytes)
        for each in read_list(descriptions):
            number, description, at = _read_description(each, payload, at)
            self._described[number] = description
            self.numbers[description] = number
        for row in read_list(rows):
            self._read_row(read_list(row, 1, 4))
        if read_integer(generation):
            self.generation = generation
            self._forget_unused()

    def _read_row(self, row: list[Any]) -> None:
        name = read_text(row[0])
        for key in self._keys.pop(name, ()):
            self._found.pop(key, None)
            self._errors.pop(key, None)
        if len(row) == 1:
            self._others.pop(name, None)
            return
        _, latest, others, results = read_list(row, 4, 4)
        self._others[name] = None if others is None else read_error(others)
        keys = self._keys[name] = []
        for pair in [[LATEST, latest], *read_list(results)]:
            version, result = read_list(pair, 2, 2)
            key = name, read_integer(version, LATEST)
            keys.append(key)
            if result.__class__ is not int:
                self._errors[key] = read_error(result)
            elif result in self._described:
                self._found[key] = self._described[result]
            else:
                raise broken("the number of a description", result)

    def _forget_unused(self) -> None:
        used = set(map(self.numbers.__getitem__, self._found.values()))
        if len(used) < len(self._described):
            self._described = {number: each for number, each in self._described.items() if number in used}
            self.numbers = {each: number for number, each in self._described.items()}


def _not_there(name: str, version: int) -> TriremeError:
    return NotFoundError(f"Request for unknown model: '{name}' version {version} is not found")


def _read_description(value: Any, payload: memoryview, at: int) -> tuple[int, ModelDescription, int]:
    """A description, with its number, and where the next one begins."""
    number, name, version, versions, header, config_bytes, text_bytes = read_list(value, 7, 7)
    middle = at + read_integer(config_bytes)
    start = aligned(middle)
    end = start + read_integer(text_bytes)
    check_payload(payload, end)
    message = ModelConfigMessage.FromString(bytes(payload[at:middle]))
    given_labels, template, given_adapters = read_list(orjson.loads(payload[start:end]), 3, 3)
    labels = {read_text(output): tuple(map(read_text, read_list(texts, 0, 1 << 20))) for output, texts in given_labels}
    of_versions = tuple([read_integer(each) for each in read_list(versions)])
    config = model_config(message)
    chat = ChatTemplate(*map(read_text, read_list(template, 3, 3))) if template else None
    about = read_text(name), read_integer(version, LATEST), of_versions
    adapters = tuple(map(read_text, read_list(given_adapters, 0, 1 << 20)))
    description = ModelDescription(*about, config, labels, read_text(header), chat, adapters)
    return read_integer(number, 1), description, aligned(end)
