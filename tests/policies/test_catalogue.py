"""What every catalogue entry owes its reader: a sentence, true bounds, and an honest list of signals."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
import textwrap

import pytest
from states import ToldContext, choice, prompt, views

import headway.policies  # noqa: F401
from headway.errors import HeadwayError
from headway.policies import registry
from headway.testing.bench import Watch, WatchedView
from headway.views.cluster import ClusterView

ENTRIES = [entry for entry in registry.entries() if not entry.blank]
ROUTING = [entry for entry in registry.entries("routing") if not entry.blank]
NAMES = [
    *("round-robin", "random", "least-loaded", "always-busiest", "prefix-affinity", "least-kv", "power-of-two"),
    *("lmetric", "load-only", "sticky", "unified", "lmetric-plus-one", "least-prefill-work"),
    *("prefix-aware", "session-affinity", "cost-escalation", "prefix-overlap", "least-outstanding"),
    *("weighted", "kv-aware", "kv-aware-spill", "least-delay"),
    *("pair", "least-loaded-pair", "prefix-pair"),
    *("weighted-affinity-routing", "prefill-cost-routing"),
]
OWN = [entry for entry in ROUTING if entry.name != "weighted"]


def label(entry: registry.Entry) -> str:
    return f"{entry.stage}/{entry.name}"


def test_every_routing_policy_is_there():
    assert sorted(registry.names("routing")) == sorted(NAMES)
    assert "always" in registry.names("admission")
    assert "fcfs" in registry.names("scheduler")


@pytest.mark.parametrize("entry", ENTRIES, ids=label)
def test_every_entry_says_in_one_sentence_what_it_does(entry):
    assert inspect.getdoc(entry.make)
    assert entry.make.__doc__.strip() != f"{entry.make.__name__}()"
    assert entry.summary.endswith(".")


@pytest.mark.parametrize("entry", OWN, ids=label)
def test_the_sentence_fits_a_line_of_the_catalogue(entry):
    assert 20 <= len(entry.summary) <= 120
    assert ". " not in entry.summary


@pytest.mark.parametrize("entry", OWN, ids=label)
def test_every_routing_policy_that_compares_states_its_tie_rule(entry):
    text = inspect.getdoc(entry.make)
    assert entry.name in ("round-robin", "random") or "tie" in text.lower()


@pytest.mark.parametrize("entry", ENTRIES, ids=label)
def test_defaults_lie_within_their_bounds_and_numbers_have_bounds(entry):
    for parameter in entry.parameters:
        if parameter.default is not None:
            assert registry.check(parameter.default, parameter, parameter.name) == parameter.default
        if isinstance(parameter.default, (int, float)) and not isinstance(parameter.default, bool):
            assert parameter.bounds is not None, parameter.name
        if parameter.bounds is not None:
            assert parameter.bounds.low < parameter.bounds.high
            assert not parameter.bounds.log or parameter.bounds.low > 0


@pytest.mark.parametrize("entry", ENTRIES, ids=label)
def test_reported_signals_are_known_ones(entry):
    assert set(entry.reported) <= set(registry.REPORTED)


@pytest.mark.parametrize("entry", OWN, ids=label)
def test_a_routing_policy_reads_the_signals_it_declares_and_no_others(entry):
    watch = Watch()
    instances = [WatchedView(watch, index, f"i{index}") for index in range(4)]
    if getattr(entry.make, "pairs", False):
        for view in instances:
            view.role = "prefill" if view.index < 2 else "decode"
    policy = registry.make(entry, {}, "policies.routing")
    if hasattr(policy, "bind"):
        policy.bind(ToldContext(instances, [0, 1, 0, 0]))
    watch.on = True
    for number in range(12):
        session = "s" if number % 2 else None
        policy.route(prompt(600 * (number % 3), number, session=session), ClusterView(instances))
    assert watch.names == {*entry.exact, *entry.reported} - {"prefix_index"}


def test_a_view_tells_what_was_not_declared_and_can_still_be_copied():
    view = views(1)[0]
    for signal in ("kv_used", "busy", "watts", "hit_rate"):
        view.hide(signal)
        with pytest.raises(HeadwayError, match=rf"^policies: the signal '{signal}' was read, but no policy .*"):
            getattr(view, signal)
        assert not hasattr(view, signal)
    with pytest.raises(HeadwayError, match="the signal 'kv_used' was read"):
        _ = view.kv_utilization
    with pytest.raises(HeadwayError, match="the signal 'recent' was read"):
        _ = view.recent_ttft
    with pytest.raises(AttributeError, match="'InstanceView' object has no attribute 'kv_use'") as error:
        _ = view.kv_use
    assert not isinstance(error.value, HeadwayError)
    assert not hasattr(view, "free_blocks") and not hasattr(view, "tokens_per_second")
    for other in (copy.copy(view), copy.deepcopy(view), pickle.loads(pickle.dumps(view))):
        assert repr(other) == repr(view) and other.id == "i0" and not hasattr(other, "watts")


def test_policies_are_handed_candidates_that_they_cannot_change():
    instances = views(3)
    assert ClusterView(instances).instances == ToldContext(instances).instances == tuple(instances)


@pytest.mark.parametrize("entry", OWN, ids=label)
def test_a_policy_that_asks_for_an_index_says_so(entry):
    asked = []

    class Asked(ToldContext):
        def prefix_index(self, block_tokens, capacity, accesses=False):
            asked.append((block_tokens, capacity))
            return super().prefix_index(block_tokens, capacity)

    policy = registry.make(entry, {}, "policies.routing")
    if hasattr(policy, "bind"):
        policy.bind(Asked(views(2)))
    assert bool(asked) == ("prefix_index" in entry.exact)
    assert all(size * capacity in (500_000, 499_712) for size, capacity in asked)


@pytest.mark.parametrize("name", NAMES)
def test_underscores_and_hyphens_are_equal(name):
    assert registry.find("routing", name.replace("-", "_"), "x") is registry.find("routing", name, "x")


@pytest.mark.parametrize("entry", OWN, ids=label)
def test_every_policy_works_with_one_instance_and_with_some_missing(entry):
    instances = views(5)
    policy = registry.make(entry, {}, "policies.routing")
    if hasattr(policy, "bind"):
        policy.bind(ToldContext(instances))
    for number in range(20):
        candidates = [instances[3]] if number % 2 else [instances[1], instances[4]]
        request = prompt(40 * number, number, session=f"s{number % 3}")
        assert choice(policy, candidates, request) in [view.index for view in candidates]


@pytest.mark.parametrize("entry", ENTRIES, ids=label)
def test_an_unknown_parameter_is_told_at_its_place(entry):
    with pytest.raises(HeadwayError, match=rf"^policies\.x\.no_such: {entry.name!r} has no such parameter\."):
        registry.make(entry, {"no_such": 1}, "policies.x")


def test_policies_touch_no_clock_files_sockets_or_random():
    """A policy is handed time and random streams; a type may be named, but nothing is drawn or read."""
    banned = {"time", "datetime", "os", "io", "socket", "pathlib", "asyncio", "threading", "subprocess"}
    for module in {entry.make.__module__ for entry in ENTRIES if entry.make.__module__.startswith("headway.")}:
        source = inspect.getsource(__import__(module, fromlist=["_"]))
        for node in ast.walk(ast.parse(textwrap.dedent(source))):
            if isinstance(node, ast.Import):
                assert not banned & {alias.name.split(".")[0] for alias in node.names}, module
                assert "random" not in {alias.name for alias in node.names}, module
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in banned, module
                if node.module == "random":
                    assert [alias.name for alias in node.names] == ["Random"], module
