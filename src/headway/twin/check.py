"""`headway twin`: runs each policy in the simulator and live, compares the two results of each policy, and compares the
two rankings of the policies."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.text import Text

from headway.errors import HeadwayError
from headway.experiment.contenders import contenders
from headway.experiment.run import simulate
from headway.load.asking import Ask
from headway.load.driver import load
from headway.report.live_tables import LATE_MS
from headway.report.number_format import number, percent
from headway.report.terminal import table
from headway.results import store
from headway.scenario.scenario import DEFAULT, Scenario, Source
from headway.twin.live_cluster import LINES, STEP_MS, check, live_cluster, pace, tick_s
from headway.types import Json

USUAL: Final = ("round-robin", "least-loaded", "weighted", "lmetric")
# The maximum accepted differences between simulation and live run.
TTFT, HITS, SPREAD = "mean TTFT", "hit ratio", "request distribution"
LIMITS: Final = {TTFT: 0.10, HITS: 0.02, SPREAD: 0.05}
SIDES: Final = ("simulated", "live")
Progress = Callable[[int, int], None]  # called with the number of ended requests and the total number of requests


class Pair(Struct, frozen=True):
    """The two summaries of one policy: of its simulation and of its live run."""

    policy: str
    simulated: Json
    live: Json

    @property
    def errors(self) -> dict[str, float]:
        """The differences between the live run and the simulation: in mean TTFT (relative to the simulated mean), in
        hit ratio, and in the distribution of requests over the instances. The last difference is the fraction of
        requests that would have to move to another instance to make the two distributions equal."""
        sides = (self.simulated, self.live)
        shares = [{each["id"]: each["share"] or 0.0 for each in side["instances"]} for side in sides]
        moved = [abs(shares[0].get(name, 0.0) - shares[1].get(name, 0.0)) for name in {**shares[0], **shares[1]}]
        ttft = [side["latency"]["ttft"]["mean"] for side in sides]
        hits = [side["cache"]["token_hit_ratio"] or 0.0 for side in sides]
        return {
            TTFT: math.inf if None in ttft else (ttft[1] - ttft[0]) / ttft[0],
            HITS: hits[1] - hits[0],
            SPREAD: math.fsum(moved) / 2,
        }

    @property
    def missed(self) -> list[str]:
        return [name for name, error in self.errors.items() if abs(error) > LIMITS[name]]


class Twin(Struct, frozen=True):
    name: str
    speed: float
    requests: int
    pairs: list[Pair]

    def order(self, side: str) -> list[str]:
        """Return the policies by their mean TTFT, best first. `side` is `simulated` or `live`."""
        return [
            pair.policy
            for pair in sorted(self.pairs, key=lambda pair: getattr(pair, side)["latency"]["ttft"]["mean"] or math.inf)
        ]

    @property
    def same_order(self) -> bool:
        return self.order("simulated") == self.order("live")

    @property
    def agrees(self) -> bool:
        return self.same_order and not any(pair.missed for pair in self.pairs)

    def summary(self) -> Json:
        return {
            "name": self.name,
            "speed": self.speed,
            "requests": self.requests,
            "limits": dict(LIMITS),
            "policies": {
                pair.policy: {
                    "errors": pair.errors,
                    "missed": pair.missed,
                    "simulated": pair.simulated,
                    "live": pair.live,
                }
                for pair in self.pairs
            },
            "order": {side: self.order(side) for side in SIDES},
            "same_order": self.same_order,
            "agrees": self.agrees,
        }


def twin(
    scenario: Source = DEFAULT,
    policies: Any = None,
    *,
    overrides: str | tuple[str, ...] = (),
    speed: float | None = None,
    step_ms: float = STEP_MS,
    output: Path | None = None,
    progress: Progress | None = None,
) -> Twin:
    """Run each routing policy in the simulator and live. `policies` has the same form as in `compare`; the default is
    `USUAL`."""
    loaded = Scenario.load(scenario, overrides)
    check(loaded)
    chosen = contenders(loaded, list(USUAL) if policies is None else policies)
    specs = [(contender.spec, contender.beside) for contender in chosen]
    for contender in chosen:
        if specs.count((contender.spec, contender.beside)) > 1:
            raise HeadwayError(f"policies: {contender.name} is listed twice. Remove one.")
        if contender.oracle:
            raise HeadwayError(f"policies: {contender.name} needs signals that no live router has. Remove it.")
    rate = pace(loaded, step_ms) if speed is None else speed
    if output is not None:
        for contender in chosen:
            for side in SIDES:
                store.check(output / contender.name / side)
    pairs: list[Pair] = []
    count = 0
    for contender in chosen:
        simulated = simulate(loaded, progress=False, **contender.policies)
        whole = len(simulated.requests) * len(chosen)

        def on_progress(requests: int, before: int = count, whole: int = whole) -> None:
            if progress is not None:
                progress(before + requests, whole)

        with live_cluster(loaded, contender.policies, rate) as url:
            ask, ticks = Ask(url, truth=True), tick_s(loaded, rate)
            live = load(ask, loaded, speed=rate, progress=on_progress, tick_s=ticks, lines=LINES)
        count += len(live.requests)
        if output is not None:
            for side, result in zip(SIDES, (simulated, live), strict=True):
                result.save(output / contender.name / side)
        pairs.append(Pair(contender.name, simulated.summary(), live.summary()))
    return Twin(loaded.name, rate, pairs[0].simulated["requests"]["arrived"], pairs)


# --- the report -------------------------------------------------------------------------------------------------------

ROWS = (("TTFT", "ttft"), ("TPOT", "tpot"), ("E2E", "e2e"))
STATISTICS = ("mean", "p50", "p90", "p99")


def twin_report(twins: Twin) -> RenderableType:
    heading = f"{twins.name}: {twins.requests:,} requests, simulated and live (at {twins.speed:g} of real time)"
    parts: list[RenderableType] = [Text(heading, style="bold"), ""]
    for pair in twins.pairs:
        parts += [Text(pair.policy, style="bold"), _pair(pair), ""]
    return Group(*parts, Text("\n".join(verdict(twins))))


def _pair(pair: Pair) -> RenderableType:
    rows = table("ms", *STATISTICS, "cache hits", "requests per replica")
    for side in SIDES:
        summary = getattr(pair, side)
        shares = [instance["requests"] for instance in summary["instances"]]
        spread = f"{min(shares):,} to {max(shares):,}" if shares else ""
        for label, key in ROWS:
            values = summary["latency"][key]
            more = (percent(summary["cache"]["token_hit_ratio"]), spread) if key == "ttft" else ("", "")
            rows.add_row(Text(f"{label}, {side}"), *(number(values[name]) for name in STATISTICS), *more)
    return rows


def verdict(twins: Twin) -> list[str]:
    """Return a line for each limit, with the largest difference among the policies."""
    lines = []
    for name, unit in ((TTFT, " %"), (HITS, " points"), (SPREAD, " %")):
        worst = max(twins.pairs, key=lambda pair: abs(pair.errors[name]))
        sign = "✓" if abs(worst.errors[name]) <= LIMITS[name] else "✗"
        error = f"largest difference {100 * abs(worst.errors[name]):.1f}{unit} ({worst.policy})"
        lines.append(f"{sign} {name} within {100 * LIMITS[name]:g}{unit}: {error}")
    if twins.same_order:
        lines.append(f"✓ same order by mean TTFT: {', '.join(twins.order('simulated'))}")
    else:
        lines.append(f"✗ order by mean TTFT, simulated: {', '.join(twins.order('simulated'))}")
        lines.append(f"  live: {', '.join(twins.order('live'))}")
    lag = max(pair.live["client"]["lag"]["p99"] or 0.0 for pair in twins.pairs)
    if lag > LATE_MS:
        lines.append(f"This machine was overloaded: it sent 1 % of the requests more than {number(lag)} ms late.")
    return lines
