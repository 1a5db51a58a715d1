"""A small cluster without engines for the suites: the real control plane, a fixed script of requests, and views that
record which signals are read."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, Final

from msgspec import Struct

from headway.control.expectations import running
from headway.control.flights import QUEUED, Flight
from headway.control.plane import ControlPlane
from headway.latency.base import Estimator
from headway.latency.step_models.fixed import Fixed
from headway.policies import registry
from headway.policies.classes import CLASSES
from headway.policies.context import Context
from headway.streams import stream
from headway.types import PS_PER_SECOND, Path, Request
from headway.views.instance import EXACT, REPORTED, InstanceView

BLOCK_TOKENS: Final = 16
MS: Final = PS_PER_SECOND // 1000
GROUPS: Final = 3  # number of shared prefixes
PREFIX_TOKENS: Final = 1024
TRUE_TOKENS: Final = 32  # number of tokens that every request generates
CROWD: Final = 300  # number of requests in flight at a saturated instance
# Recorded answers that are not a route. WAITS: the request is delayed or waits for an instance. QUEUES: the request is
# in the router's queue.
WAITS, QUEUES = "waits", "queues"
# signals that a policy may read without declaring them
FREE: Final = ("observed_at", "routed_since_report", "finished_since_report")


class Watch(Struct, eq=False):
    """Records in `names` the signals that a policy reads while `on` is set."""

    on: bool = False
    names: set[str] = set()


class WatchedView(InstanceView):
    """A view that records which fields are read. For a derived signal, it records the fields that the signal reads."""

    __slots__ = ("watch",)
    signals = frozenset((*EXACT, *REPORTED, "_recent"))

    def __init__(self, watch: Watch, index: int, id: str, **static: Any) -> None:
        self.watch = watch
        super().__init__(index, id, **static)

    def __getattribute__(self, name: str) -> Any:
        if name in WatchedView.signals:
            watch = object.__getattribute__(self, "watch")
            if watch.on:
                watch.names.add(name.removeprefix("_"))
        return object.__getattribute__(self, name)


def requests(count: int, start: int = 0) -> list[Request]:
    """Return requests 10 ms apart that share prefixes, sessions, tenants and classes. The same arguments always give
    the same requests."""
    return [_request(number) for number in range(start, start + count)]


def _request(number: int) -> Request:
    tokens = PREFIX_TOKENS + 40 + 97 * number % 700
    at_ps = 10 * MS * number
    return Request(
        number,
        at_ps,
        tokens,
        Path((4 * (number % GROUPS) + 1, 4 * (number + GROUPS) + 1), (PREFIX_TOKENS, tokens)),
        tenant=f"tenant-{number % 4}",
        slo_class=CLASSES[number % len(CLASSES)],
        session=f"session-{number % 5}" if number % 2 else None,
        turn=number // 10,
        max_tokens=None if number % 3 else 64 + number,
        deadline_ps=at_ps + 60 * PS_PER_SECOND if number % 7 == 0 else None,
        shared_prefix_tokens=PREFIX_TOKENS,
    )


class Bench:
    """Instances for a policy under test. `watch` records which signals the methods of the policy read."""

    def __init__(self, count: int = 4, *, pairs: bool = False) -> None:
        """Create the instances. If `pairs` is set, the first half of the instances only prefills, and the second half
        only decodes."""
        self.watch = Watch()
        self.views = [
            WatchedView(
                self.watch,
                index,
                f"instance-{index}",
                kv_blocks=2000,
                max_batch_size=8,
                max_batch_tokens=512,
                max_queue=16,
                role=("prefill" if index < count / 2 else "decode") if pairs else "both",
            )
            for index in range(count)
        ]
        estimator = Estimator([Fixed(100_000_000, 10_000_000_000)] * count)
        self.context = Context(self.views, partial(stream, 0), estimator, BLOCK_TOKENS, self._truth)
        self.transcript: list[Any] = []

    def _truth(self, request: Request) -> list[int]:
        """Return how many tokens of the request each instance has cached. The first request with a prefix finds nothing
        cached; for each later request, one instance has the prefix cached."""
        cached = request.id % GROUPS if request.id >= GROUPS else None
        return [PREFIX_TOKENS if view.index == cached else 0 for view in self.views]

    def record_reads(self, policy: Any, *methods: str) -> None:
        """Wrap these methods of a policy, to record which signals they read."""
        for name in methods:
            method = getattr(policy, name, None)
            if method is not None:
                setattr(policy, name, partial(self._call_watched, method))

    def _call_watched(self, method: Callable[..., Any], *arguments: Any) -> Any:
        with self.watching():
            return method(*arguments)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.watch.on = True
        try:
            yield
        finally:
            self.watch.on = False

    def check_declared(self, policy: Any) -> None:
        """Fail if the policy has read a signal that it does not declare."""
        entry = registry.entry_of(policy)
        everything = registry.EVERYTHING[0] in entry.exact
        undeclared = self.watch.names - {*entry.exact, *entry.reported, *FREE}
        wrong = sorted(name for name in undeclared if name in REPORTED or not everything)
        assert not wrong, f"{type(policy).__name__} reads {', '.join(wrong)}. Declare it in @policy."

    def saturate(self) -> None:
        """Add far more requests in flight to every instance than it can serve."""
        for view in self.views:
            view.inflight += CROWD
            view.inflight_tokens += CROWD * PREFIX_TOKENS
            view.pending_prefill_tokens += CROWD * PREFIX_TOKENS
        self.report()

    def report(self) -> None:
        """Set the reported signals of every instance to values that match its requests in flight."""
        for view in self.views:
            view.running = min(view.inflight, view.max_batch_size)
            view.queued = view.inflight - view.running
            view.kv_used = min(view.kv_blocks, view.inflight * PREFIX_TOKENS // BLOCK_TOKENS)
            view.busy = view.running / view.max_batch_size
            view.watts = 100.0 + 600.0 * view.busy
            view.hit_rate = 0.5 if view.inflight else 0.0

    def plane(self, **stages: Any) -> ControlPlane:
        """Return a control plane that has these policies by stage, and simple policies at the other stages."""
        plain = {"admission": "always", "priority": "none", "routing": "least-loaded"}
        policies = {stage: registry.build(stage, name, f"policies.{stage}") for stage, name in plain.items()} | stages
        control = ControlPlane(
            self.context,
            policies["admission"],
            policies["priority"],
            policies["routing"],
            policies.get("flow"),
            policies.get("estimator") or running(registry.build("estimator", "auto", ""), policies.values()),
            policies.get("decider"),
            lengths=lambda request: TRUE_TOKENS,
        )
        control.watch((), trusting=False)
        return control

    def drive(self, control: ControlPlane, script: Iterable[Request]) -> list[Any]:
        """Let the requests arrive, let some of them get their first token and end, and return all decisions so far."""
        in_flight: list[Flight] = []
        for request in script:
            now_ps = request.arrival_ps
            answers = [(request, control.arrive(now_ps, request))]
            more = iter(partial(control.pump, now_ps), None) if control.flow is not None else ()
            for subject, answer in chain(answers, more):
                self.transcript.append((subject.id, plain_answer(answer)))
                if isinstance(answer, Flight):
                    in_flight.append(answer)
            self.report()
            if in_flight and request.id % 2:
                self._first_token(control, now_ps + MS, in_flight[-1])
            if len(in_flight) > 6:
                ended = in_flight.pop(0)
                self._first_token(control, now_ps + 2 * MS, ended)
                control.on_finished(now_ps + 3 * MS, ended.request.id, "completed", TRUE_TOKENS)
            self.report()
        return self.transcript

    @staticmethod
    def _first_token(control: ControlPlane, now_ps: int, flight: Flight) -> None:
        if flight.first_ps >= 0:
            return
        if flight.prefill is not None:
            control.on_handed(now_ps, flight.request.id)
        control.on_first_token(now_ps, flight.request.id)


def plain_answer(answer: Any) -> Any:
    if isinstance(answer, Flight):
        prefill = None if answer.prefill is None else answer.prefill.id
        return (answer.view.id, prefill, answer.cached, answer.priority, answer.reason)
    if answer is None or answer is QUEUED:
        return WAITS if answer is None else QUEUES
    return answer.reason
