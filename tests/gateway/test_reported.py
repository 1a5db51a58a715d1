"""What engines report of themselves, and what holds when they do not."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("xxhash", reason="the extra `gateway` is not installed")
pytest.importorskip("aiohttp", reason="the extra `gateway` is not installed")

from headway.errors import HeadwayError
from headway.gateway.app import App
from headway.gateway.config import Config
from headway.gateway.signals.polled_signals import EngineSignals, SignalSettings
from headway.gateway.signals.reading import Hits, Mean, Reading, clean
from headway.types import PS_PER_SECOND, Path, Request
from headway.views.instance import InstanceView

PAGE = """\
vllm:num_requests_running{{engine="0",model_name="m"}} {running}.0
vllm:num_requests_waiting{{engine="0",model_name="m"}} {queued}.0
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {usage}
vllm:prefix_cache_hits_total{{engine="0",model_name="m"}} {hits}.0
vllm:prefix_cache_queries_total{{engine="0",model_name="m"}} {queries}.0
vllm:cache_config_info{{block_size="32",engine="0",num_gpu_blocks="1000"}} 1.0
DCGM_FI_DEV_POWER_USAGE{{gpu="0"}} {watts}
DCGM_FI_PROF_SM_ACTIVE{{gpu="0"}} {busy}
"""

NO_KEYS = Path((), ())  # a prompt that is shorter than a block


def page(running=3, queued=2, usage=0.25, hits=0, queries=0, watts=300, busy=0.5):
    return PAGE.format(running=running, queued=queued, usage=usage, hits=hits, queries=queries, watts=watts, busy=busy)


def polled(app, **settings):
    return EngineSignals(app.clock, app.plane, app.fleet, SignalSettings(**settings))


class Bench:
    """A gateway that is not started, whose clock the test moves."""

    def __init__(self, engines=3, rule="snapshot", file=None, **settings):
        """`file` has the keys of the gateway's file other than `backends`. Without it, the file sets the load rule."""
        self.now = PS_PER_SECOND
        backends = {f"e{number}": f"http://127.0.0.1:{9000 + number}" for number in range(engines)}
        keys = {"signals": {"effective_load": rule}} if file is None else file
        self.app = App(asyncio.new_event_loop(), Config.load({"backends": backends, **keys}))
        self.app.clock.now_ps = lambda: self.now
        self.signals = polled(self.app, **settings)
        self.backends = self.app.fleet.members
        self.views = [backend.view for backend in self.backends]
        for backend in self.backends:
            self.signals.readings[backend] = Reading()
        self.requests = 0

    def pass_time(self, seconds):
        self.now += round(seconds * PS_PER_SECOND)
        for backend in self.backends:
            self.signals.check(backend)

    def send(self, tokens=160, path=NO_KEYS):
        """Send a request, and return the view of its engine."""
        self.requests += 1
        return self.app.plane.arrive(self.now, Request(self.requests, self.now, tokens, path)).view

    def serve(self, path):
        """Send a request and finish it. Return the index of its engine."""
        view = self.send(path=path)
        self.app.plane.first_token(self.now, self.requests)
        self.app.plane.finished(self.now, self.requests, "completed", 1)
        return view.index


@pytest.fixture
def bench():
    rigs = []

    def start(*given, **more):
        rigs.append(Bench(*given, **more))
        return rigs[-1]

    yield start
    for rig in rigs:
        rig.app.clock.loop.close()


def test_a_page_becomes_what_policies_see(bench):
    rig = bench()
    rig.signals.take_page(rig.backends[0], page(hits=50, queries=200))
    view = rig.views[0]
    assert (view.queued, view.running, view.observed_at) == (2, 3, rig.now)
    assert (view.kv_blocks, view.kv_used) == (2000, 500)  # 1,000 blocks of 32 tokens are 2,000 of 16
    assert (view.hit_rate, view.busy, view.watts) == (0.25, 0.5, 300)
    assert rig.signals.ages(rig.backends[0])["queued"] == 0
    rig.now += 2 * PS_PER_SECOND
    assert rig.signals.ages(rig.backends[0])["queued"] == 2


def test_when_reports_cease_the_gateways_own_counts_stand_for_them(bench):
    rig = bench(1)
    rig.signals.take_page(rig.backends[0], page(running=100, queued=50, usage=0.9))
    view = rig.views[0]
    for _ in range(4):
        assert rig.send() is view
    assert (view.effective_load, view.routed_since_report) == (154, 4)
    rig.pass_time(4.9)
    assert (view.queued, view.running) == (50, 100)
    rig.pass_time(0.2)
    assert (view.queued, view.running, view.routed_since_report, view.observed_at) == (0, 4, 0, None)
    assert view.kv_used == 4 * 160 // 16
    assert rig.send() is view  # it serves on, and counts on
    assert (view.running, view.effective_load) == (5, 5)
    rig.app.plane.finished(rig.now, 1, "completed", 7)
    assert view.running == 4
    rig.signals.take_page(rig.backends[0], page(running=9, queued=0))
    assert (view.queued, view.running, view.effective_load) == (0, 9, 9)


def test_what_is_not_known_is_taken_as_the_mean_of_the_others(bench):
    rig = bench(3)
    first, second, third = rig.backends
    rig.signals.take_page(first, page(watts=200, busy=0.2))
    rig.signals.take_page(second, page(watts=400, busy=0.8))
    rig.signals.take_page(third, page(watts=900, busy=1.0))
    rig.now += 4 * PS_PER_SECOND
    rig.signals.take_page(first, page(watts=200, busy=0.2))
    rig.signals.take_page(second, page(watts=400, busy=0.8))
    rig.pass_time(2)
    view = rig.views[2]
    assert (view.watts, view.busy, view.observed_at) == (pytest.approx(300), pytest.approx(0.5), None)
    assert (rig.views[0].watts, rig.views[0].observed_at) == (200, rig.now - 2 * PS_PER_SECOND)


def test_when_all_reports_cease_the_gateway_serves_on(bench):
    rig = bench(2)
    for backend in rig.backends:
        rig.signals.take_page(backend, page(watts=700))
    rig.pass_time(60)
    assert [(view.queued, view.running, view.watts, view.observed_at) for view in rig.views] == [(0, 0, 0, None)] * 2
    went = {rig.send().id for _ in range(8)}
    assert went == {"e0", "e1"}
    assert sorted(view.running for view in rig.views) == [4, 4]


def test_an_engine_that_never_reports_is_neither_drawn_to_nor_kept_from(bench):
    rig = bench(2)
    for _ in range(12):
        rig.signals.take_page(rig.backends[0], page(watts=400, busy=0.6))
        rig.pass_time(0.5)
    assert (rig.views[1].watts, rig.views[1].busy, rig.views[1].observed_at) == (400, pytest.approx(0.6), None)


def test_power_is_a_mean_of_thirty_seconds(bench):
    rig = bench(1)
    for second in range(100):
        rig.signals.take_page(rig.backends[0], page(watts=100 if second < 85 else 400))
        rig.now += PS_PER_SECOND
    assert rig.views[0].watts == pytest.approx(250)  # 15 s of each


def test_an_agents_power_is_a_mean_of_thirty_seconds_too(bench):
    rig = bench(1, on=False)
    for second in range(0, 100, 5):
        rig.signals.take_report("e0", {"running": 1, "watts": 100 if second < 85 else 400})
        rig.now += 5 * PS_PER_SECOND
    assert rig.views[0].watts == pytest.approx(250)  # 15 s of each


def test_an_agent_is_heard_and_its_word_lasts_longer(bench):
    rig = bench(2, on=False)
    rig.signals.take_report(
        "e0", {"queued": 1, "running": 2.0, "kv_used": 30, "kv_blocks": 100, "busy": 0.75, "watts": 500}
    )
    rig.signals.take_report("nobody", {"queued": 1})
    view = rig.views[0]
    assert (view.queued, view.running, view.kv_used, view.kv_blocks) == (1, 2, 30, 100)
    assert (view.busy, view.watts) == (0.75, 500)
    rig.pass_time(14)
    assert (view.running, view.busy) == (2, 0.75)
    rig.pass_time(2)
    assert (view.running, view.busy, view.watts, view.observed_at) == (0, 0, 0, None)


def test_an_agents_old_word_is_as_old_as_it_says(bench):
    rig = bench(1)
    rig.signals.take_report("e0", {"queued": 4, "running": 2}, age_s=10)
    assert rig.signals.ages(rig.backends[0])["queued"] == 10
    rig.pass_time(6)
    assert rig.views[0].observed_at is None


def test_what_the_gateway_has_seen_itself_comes_before_what_an_agent_says(bench):
    rig = bench(1)
    rig.signals.take_page(rig.backends[0], "vllm:num_requests_running 7\nvllm:num_requests_waiting 1\n")
    rig.signals.take_report("e0", {"queued": 40, "running": 20, "busy": 0.5, "watts": 350})
    view = rig.views[0]
    assert (view.queued, view.running, view.busy, view.watts) == (1, 7, 0.5, 350)
    rig.pass_time(6)  # the page is old by now, the agent's power is not
    rig.signals.take_report("e0", {"queued": 40, "running": 20})
    assert (view.queued, view.running, view.busy, view.watts) == (40, 20, 0.5, 350)


def test_figures_that_a_page_lacks_are_counted_here(bench):
    rig = bench(1)
    for _ in range(3):
        rig.send(1600)
    view = rig.views[0]
    rig.signals.take_page(rig.backends[0], "llamacpp:requests_processing 1\nllamacpp:requests_deferred 2\n")
    assert (view.queued, view.running, view.kv_used) == (2, 1, 300)
    rig.signals.take_page(rig.backends[0], "llamacpp:requests_deferred 2\n")
    assert (view.queued, view.running) == (2, 1)
    rig.signals.take_page(rig.backends[0], "llamacpp:requests_processing 3\nllamacpp:kv_cache_tokens 4800\n")
    assert (view.queued, view.running, view.kv_used) == (0, 3, 300)


def test_a_page_without_load_leaves_the_gateways_own_counts(bench):
    rig = bench(1)
    rig.signals.take_page(rig.backends[0], "DCGM_FI_DEV_POWER_USAGE 210\nsomething_else 3\n")
    rig.send()
    assert (rig.views[0].running, rig.views[0].watts) == (1, 210)
    rig.pass_time(6)
    assert (rig.views[0].running, rig.views[0].watts) == (1, 0)


def test_the_hit_rate_is_of_recent_prompts_and_survives_a_restart():
    hits = Hits(60)
    assert hits.add(0, 0, 0) is None
    assert hits.add(10, 50, 100) == 0.5
    assert hits.add(20, 140, 200) == pytest.approx(0.7)
    assert hits.add(75, 150, 300) == 0.5  # since 10
    assert hits.add(80, 10, 20) == 0.5  # the engine has begun anew
    assert hits.add(90, 10, 30) == 0.0


def test_stores_below_the_gpu_are_told_in_blocks_of_the_gateway():
    view, reading = InstanceView(0, "a", tier_blocks={"cpu": 9, "storage": 50}), Reading()

    def signals(page, block_bytes=None):
        return reading.signals_of(page, view, 16, 0, block_bytes)

    sglang = {"cpu_tokens_used": 640, "cpu_tokens": 6400}
    assert signals(sglang) == {"tier_used": {"cpu": 40}, "tier_blocks": {"cpu": 400, "storage": 50}}
    assert signals({"cpu_tokens_used": 0, "cpu_tokens": 0}) == {}
    lmcache = {"cpu_bytes_used": 4096, "disk_bytes_used": 0, "remote_bytes_used": 0}
    assert signals(lmcache) == {}
    assert signals(lmcache, 1000) == {"tier_used": {"cpu": 4, "storage": 0}}
    assert signals({**lmcache, "remote_bytes_used": 2500}, 1000) == {"tier_used": {"cpu": 4, "storage": 2}}
    view.tier_blocks = {"cpu": 9}
    assert signals(lmcache, 1000) == {"tier_used": {"cpu": 4}}


def test_a_mean_weighs_by_time():
    mean = Mean(100)
    assert mean.add(0, 5) == 5
    assert mean.add(10, 7) == 7
    assert mean.add(40, 15) == pytest.approx((7 * 10 + 15 * 30) / 40)
    assert mean.add(40, 7) == 7
    assert mean.add(1000, 3) == 3


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 1000)), min_size=1, max_size=40))
def test_a_mean_lies_between_its_samples(samples):
    mean, at = Mean(100), 0
    for wait, value in samples:
        at += wait
        average = mean.add(at, value)
        values = [sample for _, sample in mean.samples]
        assert min(values) - 1e-9 <= average <= max(values) + 1e-9
        assert len(mean.samples) <= 102


@given(
    st.dictionaries(st.sampled_from(["queued", "busy", "watts", "kv_blocks", "x"]), st.none() | st.floats() | st.text())
)
def test_what_an_agent_says_is_taken_as_far_as_it_can_be_true(message):
    signals = clean(message)
    assert all(value >= 0 for value in signals.values())
    assert "x" not in signals
    assert signals.get("busy", 0) <= 1
    assert signals.get("kv_blocks", 1) > 0
    assert all(isinstance(signals[name], int) for name in ("queued", "kv_blocks") if name in signals)


def quiet(gateway):
    """Its own part for signals ends, so that the test's is the only one."""
    for part in gateway.app.components:
        if isinstance(part, EngineSignals):
            gateway.call(part.stop())
    return gateway


def test_pages_are_read_over_real_sockets_and_a_loss_is_noticed(live):
    gateway = quiet(live(2, policies={"routing": "least-outstanding"}))
    gateway.engines[0].page = page(running=40, queued=9)
    gateway.engines[1].page = page(running=1, queued=0)
    app = gateway.app
    signals = polled(app, interval_s=0.01, timeout_s=1.0, stale_s=0.3)
    gateway.call(signals.start())
    try:
        views = app.plane.views
        gateway.until(lambda: (views[0].running, views[1].running) == (40, 1))
        gateway.engines[0].page = None
        gateway.until(lambda: views[0].observed_at is None)
        assert (views[0].running, views[0].queued) == (0, 0)
        assert views[1].observed_at is not None
        assert b"/metrics" in {target for target, _ in gateway.engines[0].looked}
        gateway.engines[0].page = page(running=5, queued=5)
        gateway.until(lambda: views[0].running == 5)
        gateway.loop.call_soon_threadsafe(app.fleet.offer, "file", {"e1": app.fleet.names.get("e1").spec})
        gateway.until(lambda: len(signals.readings) == 1)
    finally:
        gateway.call(signals.stop())
    assert app.fleet.on_change.count(signals.follower._on_change) == 0


def test_a_page_without_an_end_and_one_that_never_comes_do_no_harm(live):
    gateway = quiet(live(2))
    gateway.engines[0].page = page() + "# filler\n" * 2000
    gateway.engines[1].page = page(running=8)
    signals = polled(gateway.app, interval_s=0.01, timeout_s=0.5, stale_s=1.0, page_bytes=4096)
    gateway.call(signals.start())
    try:
        gateway.until(lambda: gateway.app.plane.views[1].running == 8 and signals.misses > 0)
        assert gateway.app.plane.views[0].observed_at is None
    finally:
        gateway.call(signals.stop())


def test_what_was_sent_since_a_page_was_made_waits_there(bench):
    rig = bench(1)
    backend, view = rig.backends[0], rig.views[0]
    rig.send()
    then = view.routed, 0
    rig.send()
    rig.send()
    rig.signals.take_page(backend, page(running=1, queued=0), then)
    assert (view.running, view.queued, view.effective_load) == (1, 2, 3)
    rig.send()
    assert view.effective_load == 4
    rig.signals.take_page(backend, page(running=1, queued=0))
    assert view.effective_load == 1  # a page that says nothing of its time is as of now


def test_what_has_ended_since_the_report_is_subtracted(bench):
    rig = bench(1, rule="outstanding")
    backend, view = rig.backends[0], rig.views[0]
    for _ in range(4):
        rig.send()
    rig.signals.take_page(backend, page(running=6, queued=1))  # three of them are another gateway's
    rig.send()
    assert (view.finished_since_report, view.snapshot_load, view.effective_load) == (0, 8, 8)
    for number in (1, 2):
        rig.app.plane.finished(rig.now, number, "completed", 7)
    assert (view.finished_since_report, view.snapshot_load, view.effective_load) == (2, 8, 6)
    rig.signals.take_page(backend, page(running=0, queued=0))
    assert (view.finished_since_report, view.snapshot_load, view.effective_load) == (0, 0, 3)  # what is in flight here
    rig.app.plane.finished(rig.now, 3, "cancelled", 0)
    rig.pass_time(6)  # without a report, the gateway's own counts are the load
    assert (view.finished_since_report, view.snapshot_load, view.effective_load) == (0, 2, 2)


def test_a_request_that_is_sent_again_has_left_its_engine(bench):
    rig = bench(2, rule="outstanding")
    for backend in rig.backends:
        rig.signals.take_page(backend, page(running=0, queued=0))
    first = rig.send()
    second = rig.app.plane.resend(rig.now, rig.requests).view
    assert first is not second
    assert [(view.snapshot_load, view.effective_load) for view in (first, second)] == [(1, 0), (1, 1)]


def test_what_has_ended_since_a_page_was_made_is_subtracted(bench):
    rig = bench(1, rule="outstanding")
    backend, view = rig.backends[0], rig.views[0]
    for _ in range(3):
        rig.send()
    rig.app.plane.finished(rig.now, 1, "completed", 7)
    then = view.routed, rig.app.plane.places.ended(backend.place)
    assert then == (3, 1)
    rig.send()
    rig.app.plane.finished(rig.now, 2, "completed", 7)
    rig.signals.take_page(backend, page(running=2, queued=0), then)
    assert (view.queued, view.running, view.finished_since_report, view.effective_load) == (1, 2, 1, 2)


OLD, NEW = ("snapshot", False, "weighted"), ("outstanding", True, "kv-aware-spill")


@pytest.mark.parametrize(("date", "expected"), [("2026-11", OLD), ("2026-12", NEW), (None, NEW)])
def test_the_defaults_of_the_file_supply_what_it_omits(bench, date, expected):
    dated = {} if date is None else {"defaults": date}

    def settings(**more):
        return bench(file={**dated, **more}).app.plane.settings

    for more in ({}, {"signals": {"interval": "1s"}}, {"signals": False}, {"policies": None}, {"policies": {}}):
        plane = settings(**more)
        assert (plane.effective_load, plane.auto, plane.policies["routing"]) == expected
    for own in ("snapshot", "outstanding"):
        assert settings(signals={"effective_load": own}).effective_load == own
    assert settings(policies={"admission": "always"}).policies == {
        "admission": "always",
        "priority": "none",
        "flow": "none",
        "estimator": "auto",
        "routing": expected[2],
        "decider": "always",
    }
    assert settings(policies={"routing": "lmetric"}).policies["routing"] == "lmetric"


@pytest.mark.parametrize(
    ("keys", "busiest"),
    [
        ({}, 11),
        ({"defaults": "2026-12"}, 11),
        ({"defaults": "2026-11"}, 8),  # ended requests count until the next report, so the next engine has less load
        ({"policies": {"routing": "weighted"}}, 24),  # idle engines are equal, and the first of them gets all
    ],
)
def test_a_gateway_spreads_cold_prompts_that_arrive_one_at_a_time(bench, keys, busiest):
    rig = bench(file=keys)
    for backend in rig.backends:
        rig.signals.take_page(backend, page(running=0, queued=0, usage=0.0, watts=0, busy=0.0))
    targets = [rig.serve(Path((number,), (160,))) for number in range(24)]
    assert max(map(targets.count, range(3))) == busiest
    again = [rig.serve(Path((number,), (160,))) for number in range(24)]
    assert again == targets or keys.get("defaults") == "2026-11"  # cached prompts return to their engine


def test_a_gateway_spreads_prompts_that_are_shorter_than_a_block(bench):
    rig = bench(file={})
    targets = [rig.serve(NO_KEYS) for _ in range(24)]
    assert max(map(targets.count, range(3))) <= 12 and set(targets) == {0, 1, 2}


@pytest.mark.parametrize(
    ("keys", "there"),
    [
        ({"defaults": "2026-11"}, 12),
        ({"defaults": "2026-12"}, 2),
        ({"defaults": "2026-12", "policies": {"routing": "weighted"}}, 2),
    ],
)
def test_the_default_does_not_send_requests_in_a_row_to_the_busiest_of_three(bench, keys, there):
    """Four requests are at the first engine. The others' 16 requests each have ended since the last report."""
    rig = bench(3, file=keys)
    flights = [rig.send() for _ in range(48)]
    for backend, running in zip(rig.backends, (4, 16, 16), strict=True):
        rig.signals.take_page(backend, page(running=running, queued=0))
    left = [number for number, view in enumerate(flights, 1) if view is rig.views[0]][:4]
    for number in range(1, 49):
        if number not in left:
            rig.app.plane.finished(rig.now, number, "completed", 7)
    assert [view.inflight for view in rig.views] == [4, 0, 0]
    assert [rig.send() for _ in range(12)].count(rig.views[0]) == there


class Ticking(EngineSignals):
    """By a clock that only waiting moves."""

    def __init__(self, app, settings, rounds):
        super().__init__(app.clock, app.plane, app.fleet, settings)
        self.now, self.rounds = 7.03, rounds
        self.asked, self.counted = [], []
        app.clock.seconds = lambda: self.now
        self.poller.text = self.text

    async def _until(self, at):
        self.now = max(self.now, at)

    async def text(self, backend, path):
        self.asked.append(self.now)
        self.now += self.rounds.pop(0)
        return page(running=len(self.asked))

    def take_page(self, backend, page, routed=None):
        self.counted.append((self.now, routed))
        if not self.rounds:
            raise asyncio.CancelledError
        return super().take_page(backend, page, routed)


def test_pages_that_are_as_of_ticks_are_asked_for_behind_each_and_count_when_they_are_due(bench):
    rig = bench(1)
    signals = Ticking(rig.app, SignalSettings(interval_s=0.5, ticks_s=0.02), [0.001, 0.01, 0.7, 0.001])
    signals.readings[rig.backends[0]] = Reading()
    with pytest.raises(asyncio.CancelledError):
        rig.app.clock.loop.run_until_complete(signals._follow_ticks(rig.backends[0]))
    assert signals.asked == pytest.approx([7.502, 8.002, 8.502, 9.502])  # the third took until after the next
    assert signals.counted == [(pytest.approx(at), (0, 0)) for at in (7.52, 8.02, 9.202, 9.52)]


def test_the_section_is_read_strictly():
    assert SignalSettings.read(None) == SignalSettings()
    assert not SignalSettings.read(False).on
    settings = SignalSettings.read({"interval": "250ms", "stale": "2s", "watts": "gpu_watts"})
    assert (settings.interval_s, settings.stale_s, settings.watts, settings.ticks_s) == (0.25, 2.0, "gpu_watts", None)
    assert SignalSettings.read({"ticks": "0ms"}).ticks_s == 0.0
    for wrong, message in (
        ({"interval": "6s"}, r"signals\.stale: must be longer than `interval`"),
        ({"interval": "0s"}, r"signals\.interval: must be greater than zero"),
        ({"intervall": "1s"}, r"signals\.intervall: there is no such key"),
        ({"page_bytes": 3}, r"signals\.page_bytes: expected a whole number"),
        ({"ticks": "now"}, r"signals\.ticks"),
        ({"ticks": "500ms"}, r"signals\.ticks: must be shorter than `interval`"),
    ):
        with pytest.raises(HeadwayError, match=message):
            SignalSettings.read(wrong)
