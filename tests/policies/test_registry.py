"""Finding and building policies: names, parameters, a user's own file, and every mistake told in a sentence."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated

import pytest

import headway.policies  # noqa: F401
from headway.control.plane import ControlPlane
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.context import Context
from headway.policies.priority import NoPriority
from headway.policies.user_policies import METHODS
from headway.report import catalogue
from headway.types import Path as Prompt
from headway.types import Request
from headway.views.instance import InstanceView

WHERE = "policies.routing"


@pytest.fixture(autouse=True)
def tidy():
    """What a test declares must not stay in the catalogue of the next."""
    entries = dict(registry._ENTRIES)
    yield
    registry._ENTRIES.clear()
    registry._ENTRIES.update(entries)


def user_file(folder: Path, text: str, name: str = "my_policy.py") -> str:
    file = folder / name
    file.write_text(text)
    return str(file)


DECORATED = """
from __future__ import annotations
from typing import Annotated
from headway.policies.registry import Bounds, policy
from headway.types import Route

@policy("routing", "my-own", exact=["inflight"], reported=["queued"])
class MyPolicy:
    '''Takes the instance at a given place.'''

    place: Annotated[int, Bounds(0, 7)] = 0

    def bind(self, context):
        self.asked = 0

    def route(self, request, cluster):
        self.asked += 1
        return Route(cluster.instances[self.place].id)

    def metrics(self):
        return {"asked": self.asked}
"""

PLAIN = """
from headway.types import Route

class MyPolicy:
    place: int = 1

    def route(self, request, cluster):
        return Route(cluster.instances[self.place].id)

class WithInit:
    def __init__(self):
        self.place = 2

    def route(self, request, cluster):
        return Route(cluster.instances[self.place].id)

class NotAPolicy:
    pass
"""


def control(policy) -> ControlPlane:
    instances = [InstanceView(index, f"i{index}") for index in range(4)]
    always = registry.build("admission", "always", "policies.admission")
    return ControlPlane(Context(instances, Random, None, 16), always, NoPriority(), policy)  # type: ignore[arg-type]


def request(number: int = 0) -> Request:
    return Request(number, 0, 100, Prompt((4 * number + 1,), (100,)))


def test_a_policy_is_a_name_or_a_mapping():
    assert type(registry.build("routing", "lmetric", WHERE)) is type(
        registry.build("routing", {"name": "lmetric"}, WHERE)
    )
    assert registry.build("routing", {"name": "lmetric", "block_tokens": 256}, WHERE).block_tokens == 256
    assert registry.build("routing", {"name": "lmetric", "block-tokens": 256}, WHERE).block_tokens == 256


def test_underscores_hyphens_and_blanks_around_do_not_matter():
    assert registry.canonical(" least_prefill-work ") == "least-prefill-work"
    assert registry.find("routing", "round_robin", WHERE) is registry.find("routing", "round-robin", WHERE)


def test_each_build_is_a_policy_of_its_own():
    assert registry.build("routing", "round-robin", WHERE) is not registry.build("routing", "round-robin", WHERE)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("least-laoded", "policies.routing: no routing policy is called 'least-laoded'. Did you mean 'least-loaded'?"),
        ({"name": "lmetrik"}, "policies.routing: no routing policy is called 'lmetrik'. Did you mean 'lmetric'?"),
        (
            {"overload_factor": 2},
            "policies.routing: the mapping has no name. Give the policy's name, as in {name: round-robin}.",
        ),
        ({"name": 3}, "policies.routing: the mapping has no name. Give the policy's name, as in {name: round-robin}."),
        (7, "policies.routing: expected a name or a mapping with 'name', got 7."),
        (["lmetric"], "policies.routing: expected a name or a mapping with 'name', got ['lmetric']."),
        (
            {"name": "unified", "overload_facter": 3},
            "policies.routing.overload_facter: 'unified' has no such parameter. Did you mean 'overload_factor'?",
        ),
        (
            {"name": "unified", "overload_factor": "much"},
            "policies.routing.overload_factor: expected a number, got 'much'.",
        ),
        (
            {"name": "unified", "min_hit_ratio": 1.5},
            "policies.routing.min_hit_ratio: must lie between 0 and 1, got 1.5.",
        ),
        ({"name": "lmetric", "block_tokens": 0}, "policies.routing.block_tokens: must lie between 1 and 4096, got 0."),
        (
            {"name": "lmetric", "block_tokens": 2.5},
            "policies.routing.block_tokens: expected a whole number, got 2.5.",
        ),
        (
            {"name": "lmetric", "block_tokens": True},
            "policies.routing.block_tokens: expected a whole number, got True.",
        ),
        (
            {"name": "lmetric", "block_tokens": 10**5000},
            "policies.routing.block_tokens: must lie between 1 and 4096, got a number with thousands of digits.",
        ),
        (
            {"name": "weighted", "filters": "x" * 1000},
            f"policies.routing.filters: expected a list of values, got '{'x' * 99}....",
        ),
    ],
)
def test_mistakes_are_told_in_one_sentence_with_their_place(spec, message):
    with pytest.raises(HeadwayError) as error:
        registry.build("routing", spec, WHERE)
    assert str(error.value) == message


def test_a_name_like_nothing_gets_the_list_of_what_there_is():
    with pytest.raises(HeadwayError, match=r"no admission policy is called 'zzz'\. Known: .*always"):
        registry.build("admission", "zzz", "policies.admission")


def test_a_parameter_of_a_policy_without_any():
    with pytest.raises(HeadwayError) as error:
        registry.build("routing", {"name": "round-robin", "turns": 2}, WHERE)
    assert str(error.value) == "policies.routing.turns: 'round-robin' has no such parameter."


def test_annotated_fields_are_parameters_with_type_default_and_bounds():
    @registry.policy("routing", "probe_one")
    class Probe:
        """Probes."""

        weight: Annotated[float, registry.Bounds(0, 1)] = 0.5
        limit: Annotated[int | None, registry.Bounds(1, 9)] = None
        label: str = "x"

        def route(self, request, cluster):
            raise NotImplementedError

    entry = registry.find("routing", "probe-one", WHERE)
    assert [(p.name, p.default) for p in entry.parameters] == [("weight", 0.5), ("limit", None), ("label", "x")]
    assert [p.bounds and p.bounds.high for p in entry.parameters] == [1, 9, None]
    assert registry.make(entry, {"weight": 1, "limit": 9}, WHERE).weight == 1.0
    with pytest.raises(HeadwayError, match="between 1 and 9"):
        registry.make(entry, {"limit": 10}, WHERE)
    assert entry.summary == "Probes."


def test_a_default_that_can_be_changed_is_made_anew_for_each_reader():
    @dataclass
    class Listing:
        names: list[str] = field(default_factory=list)

    (first,), (second,) = registry.parameters(Listing), registry.parameters(Listing)
    first.default.append("changed")
    assert second.default == registry.parameters(Listing)[0].default == []


def test_policies_of_one_source_share_its_program_and_not_its_memory():
    source = "W = parameter(1, 0, 5)\ndef score(request, instance, cluster):\n    return W"
    make = partial(registry.build, "routing", where="policies.routing")
    plain, same = make({"name": "code", "source": source}), make({"name": "code", "source": source})
    assert plain.program is same.program and plain.running.memory is not same.running.memory
    spec = {"name": "code", "source": source, "parameters": {"W": 2}}
    other = make(spec)
    assert other.program is not plain.program and other.program.values == {"W": 2}
    whole = type(plain)(source=source, parameters={"W": 2})  # not converted to a float
    assert isinstance(whole.program.values["W"], int) and isinstance(other.program.values["W"], float)
    with pytest.raises(HeadwayError, match="W: must be a number between 0 and 5"):
        type(plain)(source=source, parameters={"W": [2]})


def test_a_decorated_class_from_a_users_file_routes(tmp_path):
    file = user_file(tmp_path, DECORATED)
    policy = registry.build("routing", {"name": f"{file}:MyPolicy", "place": 3}, WHERE)
    assert policy.entry.exact == ("inflight",) and policy.entry.reported == ("queued",)
    plane = control(policy)
    view = plane.arrive(0, request()).view
    assert isinstance(view, InstanceView) and view.index == 3
    assert plane.metrics() == {"asked": 1}
    with pytest.raises(HeadwayError, match=r"policies\.routing\.place: must lie between 0 and 7"):
        registry.build("routing", {"name": f"{file}:MyPolicy", "place": 8}, WHERE)


@pytest.mark.parametrize(("name", "index"), [("MyPolicy", 1), ("WithInit", 2)])
def test_a_plain_class_from_a_users_file_routes_and_may_read_every_signal(tmp_path, name, index):
    policy = registry.build("routing", f"{user_file(tmp_path, PLAIN)}:{name}", WHERE)
    assert policy.entry.reported == registry.REPORTED
    view = control(policy).arrive(0, request()).view
    assert isinstance(view, InstanceView) and view.index == index


def test_a_plain_class_takes_its_annotated_fields_as_parameters(tmp_path):
    policy = registry.build("routing", {"name": f"{user_file(tmp_path, PLAIN)}:MyPolicy", "place": 0}, WHERE)
    assert policy.place == 0


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("{file}", r"is not of the form path/to/file\.py:ClassName"),
        ("{file}:", r"is not of the form path/to/file\.py:ClassName"),
        ("{file}:My Policy", r"is not of the form path/to/file\.py:ClassName"),
        ("{folder}/none.py:MyPolicy", r"there is no file '.*none\.py'"),
        ("{file}:MyPolicie", r"has no class 'MyPolicie'\. Did you mean 'MyPolicy'\?"),
        ("{file}:NotAPolicy", r"class 'NotAPolicy' has no method 'route', which every routing policy needs"),
    ],
)
def test_wrong_forms_of_a_users_file_are_told(tmp_path, reference, message):
    name = reference.format(file=user_file(tmp_path, PLAIN), folder=tmp_path)
    with pytest.raises(HeadwayError, match=rf"^policies\.routing: .*{message}"):
        registry.build("routing", name, WHERE)


def test_a_signal_that_instances_do_not_report_is_told(tmp_path):
    text = "import headway\n@headway.policy('routing', 'odd', reported=['queue'])\nclass Odd:\n    pass\n"
    told = r"could not be loaded: Odd: reads the signal 'queue', which does not exist\. Did you mean 'queued'\?$"
    with pytest.raises(HeadwayError, match=told):
        registry.build("routing", f"{user_file(tmp_path, text)}:Odd", WHERE)


def test_a_file_that_does_not_load_says_why(tmp_path):
    for text, why in (
        ("def", "SyntaxError"),
        ("import no_such_thing", "ModuleNotFoundError"),
        ("1 / 0", "ZeroDivision"),
    ):
        with pytest.raises(HeadwayError, match=rf"could not be loaded: {why}"):
            registry.build("routing", f"{user_file(tmp_path, text)}:MyPolicy", WHERE)


def test_a_policy_of_another_stage_is_refused(tmp_path):
    file = user_file(tmp_path, DECORATED.replace('"routing"', '"admission"'))
    with pytest.raises(HeadwayError, match="is a policy of stage admission, not of stage routing"):
        registry.build("routing", f"{file}:MyPolicy", WHERE)


def test_a_users_file_may_keep_a_policy_for_another_stage(tmp_path):
    text = (
        "from headway.types import ADMIT\nclass Open:\n    def admit(self, request, cluster):\n        return ADMIT\n"
    )
    assert registry.build("admission", f"{user_file(tmp_path, text)}:Open", "policies.admission").admit(None, None)


# --- what a policy says of itself --------------------------------------------------------------------------------


def test_who_does_not_say_which_reported_signals_it_reads_gets_them_all():
    @registry.policy("routing", "says-nothing", exact=["inflight"])
    class SaysNothing:
        pass

    @registry.policy("routing", "says-none", reported=())
    class SaysNone:
        pass

    assert registry.entry_of(SaysNothing).reported == registry.entry_of(SaysNothing()).reported == registry.REPORTED
    assert registry.entry_of(SaysNone()).reported == ()


def test_an_object_without_an_entry_reads_everything_and_is_no_oracle():
    class Plain:
        reads = ()  # which nobody asks for
        oracle = True

    assert registry.own_entry(Plain()) is None
    entry = registry.entry_of(Plain())
    assert entry.reported == registry.REPORTED and not entry.oracle and entry.make is Plain


def test_what_a_base_class_declares_is_not_its_subclass_s():
    class Derived(registry.find("routing", "least-kv", WHERE).make):
        pass

    class Oracle(registry.find("scorer", "oracle-prefix", WHERE).make):
        pass

    assert registry.entry_of(Derived()).reported == registry.REPORTED
    assert registry.entry_of(Oracle()).oracle


@pytest.mark.parametrize("stage", ["flow", "rooting"])
def test_a_policy_of_ones_own_is_of_a_stage_that_users_may_write(stage):
    with pytest.raises(HeadwayError, match=rf"^Mine: '{stage}' is not a stage for users' policies\."):

        @registry.policy(stage, "mine")
        class Mine:
            pass


# --- users' files ------------------------------------------------------------------------------------------------


def test_a_users_file_stays_out_of_the_catalogue(tmp_path):
    before = registry.entries()
    assert registry.find("routing", f"{user_file(tmp_path, DECORATED)}:MyPolicy", WHERE).name == "my-own"
    assert registry.entries() == before
    (tmp_path / "other").mkdir()
    assert registry.find("routing", f"{user_file(tmp_path / 'other', DECORATED)}:MyPolicy", WHERE).name == "my-own"


def test_a_policy_of_a_program_is_found_by_its_name():
    @registry.policy("routing", "in_my_program")
    class InMyProgram:
        def route(self, request, cluster):
            raise NotImplementedError

    assert registry.find("routing", "in-my-program", WHERE).make is InMyProgram


def test_a_users_file_may_not_take_the_name_of_ours(tmp_path):
    file = user_file(tmp_path, DECORATED.replace("my-own", "lmetric"))
    with pytest.raises(HeadwayError, match="A routing policy called 'lmetric' exists already"):
        registry.find("routing", f"{file}:MyPolicy", WHERE)


def test_a_users_file_is_executed_once_and_again_when_it_has_changed(tmp_path):
    count = tmp_path / "count"
    count.touch()
    text = f"open({str(count)!r}, 'a').write('x')\n{DECORATED.replace('from __future__ import annotations', '')}"
    file = user_file(tmp_path, text)
    for _ in range(3):
        first = registry.build("routing", f"{file}:MyPolicy", WHERE)
    assert count.read_text() == "x"
    user_file(tmp_path, text.replace("= 0\n", "= 5\n"))  # as long as before, and within the same second
    assert registry.build("routing", f"{file}:MyPolicy", WHERE).place == 5
    assert count.read_text() == "xx"
    assert first.place == 0 and [one.name for one in first.entry.parameters] == ["place"]


def test_the_catalogue_shows_a_users_class_of_whatever_stage(tmp_path):
    text = "class Mine:\n    def {}(self, *given):\n        pass\n"
    for stage, method in METHODS.items():
        file = user_file(tmp_path, text.format(method), f"{stage}.py")
        assert [(entry.stage, entry.name) for entry in catalogue.find(f"{file}:Mine")] == [(stage, "Mine")]
    with pytest.raises(
        HeadwayError, match="class 'Mine' has none of the methods of a policy: admit, prioritise, estimate, route"
    ):
        catalogue.find(f"{user_file(tmp_path, text.format('guess'))}:Mine")


def test_is_file_tells_a_class_of_a_file_from_a_name():
    assert registry.is_file("a/b.py:C") and not registry.is_file("b.py") and not registry.is_file("weighted")


def test_suggestions_name_the_nearest_or_all():
    assert registry.suggest("lmetrc", ["lmetric", "sticky"]) == " Did you mean 'lmetric'?"
    assert registry.suggest("zzz", ["b", "a"]) == " Known: a, b."
    assert registry.suggest("zzz", []) == ""
