"""Base classes of the suites. They create the policy under test and contain the tests that all router stages share."""

import random
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

import headway.policies  # noqa: F401  (declares the policies)
from headway.control.plane import ControlPlane
from headway.policies import registry
from headway.policies.user_policies import METHODS
from headway.testing.bench import WAITS, Bench, requests

COUNT: Final = 40  # number of requests in a script


class PolicySuite:
    """Tests of one policy. A subclass names the policy, and pytest collects the tests:

        class TestMyRouter(RoutingSuite):
            policy = MyRouter

    `policy` is a class, the name of a registered policy, or a mapping with `name` and parameters, as in YAML.
    `parameters` are additional parameters of the policy.
    """

    stage: ClassVar[str]
    policy: Any
    parameters: ClassVar[Mapping[str, Any]] = {}

    def make(self) -> Any:
        """Create a new policy in the same way as a simulation run creates it from YAML."""
        where = f"policies.{self.stage}"
        if not isinstance(self.policy, type):
            name, parameters = registry.split(self.policy, where)
            return registry.build(self.stage, {"name": name, **parameters, **self.parameters}, where)
        entry = registry.own_entry(self.policy) or registry.default_entry(self.stage, self.policy)
        assert entry.stage == self.stage, f"{self.policy.__name__} is of stage {entry.stage}, not {self.stage}."
        return registry.make(entry, dict(self.parameters), where)


class RouterSuite(PolicySuite):
    """Tests of every stage that a router calls. The control plane itself rejects answers of the wrong type."""

    def bench(self) -> Bench:
        """Create the instances. If the policy chooses pairs of instances, half of them prefill and half decode."""
        return Bench(pairs=getattr(self.make(), "pairs", False))

    def start(self, bench: Bench) -> tuple[Any, ControlPlane]:
        """Create the policy and a control plane that uses it. The plane refuses writes to its views."""
        policy = self.make()
        bench.record_reads(policy, "bind", "observe")
        control = bench.plane(**{self.stage: policy})
        bench.record_reads(policy, METHODS.get(self.stage, "take"))
        return policy, control

    def play(self, bench: Bench) -> list[Any]:
        _, control = self.start(bench)
        return bench.drive(control, requests(COUNT))

    def test_the_same_inputs_give_the_same_decisions(self) -> None:
        same_twice(lambda: self.play(self.bench()), "decisions")

    def test_answers_are_of_the_right_kind_and_views_stay_as_they_are(self) -> None:
        assert len(self.play(self.bench())) >= COUNT

    def test_only_declared_signals_are_read(self) -> None:
        bench = self.bench()
        policy, control = self.start(bench)
        bench.drive(control, requests(COUNT))
        bench.check_declared(policy)

    def test_it_decides_when_all_instances_are_saturated(self) -> None:
        bench = self.bench()
        bench.saturate()
        assert len(self.play(bench)) >= COUNT

    def test_it_decides_when_one_instance_is_left(self) -> None:
        bench = self.bench()
        _, control = self.start(bench)
        before = len(bench.drive(control, requests(8)))
        left = {view.role: view.id for view in reversed(bench.views)}.values()  # one instance of each role
        for view in bench.views:
            if view.id not in left:
                control.instance_changed(control.cluster.now_ps, view.index, "unreachable")
        later = bench.drive(control, requests(8, 8))[before:]
        assert {answer[0] for _, answer in later if isinstance(answer, tuple)} <= set(left)

    def test_it_goes_on_after_no_instance_was_left(self) -> None:
        bench = self.bench()
        _, control = self.start(bench)
        bench.drive(control, requests(8))
        for view in bench.views:
            control.instance_changed(control.cluster.now_ps, view.index, "stopped")
        assert [answer for _, answer in bench.drive(control, requests(2, 8))[-2:]] == [WAITS, WAITS]
        for view in bench.views:
            control.instance_changed(control.cluster.now_ps, view.index, "ready")
        assert {8, 9, 10, 17} <= {number for number, _ in bench.drive(control, requests(8, 10))}


def run_tests(suite: type[Any], **attributes: Any) -> None:
    """Run every test of a suite. If tests fail, raise one AssertionError that names them."""
    failed = []
    for name in (name for name in dir(suite) if name.startswith("test_")):
        case = suite()
        for attribute, value in attributes.items():
            setattr(case, attribute, value)
        try:
            getattr(case, name)()
        except Exception as error:
            failed.append((name, error))
    if failed:
        text = "\n".join(f"{name}: {type(error).__name__}: {error}" for name, error in failed)
        raise AssertionError(f"{suite.__name__}: {len(failed)} tests failed.\n{text}") from failed[0][1]


def check_policy(suite: type[PolicySuite], policy: Any, *, ties: bool = True, **parameters: Any) -> None:
    """Run every test of a suite on a policy. If the policy breaks ties by its own rule, set `ties` to False."""
    run_tests(suite, policy=policy, ties=ties, parameters=parameters)


def same_twice(play: Callable[[], Any], what: str) -> None:
    """Run a script twice, with different seeds of the global random generator. Fail if the results differ."""
    state = random.getstate()
    try:
        random.seed(1)
        first = play()
        random.seed(2)
        second = play()
    finally:
        random.setstate(state)
    assert first == second, (
        f"The same inputs gave different {what} the second time. Draw from context.rng(name), create all state in "
        "`bind`, and do not use clocks, `hash` of strings or the order of sets."
    )
