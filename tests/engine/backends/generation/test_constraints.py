"""What texts have to be: the constraints of requests, whatever the network finds most probable."""

from __future__ import annotations

import json
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
import trio
from constrained_texts import AtOnce
from counting_network import (
    ALPHABET,
    CONTEXT,
    END,
    CountingNetwork,
    asks,
    open_letters,
    refused,
    said,
    whole,
    write_model,
    write_tokenizer,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.engine.backends.generation.asked_constraints import read_constraint
from trireme.engine.backends.generation.constraints import ConstrainedText, Constraints
from trireme.engine.backends.generation.tokenizer import Tokenizer
from trireme.engine.errors import InvalidArgumentError


@cache
def bytewise() -> Constraints:
    """For tests that are called many times."""
    with tempfile.TemporaryDirectory() as directory:
        write_tokenizer(Path(directory))
        made = Constraints(Tokenizer(Path(directory)), len(ALPHABET))
        made.prepare()
        return made


@pytest.fixture
def constraints(tmp_path: Path) -> Constraints:
    write_tokenizer(tmp_path)
    return Constraints(Tokenizer(tmp_path), len(ALPHABET))


def begin(constraints: Constraints, ends: tuple[int, ...] = (), stops: tuple[int, ...] = (), **given: Any) -> Any:
    constraint = read_constraint("structured_outputs", given)
    assert constraint is not None
    read = None if constraints.known(constraint) else constraints.read(constraint, AtOnce())
    (text,) = constraints.begin(constraint, read, 1, ends, stops)
    return text


def token(character: str) -> int:
    return ALPHABET.index({" ": "Ġ", "\n": "Ċ"}.get(character, character))


def goes(text: ConstrainedText, characters: str) -> str:
    """What of these characters may come, up to the first one that may not."""
    for number, character in enumerate(characters):
        if text.over or not text.allowed[token(character)]:
            return characters[:number]
        text.take(token(character))
    return characters


def allowed(text: ConstrainedText) -> str:
    return "".join(ALPHABET[token] for token in np.flatnonzero(text.allowed))


@pytest.mark.parametrize(
    ("given", "characters", "come"),
    [
        ({"regex": "(ab|cd)+x"}, "abcdx", "abcdx"),
        ({"regex": "(ab|cd)+x"}, "abx!", "abx"),
        ({"regex": "^a[bc]$"}, "acd", "ac"),
        ({"choice": ["yes", "no (I think)"]}, "no (I think)", "no (I think)"),
        ({"choice": ["yes", "no"]}, "yex", "ye"),
        ({"choice": ["a.c"]}, "abc", "a"),
        ({"json_object": True}, '{"a": [1, true, null]}', '{"a": [1, true, null]}'),
        ({"json_object": True}, "[1]", ""),
        ({"json": {"type": "array", "items": {"type": "integer"}}}, "[1, 23]", "[1, 23]"),
        ({"json": '{"type": "boolean"}'}, "true", "true"),
        ({"json": {"enum": ["x", 3]}}, '"y', '"'),
        ({"json": {"type": "array"}}, "[" + " " * 21 + "]", "[" + " " * 20),
        ({"json": {"type": "array"}, "disable_any_whitespace": True}, "[ ]", "["),
        ({"json": {"type": "array"}, "whitespace_pattern": " "}, "[  ]", "[ "),
    ],
)
def test_what_may_come(constraints: Constraints, given: dict[str, Any], characters: str, come: str) -> None:
    assert goes(begin(constraints, **given), characters) == come


def test_it_is_over_when_nothing_can_be_added(constraints: Constraints) -> None:
    text = begin(constraints, regex="a(b|bc)")
    assert (goes(text, "ab"), text.over, allowed(text)) == ("ab", False, "c")
    assert (goes(text, "c"), text.over) == ("c", True)


def test_the_end_may_come_where_the_text_may_end_and_nowhere_else(constraints: Constraints) -> None:
    text = begin(constraints, (END,), regex="[x-z]{1,3}")
    assert allowed(text) == "xy", "z ends it"
    text.take(token("x"))
    assert allowed(text) == "xyz"
    text.take(END)
    assert text.over
    text = begin(constraints, (), (token("q"), token("x")), regex="[xy]{2,3}")
    assert allowed(text) == "xy", "the request's own stops are text as well"
    goes(text, "yy")
    assert allowed(text) == "qxy"


def test_texts_of_one_constraint_go_their_own_ways(constraints: Constraints) -> None:
    constraint = read_constraint("structured_outputs", {"choice": ["ab", "cd"]})
    assert constraint is not None
    first, second = constraints.begin(constraint, constraints.read(constraint, AtOnce()), 2, (), ())
    assert constraints.known(constraint)
    (third,) = constraints.begin(constraint, None, 1, (), ())
    assert (goes(first, "ab"), goes(second, "cd"), goes(third, "a")) == ("ab", "cd", "a")
    assert (first.over, second.over, third.over) == (True, True, False)


def test_texts_that_share_too_many_states_go_on_with_their_own(
    constraints: Constraints, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"max_lexer_states": 300}
    monkeypatch.setattr("trireme.engine.backends.generation.constraints.LIMITS", limits)
    drawn = np.random.default_rng(0).integers(0, 2, (20, 100))
    for row in drawn:
        text = begin(constraints, regex="(a|b)*a(a|b){30}c")
        assert len(goes(text, "".join("ab"[number] for number in row))) == 100
    with pytest.raises(InvalidArgumentError, match="has to be: lexer error: too many states"):
        goes(begin(constraints, regex="(a|b)*a(a|b){30}c"), "".join("ab"[number] for number in drawn.ravel()[:1000]))


def test_as_many_are_kept_as_there_is_room_for(constraints: Constraints) -> None:
    for number in range(40):
        begin(constraints, regex=f"a{{{number + 1}}}")
    assert len(constraints._kept) == 16


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([], "{} is no object; expected one with one of json, json_object, regex, choice"),
        ("{", "{} is no JSON"),
        ({}, "{} has nothing; expected one of json, json_object, regex, choice, grammar, structural_tag"),
        (
            {"grammars": "start: "},
            "{} has 'grammars'; expected one of json, json_object, regex, choice, grammar, structural_tag",
        ),
        (
            {"regex": "a", "choice": ["a"]},
            "{} has regex and choice; expected one of json, json_object, regex, choice, grammar, structural_tag",
        ),
        ({"regex": "a", "backend": "x"}, "{} has 'backend', which is not known here"),
        ({"regex": 3}, "{}.regex is no text; expected a regular expression"),
        ({"choice": []}, "{}.choice is none; expected an array of texts, none empty"),
        ({"choice": ["a"] * 1001}, "{}.choice has 1001 texts; expected 1000 or fewer"),
        ({"json": 3}, "{}.json is no object; expected a JSON schema"),
        ({"json": "{"}, "{}.json is no JSON schema that can be read"),
        ({"json": {"type": "array"}, "whitespace_pattern": 3}, "{}.whitespace_pattern is no text"),
        ({"regex": "a" * 1_000_000}, "{}.regex has 1000000 characters; expected 65536 or fewer"),
        ({"json": {"const": "a" * 1_000_000}}, "{}.json has 1000013 characters; expected 65536 or fewer"),
        ({"regex": "(?x) a"}, "the regular expression has the flag x, which is not known here"),
    ],
)
def test_what_is_no_constraint(given: Any, why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(why.format("structured_outputs"))):
        read_constraint("structured_outputs", given)


@pytest.mark.parametrize(
    ("given", "length"),
    [
        ({"regex": "((a{10}){100}b){100}"}, 100_100),
        ({"regex": r"\x{41}{20001}"}, 20_001),
        ({"regex": "[]a]{20001}"}, 20_001),
        ({"json": {"properties": {"a": {"pattern": "(a{1000}){1000}"}}}}, 1_000_000),
        ({"json": {"patternProperties": {"(a{1000}){1000}": True}}}, 1_000_000),
        ({"json": {"x-guidance": {"whitespace_pattern": "(a{1000}){1000}"}}}, 1_000_000),
        ({"json_object": True, "whitespace_pattern": "( {1000}){1000}"}, 1_000_000),
    ],
)
def test_a_regular_expression_that_is_too_long_with_its_repetitions(given: dict[str, Any], length: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f" has a regular expression of {length} characters, with rep"):
        read_constraint("structured_outputs", given)


@pytest.mark.parametrize(
    "text", [r"\(a{3}\)", "[a{9}(]{4}", "(?i)a", "[[:alpha:]]{9}", "[^]]{9}", r"\p{L}{9}", "(a|b)c?"]
)
def test_a_regular_expression_of_no_great_length(constraints: Constraints, text: str) -> None:
    assert begin(constraints, regex=text).allowed.any()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"regex": "(a"}, "the constraint cannot be used: .*unclosed group"),
        ({"regex": r"(a)\1"}, "the constraint cannot be used: .*backreferences are not supported"),
        ({"regex": r"[^\s\S]"}, "the text cannot be what it has to be: nothing fulfils it"),
        ({"regex": ""}, "the text cannot be what it has to be: only an empty one would be"),
        ({"json": {"type": "string", "minLength": 3, "maxLength": 2}}, "the constraint cannot be used: Unsatisfiable"),
        ({"json": {"$ref": "#"}}, "the text cannot be what it has to be: nothing fulfils it"),
        ({"json": {"$ref": "http://localhost/a"}}, "the constraint cannot be used: Resource 'http://localhost/a' is"),
        ({"json": {"if": {}}}, "the constraint cannot be used: Unimplemented keys"),
    ],
)
def test_what_cannot_be_fulfilled(constraints: Constraints, given: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=why):
        begin(constraints, **given)


def test_a_schema_that_is_too_deep(constraints: Constraints) -> None:
    schema: dict[str, Any] = {}
    for _ in range(800):
        schema = {"items": schema}
    with pytest.raises(InvalidArgumentError, match=r"is too deep|recursion limit exceeded"):
        begin(constraints, json=schema)


def test_what_takes_long_is_made_before(constraints: Constraints) -> None:
    constraints.prepare()
    assert constraints._made is not None


def test_a_tokenizer_that_cannot_be_constrained(tmp_path: Path) -> None:
    Constraints(Tokenizer(tmp_path), 3).prepare()  # the first request is told
    with pytest.raises(InvalidArgumentError, match="the model has no tokenizer"):
        begin(Constraints(Tokenizer(tmp_path), 3), regex="a")
    from tokenizers import Tokenizer as Written
    from tokenizers import models

    Written(models.WordLevel({"a": 0, "?": 1}, unk_token="?")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InvalidArgumentError, match="llguidance does not know its tokenizer"):
        begin(Constraints(Tokenizer(tmp_path), 2), regex="a")


# Behind a server.


async def test_a_text_is_what_it_has_to_be(tmp_path: Path) -> None:
    write_model(tmp_path)
    flags = ("exclude_input_in_output", "return_finish_reason")
    async with open_letters(tmp_path) as server:
        (response,) = await whole(server, asks("a", flags=flags, structured_outputs={"choice": ["bend", "best"]}))
        assert (said(response), said(response, "finish_reason")) == (["bend"], ["stop"])
        as_text = json.dumps({"regex": "[cxy]+"})
        (response,) = await whole(server, asks("a", flags=flags, structured_outputs=as_text))
        assert (said(response), said(response, "finish_reason")) == (["c" * 63], ["length"])
        (response,) = await whole(server, asks("a", flags=flags, guided_decoding={"regex": "x[a-z]+"}))
        assert (said(response), said(response, "finish_reason")) == (["xy"], ["stop"]), "z ends it"
        (response,) = await whole(server, asks("a", flags=flags, max_tokens=2, structured_outputs={"regex": "bcde"}))
        assert (said(response), said(response, "finish_reason")) == (["bc"], ["length"])
        (response,) = await whole(server, asks("a", flags=flags, stop="d", structured_outputs={"regex": "[a-x]+"}))
        assert (said(response), said(response, "finish_reason")) == (["bc"], ["stop"])
        schema: dict[str, Any] = {"type": "object", "properties": {"a": {"enum": [12, 34]}}, "required": ["a"]}
        schema["additionalProperties"] = False
        (response,) = await whole(server, asks("a", flags=flags, structured_outputs={"json": schema}))
        assert json.loads(said(response)[0])["a"] in (12, 34)


async def test_each_choice_has_its_own_state_and_seeds_hold(tmp_path: Path) -> None:
    write_model(tmp_path)
    asked = {"n": 8, "seed": 5, "structured_outputs": {"regex": "(pq|rs|tu){4}"}, "temperature": 2}
    asked["logit_bias"] = {str(token(letter)): 100 for letter in "prt"}  # so that others are as probable
    async with open_letters(tmp_path) as server:
        flags = ("exclude_input_in_output",)
        (alone,) = await whole(server, asks("a", flags=flags, **asked))
        assert all(re.fullmatch("(pq|rs|tu){4}", text) for text in said(alone))
        assert len(set(said(alone))) > 1
        again: list[Any] = []

        async def ask(text: str) -> None:
            (response,) = await whole(server, asks(text, flags=flags, **asked))
            again.append(said(response))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask, "a")
        assert again == [said(alone)] * 3


async def test_it_outlives_that_its_memory_is_taken(tmp_path: Path) -> None:
    write_model(tmp_path, kv_tokens=32, block_tokens=4, max_running=4)
    texts: list[str] = []
    async with open_letters(tmp_path) as server:

        async def ask() -> None:
            limited = {"max_tokens": 24, "structured_outputs": {"regex": "(bcd|efg){8}"}}
            (response,) = await whole(server, asks("a", flags=("exclude_input_in_output",), **limited))
            texts.append(said(response)[0])

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(ask)
        assert len(CountingNetwork.latest.widths) > 24, "they had to make room for one another"
    assert texts == ["bcdefgbcdbcdbcdbcdbcdbcd"] * 4 or all(re.fullmatch("(bcd|efg){8}", text) for text in texts)


async def test_what_is_wrong_with_one_costs_no_other(tmp_path: Path) -> None:
    write_model(tmp_path)
    async with open_letters(tmp_path) as server:
        errors: list[str] = []

        async def ask(constraint: Any) -> None:
            errors.append(await refused(server, asks("a", structured_outputs=constraint)))

        async with trio.open_nursery() as nursery:
            for constraint in ({"regex": "(a"}, {"regex": "ab" * 40_000}, {"json": {"$ref": "#"}}):
                nursery.start_soon(ask, constraint)
            (response,) = await whole(server, asks("a", max_tokens=CONTEXT - 40))
        assert said(response)[0].startswith("abcdef")
        assert len(errors) == 3
        both = await refused(server, asks("a", structured_outputs={"regex": "a"}, guided_decoding={"regex": "a"}))
        assert both == "structured_outputs and guided_decoding are given; expected one of them"


# Whatever is asked for.


PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTES = {ALPHABET.index(chr(byte)): byte for byte in PRINTED}
BYTES |= {ALPHABET.index(chr(256 + at)): byte for at, byte in enumerate(sorted({*range(256)} - {*PRINTED}))}
TOKENS = {byte: token for token, byte in BYTES.items()}


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)


@settings(deadline=None, max_examples=100)
@given(st.lists(TEXTS, min_size=1, max_size=4), st.data())
def test_any_texts_can_be_chosen_from(texts: list[str], data: st.DataObject) -> None:
    constraint = read_constraint("structured_outputs", {"choice": texts})
    assert constraint is not None
    (text,) = bytewise().begin(constraint, bytewise().read(constraint, AtOnce()), 1, (), ())
    chosen = data.draw(st.sampled_from(texts))
    for token in (TOKENS[byte] for byte in chosen.encode()):
        assert text.allowed[token]
        text.take(token)
    longer = [each for each in texts if each.startswith(chosen) and each != chosen]
    assert text.over is not bool(longer)


@settings(deadline=None, max_examples=200)
@given(st.text(st.sampled_from(r"ab01.*+?|()[]{},^$\dwsxpL-:&~/#" + "é \n"), max_size=30))
def test_any_regular_expression_is_one_or_is_refused(pattern: str) -> None:
    try:
        constraint = read_constraint("structured_outputs", {"regex": pattern})
        assert constraint is not None
        (text,) = bytewise().begin(constraint, bytewise().read(constraint, AtOnce()), 1, (), ())
        for _ in range(5):
            if not text.over:
                text.take(int(text.allowed.argmax()))
    except InvalidArgumentError:
        pass


SCHEMAS = st.recursive(
    st.sampled_from(
        [
            {"type": "integer", "minimum": -5, "maximum": 120},
            {"type": "boolean"},
            {"enum": ["a", "ß/", 3, None]},
            {"type": "string", "pattern": "^[x-z]{1,3}$"},
            {"type": "string", "maxLength": 3},
            {"const": {"a": [1.5]}},
        ]
    ),
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items, "minItems": 1, "maxItems": 2}, inner),
        st.builds(lambda *each: {"anyOf": [*each]}, inner, inner),
        st.builds(
            lambda first, second: {
                "type": "object",
                "properties": {"p": first, "q r": second},
                "required": ["p"],
                "additionalProperties": False,
            },
            inner,
            inner,
        ),
    ),
    max_leaves=5,
)


@settings(deadline=None, max_examples=50)
@given(SCHEMAS, st.integers(0, 2**32))
def test_what_comes_of_a_schema_fulfils_it(schema: dict[str, Any], seed: int) -> None:
    constraint = read_constraint("structured_outputs", {"json": schema})
    assert constraint is not None
    (text,) = bytewise().begin(constraint, bytewise().read(constraint, AtOnce()), 1, (), ())
    generator, tokens = np.random.default_rng(seed), []
    while not text.over and len(tokens) < 2_000:
        tokens.append(int(generator.choice(np.flatnonzero(text.allowed))))
        text.take(tokens[-1])
    if text.over:
        said = bytes(BYTES[token] for token in tokens).decode()
        assert jsonschema_rs.is_valid(schema, json.loads(said)), said
