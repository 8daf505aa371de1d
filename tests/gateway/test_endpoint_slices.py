"""What is known of a Service's pods, from lists and watches."""

from __future__ import annotations

import itertools
import re
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes_api import endpoint, endpoint_slice, with_version

from trireme.gateway import endpoint_slices
from trireme.gateway.endpoint_slices import Endpoint, EndpointSlices, EndpointState, SliceError

READY, UNREADY, TERMINATING = EndpointState.READY, EndpointState.UNREADY, EndpointState.TERMINATING


def listed(*slices: dict[str, Any], port: str | int = "grpc", **more: Any) -> EndpointSlices:
    known = EndpointSlices(port, **more)
    items = [with_version(each, number) for number, each in enumerate(slices, start=1)]
    known.listed({"metadata": {"resourceVersion": "9"}, "items": items})
    return known


def test_pods_have_their_names_and_the_named_port() -> None:
    known = listed(
        endpoint_slice("one", endpoint("a", "10.0.0.1"), endpoint("b", "10.0.0.2"), port=9000),
        endpoint_slice("two", endpoint("c", "10.0.0.3")),
    )
    assert known.endpoints == {
        "a": Endpoint("10.0.0.1:9000", READY),
        "b": Endpoint("10.0.0.2:9000", READY),
        "c": Endpoint("10.0.0.3:8001", READY),
    }
    assert known.version == "9"


def test_endpoints_without_a_pod() -> None:
    nameless = {"addresses": ["fd00::1"]}
    known = listed(
        endpoint_slice("one", {"addresses": ["10.0.0.1"], "hostname": "web-0"}),
        endpoint_slice("s", nameless, kind="IPv6"),
    )
    assert known.endpoints == {
        "web-0": Endpoint("10.0.0.1:8001", READY),
        "fd00-1": Endpoint("[fd00::1]:8001", READY),
    }


@pytest.mark.parametrize(
    ("conditions", "state"),
    [
        ({}, READY),
        ({"ready": True}, READY),
        ({"ready": False}, UNREADY),
        ({"ready": None, "serving": None, "terminating": None}, READY),
        ({"ready": False, "serving": True, "terminating": True}, TERMINATING),
        ({"ready": False, "serving": False, "terminating": True}, None),
        ({"ready": False, "terminating": True}, None),
        # The Service publishes addresses that are not ready.
        ({"ready": True, "serving": False, "terminating": False}, UNREADY),
        ({"ready": True, "serving": True, "terminating": True}, TERMINATING),
        ({"ready": True, "serving": False, "terminating": True}, None),
    ],
)
def test_conditions(conditions: dict[str, Any], state: EndpointState | None) -> None:
    known = listed(endpoint_slice("one", {**endpoint("a", "10.0.0.1"), "conditions": conditions}))
    assert known.endpoints.get("a") == (None if state is None else Endpoint("10.0.0.1:8001", state))


def test_the_table_of_states_is_what_is_read() -> None:
    assert endpoint_slices.__doc__ is not None
    pattern = r"^    (yes|no) +(yes|no)? +(yes|no)? +(\(left out\)|[A-Z]+) "
    rows = re.findall(pattern, endpoint_slices.__doc__, re.MULTILINE)
    assert len(rows) == 4
    for terminating, serving, ready, state in rows:
        given = {"terminating": terminating == "yes"}
        given |= {name: each == "yes" for name, each in (("serving", serving), ("ready", ready)) if each}
        known = listed(endpoint_slice("one", {**endpoint("a", "10.0.0.1"), "conditions": given}))
        found = known.endpoints.get("a")
        assert (found.state.name if found else "(left out)") == state, (terminating, serving, ready)


def test_types_of_addresses() -> None:
    """Of a pod with both, it is the preferred one; one that is not wanted is no address."""
    slices = (
        endpoint_slice("six", endpoint("a", "fd00::1"), endpoint("b", "fd00::2"), kind="IPv6"),
        endpoint_slice("four", endpoint("a", "10.0.0.1")),
    )
    both = listed(*slices).endpoints
    assert {name: each.address for name, each in both.items()} == {"a": "10.0.0.1:8001", "b": "[fd00::2]:8001"}
    assert listed(*slices, types=("IPv6",)).endpoints["a"].address == "[fd00::1]:8001"
    assert list(listed(*slices, types=("IPv4",)).endpoints) == ["a"]


def test_a_pod_in_two_slices_counts_once() -> None:
    """As while it is moved from one to the other; the better state is taken."""
    for order in itertools.permutations(
        (
            endpoint_slice("one", endpoint("a", "10.0.0.1", serving=True, terminating=True)),
            endpoint_slice("two", endpoint("a", "10.0.0.1")),
        )
    ):
        assert listed(*order).endpoints == {"a": Endpoint("10.0.0.1:8001", READY)}


def test_an_address_belongs_to_one_pod() -> None:
    """That of a pod which has ended is soon another one's."""
    old, new = endpoint("a", "10.0.0.1", serving=True, terminating=True), endpoint("b", "10.0.0.1")
    assert listed(endpoint_slice("one", old, new)).endpoints == {"b": Endpoint("10.0.0.1:8001", READY)}


def test_ports() -> None:
    slices = endpoint_slice("one", endpoint("a", "10.0.0.1"))
    assert listed(slices, port=7).endpoints["a"].address == "10.0.0.1:7"
    missing = listed(slices, port="grpcs")
    assert missing.endpoints == {}
    assert missing.other_ports == {"grpc", "metrics"}
    assert (
        listed(slices).other_ports == listed(slices, port=7).other_ports == listed(port="x").other_ports == frozenset()
    )
    udp = {**slices, "ports": [{"name": "grpc", "port": 1, "protocol": "UDP"}]}
    assert listed(udp).endpoints == {}
    nameless = {**slices, "ports": [{"port": 5}]}
    assert listed(nameless, port="").endpoints["a"].address == "10.0.0.1:5"
    assert listed({**slices, "ports": [{"name": "grpc", "port": True}]}).endpoints == {}
    assert listed({**slices, "ports": None}, port=6).endpoints["a"].address == "10.0.0.1:6"


def test_what_a_watch_tells() -> None:
    known = listed(endpoint_slice("one", endpoint("a", "10.0.0.1")))
    assert known.changed("ADDED", with_version(endpoint_slice("two", endpoint("b", "10.0.0.2")), 10))
    assert known.changed("MODIFIED", with_version(endpoint_slice("one"), 11))
    assert list(known.endpoints) == ["b"]
    assert not known.changed("BOOKMARK", {"metadata": {"resourceVersion": "15"}})
    assert (list(known.endpoints), known.version) == (["b"], "15")
    assert known.changed("DELETED", with_version(endpoint_slice("two"), 16))
    assert (known.endpoints, known.version) == ({}, "16")


@pytest.mark.parametrize(
    ("kind", "document", "text"),
    [
        ("ADDED", {}, "without metadata"),
        ("ADDED", {"metadata": {"resourceVersion": "1"}}, "without a name"),
        ("ADDED", {"metadata": {"name": "s"}}, "without resourceVersion"),
        ("RENAMED", with_version(endpoint_slice("s"), 1), "an event of type 'RENAMED'"),
        ("ADDED", {**with_version(endpoint_slice("s"), 1), "endpoints": [1]}, "endpoints is no list of objects"),
        ("ADDED", {**with_version(endpoint_slice("s"), 1), "ports": "x"}, "ports is no list of objects"),
        ("ADDED", {**with_version(endpoint_slice("s"), 1), "endpoints": [{}]}, "the slice s has no address"),
        ("ADDED", with_version(endpoint_slice("s", {"addresses": [""]}), 1), "the slice s has no address"),
        ("ADDED", with_version(endpoint_slice("s", {"addresses": ["[]"]}), 1), "the slice s has no address"),
        ("ADDED", with_version(endpoint_slice("s", {"addresses": ["a b"]}), 1), "the slice s has no address"),
        ("ADDED", {**with_version(endpoint_slice("s"), 1), "addressType": None}, "s has no addressType"),
        ("ADDED", {**with_version(endpoint_slice("s", {"addresses": ["h"], "conditions": 1}), 1)}, "conditions"),
        ("ADDED", {**with_version(endpoint_slice("s", {"addresses": ["h"], "targetRef": 1}), 1)}, "targetRef"),
    ],
)
def test_what_is_no_slice_changes_nothing(kind: str, document: dict[str, Any], text: str) -> None:
    known = listed(endpoint_slice("one", endpoint("a", "10.0.0.1")))
    with pytest.raises(SliceError, match=text):
        known.changed(kind, document)
    with pytest.raises(SliceError):
        known.listed({"metadata": {"resourceVersion": "10"}, "items": [document, 1]})
    assert (list(known.endpoints), known.version) == (["a"], "9")


# ---- whatever happens, what is known is what a fresh list says ----

_CONDITION = st.sampled_from([None, True, False])
_ENDPOINTS = st.lists(
    st.builds(
        lambda name, address, ready, serving, terminating: {
            "addresses": [address],
            "targetRef": {"kind": "Pod", "name": name},
            "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        },
        st.sampled_from("abcd"),
        st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3"]),
        *[_CONDITION] * 3,
    ),
    max_size=4,
)
_SLICES = st.builds(
    lambda name, endpoints, kind, port: endpoint_slice(name, *endpoints, kind=kind, port=port),
    st.sampled_from(["s1", "s2", "s3"]),
    _ENDPOINTS,
    st.sampled_from(["IPv4", "IPv6"]),
    st.sampled_from([8001, 9001]),
)
_CHANGES = st.lists(st.one_of(_SLICES, st.sampled_from(["s1", "s2", "s3"]), st.none()), max_size=20)


@given(_CHANGES, st.lists(st.sampled_from(["watch", "again", "list"]), max_size=20), st.randoms(use_true_random=False))
def test_any_way_leads_to_what_a_list_says(changes: list[Any], ways: list[str], chance: Random) -> None:
    """Of a history of changes some are heard of by a watch, some twice because a watch begins anew from an older
    version than it knows of, and some by a list, because the API server does not know the version any more."""
    there: dict[str, dict[str, Any]] = {}
    history: list[tuple[str, dict[str, Any]]] = []
    known = EndpointSlices("grpc")
    known.listed({"metadata": {"resourceVersion": "1"}, "items": []})
    heard = 0
    for number, change in enumerate(changes):
        version = number + 2
        if isinstance(change, str):
            if (gone := there.pop(change, None)) is not None:
                history.append(("DELETED", with_version(gone, version)))
        elif change is None:
            history.append(("BOOKMARK", {"metadata": {"resourceVersion": str(version)}}))
        else:
            name = change["metadata"]["name"]
            history.append(("MODIFIED" if name in there else "ADDED", with_version(change, version)))
            there[name] = history[-1][1]
        way = ways[number] if number < len(ways) else ""
        if way == "list":
            known.listed({"metadata": {"resourceVersion": str(version)}, "items": list(there.values())})
            heard = len(history)
        elif way:
            heard -= min(heard, 2) if way == "again" else 0
            for event in history[heard:]:
                known.changed(*event)
            heard = len(history)
    for event in history[heard:]:
        known.changed(*event)
    items = list(there.values())
    chance.shuffle(items)
    fresh = EndpointSlices("grpc")
    fresh.listed({"metadata": {"resourceVersion": "99"}, "items": items})
    assert known.endpoints == fresh.endpoints
    addresses = [each.address for each in fresh.endpoints.values()]
    assert len(set(addresses)) == len(addresses)


@given(st.permutations([f"s{number}" for number in range(4)]), st.lists(_ENDPOINTS, min_size=4, max_size=4))
def test_the_order_of_slices_does_not_matter(order: list[str], endpoints: list[Any]) -> None:
    slices = {f"s{number}": endpoint_slice(f"s{number}", *each) for number, each in enumerate(endpoints)}
    known = EndpointSlices("grpc")
    for number, name in enumerate(order, start=1):
        known.changed("ADDED", with_version(slices[name], number))
    assert known.endpoints == listed(*slices.values()).endpoints


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_PARTS = st.fixed_dictionaries(
    {"metadata": st.just({"name": "s", "resourceVersion": "1"}) | _JSON},
    optional={
        "addressType": st.just("IPv4") | _JSON,
        "ports": st.just([{"name": "grpc", "port": 1}]) | st.lists(st.dictionaries(st.just("name"), _JSON)) | _JSON,
        "endpoints": st.lists(
            st.fixed_dictionaries(
                {}, optional=dict.fromkeys(("addresses", "conditions", "targetRef", "hostname"), _JSON)
            )
        )
        | _JSON,
    },
)


@given(_PARTS)
def test_what_is_no_slice_is_refused_whatever_it_is(document: dict[str, Any]) -> None:
    known = EndpointSlices("grpc")
    with suppress(SliceError):
        known.changed("ADDED", document)
    with suppress(SliceError):
        known.listed({"metadata": {"resourceVersion": "1"}, "items": [document]})
    for name, each in known.endpoints.items():
        assert name
        assert each.address
