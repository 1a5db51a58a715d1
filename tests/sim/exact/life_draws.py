"""Random clusters whose instances come and go, for the exactness tests: any other with an autoscaler, slow starts,
drains of every mode, and faults."""

from __future__ import annotations

from typing import Any

from draw_sources import Draws, pick
from headway.types import PS_PER_SECOND, Scale
from headway.views.pool import PoolView

Json = dict[str, Any]
MS = PS_PER_SECOND // 1000
SOON = ("0s", "1ms", "5ms", "137us", "23ms")
WAITS: tuple[Any, ...] = (
    *SOON,
    {"dist": "uniform", "min": "1ms", "max": "9ms"},
    {"dist": "exponential", "mean": "5ms"},
)
KINDS = ("crash", "slow", "unreachable")
DRAINS = ("wait", "immediate", "redirect")
# Times of theirs are short here, so that something happens within a fraction of a second.
SCALERS = (
    *("erratic", "erratic", "absurd", "absurd", "queue-threshold", "target-utilization", "concurrency"),
    *("hpa", "slo-driven", "predictive", "kv-token"),
)


def pools(cluster: Json) -> list[Json]:
    """Where the numbers of instances stand."""
    found = []
    for one in cluster.get("deployments", {"": cluster}).values():
        apart = one.get("architecture") == "disaggregated"
        found += [one["prefill"], one["decode"]] if apart else [one]
    return found


def living(draws: Draws, found: Json) -> Json:
    """The scenario with instances that come and go."""
    if "rate" in found["workload"]:  # long enough that the autoscaler looks often
        found["workload"]["rate"] = pick(draws, "400/s", "200/s", "100/s")
    for pool in pools(found["cluster"]):
        count = pool.setdefault("instances", found["cluster"].get("instances", 8))
        pool["min_replicas"] = pick(draws, 0, 1, count)
        pool["max_replicas"] = count + pick(draws, 0, 1, 2)
    found["policies"]["scaling"] = pick(draws, *SCALERS)
    scaling: Json = {
        "interval": pick(draws, "2ms", "5ms", "20ms", "7137us"),
        "window": pick(draws, "10ms", "100ms"),
        "provisioning": pick(draws, *WAITS),
        "model_load": pick(draws, *WAITS),
        "drain": {"mode": pick(draws, *DRAINS)},
        "patience": pick(draws, "10ms", "1s", "1s"),
    }
    if scaling["drain"]["mode"] == "wait" and pick(draws, False, True):
        scaling["drain"]["timeout"] = pick(draws, "1ms", "10ms", "100ms")
    if pick(draws, False, True):
        curve = pick(draws, "linear", "exponential", "step")
        scaling["warmup"] = {"duration": pick(draws, "5ms", "50ms"), "curve": curve, "penalty": pick(draws, 1.5, 3)}
        scaling["warmup"]["pieces"] = pick(draws, 1, 4, 10)
    if pick(draws, False, True):
        triggers: Json = {"gap": pick(draws, "1ms", "10ms"), "sustained": pick(draws, "0s", "3ms")}
        triggers |= pick(
            draws, {"queue_depth": 2}, {"high": 0.5, "low": 0.1}, {"attainment": 0.9}, {"rate_change": 0.5}
        )
        scaling["triggers"] = triggers
        if pick(draws, False, True):
            scaling["interval"] = None
    found["scaling"] = scaling
    found["faults"] = [fault(draws, found["cluster"]) for _ in range(draws.between(0, 3))]
    found["retries"] = pick(draws, 0, 1, 3)
    return found


def fault(draws: Draws, cluster: Json) -> Json:
    names = []
    deployed = cluster.get("deployments")
    for name, one in (deployed or {"": cluster}).items():
        apart = one.get("architecture") == "disaggregated"
        for role in ("prefill", "decode") if apart else ("",):
            stem = "-".join(part for part in (name, role) if part) or "instance"
            names += [f"{stem}-{number}" for number in range((one[role] if role else one)["max_replicas"])]
    found: Json = {"at": pick(draws, "3ms", "10ms", "20ms", "51234567ns"), "instance": pick(draws, *names)}
    found["kind"] = pick(draws, *KINDS)
    if found["kind"] == "slow":
        found["factor"] = pick(draws, 2, 3.5)
    if pick(draws, False, True, True):
        found["duration"] = pick(draws, "1ms", "10ms", "100ms")
    return found


class Erratic:
    """Goes up and down for no reason; after a while only up, so that all may end."""

    def scale(self, pool: PoolView) -> Scale:
        if pool.now_ps > 500 * MS:
            return Scale(pool.maximum, "to get done")
        number = pool.now_ps // MS * 7 % 5 + pool.inflight % 3
        return Scale(number % (pool.maximum + 2), "as it likes")


class Absurd:
    """Asks for numbers that no pool may have, and for others; after a while only for more, so that all may end."""

    def scale(self, pool: PoolView) -> Scale:
        if pool.now_ps > 200 * MS:
            return Scale(10**6, "more")
        wanted = (0, 10**6, 1, pool.maximum + 1, pool.replicas + 1, max(0, pool.replicas - 1), 2)
        return Scale(wanted[(pool.now_ps // 10**8 + pool.inflight) % len(wanted)], "why not")


OURS = {"erratic": Erratic, "absurd": Absurd}


def life_traits(scenario: Json, result: Any) -> dict[str, bool]:
    columns = result.requests
    states = {change.state for change in result.states}
    held = scenario["scaling"]["drain"]["mode"]
    scaled = [record.after - record.before for record in result.scaling_events]
    return {
        **{f"state {state}": True for state in states},
        "scaled up": any(change > 0 for change in scaled),
        "scaled down": any(change < 0 for change in scaled),
        "failed": "failed" in columns["outcome"],
        "sent again after a loss": any(columns["retries"]),
        "redirected": any(columns["redirects"]),
        "redirected while it ran": any(
            count and first >= 0 for count, first in zip(columns["redirects"], columns["first_token_ps"], strict=True)
        ),
        f"drain {held}": any(change < 0 for change in scaled),
        **{f"fault {one['kind']}": True for one in scenario["faults"]},
    }


SHOWN = (
    *("scaled up", "scaled down", "failed", "sent again after a loss", "redirected", "redirected while it ran"),
    *(
        f"state {name}"
        for name in ("provisioning", "loading", "warming", "ready", "draining", "unreachable", "stopped")
    ),
    *(f"drain {name}" for name in DRAINS),
    *(f"fault {name}" for name in KINDS),
)
