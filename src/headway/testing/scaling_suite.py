"""The suite for autoscalers: a pool under a fixed script of load."""

from typing import Any

from headway.control.view_lock import ViewLock
from headway.policies.answers import check_scale
from headway.testing.bench import BLOCK_TOKENS, CROWD, Bench
from headway.testing.suite import PolicySuite, same_twice
from headway.types import PS_PER_SECOND
from headway.views.pool import PoolView

CHECKS = 40  # number of times that the script asks the autoscaler
INTERVAL_PS = 30 * PS_PER_SECOND


class ScalingSuite(PolicySuite):
    stage = "scaling"

    def check(self, bench: Bench, policy: Any, pool: PoolView) -> int | None:
        lock = ViewLock(bench.views, pools=[pool])
        answer = lock.call(policy, policy.scale, pool)
        if answer is None:
            return None
        check_scale(policy, answer, pool)
        replicas: int = answer.replicas
        return replicas

    def start(self, bench: Bench) -> tuple[Any, PoolView]:
        policy = self.make()
        bench.record_reads(policy, "scale")
        if hasattr(policy, "bind"):
            policy.bind(bench.context)
        pool = PoolView("pool", "model", "both", 0, 16, bench.views, block_tokens=BLOCK_TOKENS)
        pool.start(0, 300 * PS_PER_SECOND, 3600 * PS_PER_SECOND)
        return policy, pool

    def play(self, bench: Bench) -> list[int | None]:
        """Let the load rise and fall, and return the answer of the policy at each check."""
        policy, pool = self.start(bench)
        answers = []
        for number in range(1, CHECKS + 1):
            now_ps = number * INTERVAL_PS
            for _ in range(8 if number < CHECKS / 2 else 0):
                pool.on_sent(now_ps - 1, 1000)
                bench.views[number % len(bench.views)].inflight += 1
            for _ in range(min(pool.inflight, 5)):
                pool.on_left(now_ps - 1, 1000)
                pool.on_finished(now_ps - 1, "standard", number % 3 == 0, PS_PER_SECOND, 2 * PS_PER_SECOND)
            for view in bench.views:
                view.inflight = pool.inflight // len(bench.views)
            bench.report()
            pool.now_ps = now_ps
            pool.set_pending(now_ps, 3 if number % 9 == 0 else 0)
            answers.append(self.check(bench, policy, pool))
        bench.check_declared(policy)
        return answers

    def test_the_same_load_gives_the_same_answers(self) -> None:
        same_twice(lambda: self.play(Bench()), "answers")

    def test_answers_are_of_the_right_kind_and_read_what_is_declared(self) -> None:
        assert len(self.play(Bench())) == CHECKS

    def test_it_takes_no_replica_away_when_all_are_saturated(self) -> None:
        bench = Bench()
        bench.saturate()
        policy, pool = self.start(bench)
        for _ in range(CROWD * len(bench.views)):
            pool.on_sent(0, 1000)
        pool.set_pending(0, 50)
        for number in range(1, CHECKS + 1):
            pool.now_ps = number * INTERVAL_PS
            needed = self.check(bench, policy, pool)
            wrong = f"All {pool.replicas} replicas are saturated, but the policy scales down to {needed}."
            assert needed is None or needed >= pool.replicas, wrong

    def test_it_answers_when_one_replica_is_left(self) -> None:
        bench = Bench(1)
        policy, pool = self.start(bench)
        for number in range(1, 6):
            pool.now_ps = number * INTERVAL_PS
            self.check(bench, policy, pool)

    def test_it_answers_when_no_replica_is_left(self) -> None:
        bench = Bench()
        for view in bench.views:
            view.state = "stopped"
        policy, pool = self.start(bench)
        for number in range(1, 6):
            pool.now_ps = number * INTERVAL_PS
            pool.set_pending(pool.now_ps, number % 2 * 3)
            self.check(bench, policy, pool)
