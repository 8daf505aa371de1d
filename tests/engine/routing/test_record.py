"""What is known of a route by now (`engine.routing.record`)."""

from __future__ import annotations

from google.protobuf import text_format

from trireme.engine.config import ModelConfig, model_config
from trireme.engine.config.model import ModelConfigMessage
from trireme.engine.errors import ColdModelError, NotFoundError
from trireme.engine.routing.record import RouteRecord, merge_routes
from trireme.engine.routing.rollout import RolloutState
from trireme.engine.routing.route import ModelRoute, Shadow, Target
from trireme.engine.routing.routed_reply import RoutedResult

OLD, NEW, OTHER = Target("old"), Target("new"), Target("other")
ROUTE = ModelRoute("r", ((OLD, 50), (NEW, 50)))


def config(width: int) -> ModelConfig:
    text = f'input {{ name: "IN" data_type: TYPE_FP32 dims: [ {width} ] }}'
    return model_config(text_format.Parse(text, ModelConfigMessage()))


class Models(dict[Target, int]):
    """Those that are ready, with the widths of their inputs; 0 for one that is loaded on demand."""

    def find(self, target: Target) -> ModelConfig:
        if target not in self:
            raise NotFoundError("it is not there")
        if not self[target]:
            raise ColdModelError(target.model)
        return config(self[target])


def test_targets_look_as_the_first_one_did_as_long_as_any_does() -> None:
    record, models = RouteRecord(ROUTE, True), Models({NEW: 2})
    record.look(models.find)
    assert (record.why, record.first_ready()) == ({OLD: "it is not there"}, NEW)
    models[OLD] = 1
    record.look(models.find)
    assert (record.ready(OLD), record.ready(NEW), record.disagreeing) == (False, True, [OLD])
    again = RouteRecord(ROUTE, True)
    again.go_on_from(record)
    again.look(models.find)
    assert again.disagreeing == [OLD], "as before the route was set again"
    alone = RouteRecord(ROUTE, True)
    alone.look(models.find)
    assert alone.disagreeing == [NEW], "the first of its targets"
    del models[NEW]
    record.look(models.find)
    assert (record.why, record.disagreeing) == ({NEW: "it is not there"}, [])


def test_a_target_that_is_loaded_on_demand_can_serve() -> None:
    record = RouteRecord(ModelRoute("r", ROUTE.weights, shadow=Shadow(OTHER)), False)
    record.look(Models({OLD: 1, NEW: 0, OTHER: 2}).find)
    assert (record.ready(OLD), record.ready(NEW), record.ready(OTHER)) == (True, True, False)
    assert record.all_targets == (OLD, NEW, OTHER)


def test_a_route_that_is_set_again_goes_on_counting_what_it_still_has() -> None:
    former = RouteRecord(ROUTE, False)
    for target in (OLD, NEW):
        former.results[target, RoutedResult.SUCCESS] += 3
    former.rollouts[RolloutState.STEP] += 2
    record = RouteRecord(ModelRoute("r", ((OLD, 60), (OTHER, 40))), True)
    record.go_on_from(former)
    assert record.results == {(OLD, RoutedResult.SUCCESS): 3}
    assert record.rollouts[RolloutState.STEP] == 2
    record.results[OLD, RoutedResult.SUCCESS] += 1
    assert former.results[OLD, RoutedResult.SUCCESS] == 3


def test_what_the_file_says_something_else_of_is_as_it_says() -> None:
    def route(name: str, target: Target = OLD) -> ModelRoute:
        return ModelRoute(name, ((target, 100),))

    before = {name: route(name) for name in ("same", "changed", "gone", "set")}
    current = {name: RouteRecord(each, False) for name, each in before.items()}
    current |= {name: RouteRecord(route(name, NEW), True) for name in ("set", "live")}
    now = {"same": route("same"), "changed": route("changed", OTHER), "set": route("set"), "added": route("added")}
    assert merge_routes(current, before, now) == {
        "same": (route("same"), False),
        "set": (route("set", NEW), True),
        "live": (route("live", NEW), True),
        "changed": (route("changed", OTHER), False),
        "added": (route("added"), False),
    }
    assert merge_routes(current, before, now | {"set": route("set", OTHER)})["set"] == (route("set", OTHER), False)
