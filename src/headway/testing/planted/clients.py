"""Troubles that clients cause, and those of the order in which requests are served."""

from typing import Final

from headway.testing.planted.trouble import DROP, Trouble, changed
from headway.types import Json

BASE: Final[Json] = {
    "workload": {"duration": "30s", "prompt_tokens": 512, "output_tokens": 128},
    "cluster": {"instances": 2, "latency": {"model": "linear"}},
    "policies": {"routing": "least-loaded"},
    "slo": {"ttft": "400ms", "tpot": "25ms"},
}
TENANTS: Final = changed(BASE, {"workload": {"tenants": {"acme": {"rate": "12/s"}, "bolt": {"rate": "6/s"}}}})


def _spike(tenant: str, multiplier: float, at: str = "8s", duration: str = "3s") -> Json:
    profile = {"type": "spike", "multiplier": multiplier, "at": at, "duration": duration}
    return {"workload": {"tenants": {tenant: {"profile": profile}}}}


BURST: Final = Trouble(
    name="tenant-burst",
    text="One tenant sends many times its usual rate for three seconds.",
    healthy=TENANTS,
    mild=_spike("bolt", 18),
    medium=_spike("bolt", 24),
    severe=_spike("bolt", 50),
    causes=("tenant_burst:tenant=bolt",),
)


def _two_spikes(multiplier: float) -> Json:
    return changed(_spike("bolt", multiplier, "6s"), _spike("core", multiplier, "14s"))


TWO_BURSTS: Final = Trouble(
    name="two-bursts",
    text="Two tenants send many times their usual rates, one after the other.",
    healthy=changed(TENANTS, {"workload": {"tenants": {"core": {"rate": "6/s"}}}}),
    mild=_two_spikes(18),
    medium=_two_spikes(21),
    severe=_two_spikes(40),
    causes=("tenant_burst:tenant=bolt", "tenant_burst:tenant=core"),
)


def _storm(retries: int, spike_at: str) -> Json:
    return {
        "workload": {
            "timeout": "2500ms", "retry": {"max": retries, "backoff": "300ms"}, "profile": {"at": spike_at},
        },
    }  # fmt: skip


RETRY_STORM: Final = Trouble(
    name="retry-storm",
    text="After a short overload, clients give up too early and send their requests again, which keeps it overloaded.",
    healthy=changed(
        BASE,
        {
            "workload": {
                "rate": "40/s", "duration": "30s",
                "profile": {"type": "spike", "multiplier": 3.6, "at": "4s", "duration": "1700ms"},
            },
            "slo": {"ttft": "2s", "tpot": "40ms"},
        },
    ),
    mild=_storm(1, "20s"),
    medium=_storm(2, "18s"),
    severe=_storm(4, "4s"),
    causes=("retry_storm",),
)  # fmt: skip

CLASSES: Final = changed(
    BASE,
    {
        "workload": {
            "tenants": {
                "chat": {"rate": "34/s", "priority": "realtime", "slo": {"ttft": "300ms"}},
                "report": {"rate": "2/s", "priority": "batch", "slo": {"ttft": "60s"}},
            },
        },
        "cluster": {"max_batch_size": 64},
        "policies": {"priority": "by-class"},
    },
)


def _batch(rate: str) -> Json:
    return {
        "workload": {"tenants": {"report": {"rate": rate, "prompt_tokens": 2048, "output_tokens": 256}}},
        "policies": {"scheduler": "fcfs"},
    }


INVERSION: Final = Trouble(
    name="priority-inversion",
    text="Instances serve in order of arrival, so that realtime requests wait behind batch requests.",
    healthy=changed(CLASSES, _batch("12/s"), {"policies": {"scheduler": "priority"}}),
    mild=_batch("9/s"),
    medium=_batch("9.6/s"),
    severe=_batch("13/s"),
    causes=("priority_inversion",),
)


def _lengths(short: float, long: float) -> Json:
    """Rates of the short requests and of the long ones, together slightly above what the instances can serve."""
    return {"workload": {"tenants": {"short": {"rate": f"{short}/s"}, "long": {"rate": f"{long}/s"}}}}


NO_AGING: Final[Json] = {"policies": {"scheduler": {"aging": 0}}}

# Another order of the queue must serve all requests in time. Therefore at most about 40 % of them can be late here.
STARVATION: Final = Trouble(
    name="starvation",
    text="The shortest requests always run first, so that long ones wait until no short one is left.",
    healthy=changed(
        BASE,
        {
            "workload": {
                "tenants": {
                    "short": {"max_tokens": 100, "output_tokens": 100},
                    "long": {"max_tokens": 150, "output_tokens": 150},
                },
            },
            "cluster": {"max_batch_size": 24},
            "policies": {"scheduler": {"name": "sjf", "aging": 100_000}},
            "slo": {"ttft": "5s", "tpot": DROP},
        },
        _lengths(40, 8),
    ),
    mild=changed(NO_AGING, _lengths(41, 6)),
    medium=changed(NO_AGING, _lengths(30, 17)),
    severe=changed(NO_AGING, _lengths(20, 26)),
    causes=("starvation",),
)

TROUBLES: Final = (BURST, TWO_BURSTS, RETRY_STORM, INVERSION, STARVATION)
