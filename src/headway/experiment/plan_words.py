"""What a plan says beside its answer: why there is nothing to find, and what a reader should know."""

from fractions import Fraction
from typing import Final

from headway.config.wording import join_words
from headway.errors import HeadwayError
from headway.experiment.bracket import FURTHEST
from headway.experiment.notes import note_unmeasured
from headway.experiment.space import Counts, scales
from headway.experiment.trials import Candidate, Trials
from headway.scenario.scenario import Scenario
from headway.types import Json

SAMPLE: Final = 50  # requests that tell something
QUIET: Final = 16  # times less load, from which on requests are as good as alone
LONGEST_S: Final = 90 * 86400.0  # of a run
LONG: Final = 10  # times the longest requests that arrivals should last, for a queue to have time to build


def too_few(trials: Trials) -> HeadwayError:
    """Why no cluster will do: it would take more replicas, or more of them would not help."""
    space, load = trials.space, trials.load
    top = Candidate(tuple(pool.high for pool in space.pools), load.base)
    run = trials.of(top)[-1]
    less = _idle(trials, run)
    if less >= QUIET:
        idle = Candidate(top.counts, load.round(load.base / less, 4))
        if not trials.meets(idle):
            alone = f"even at 1/{less} of the load, where requests are as good as alone"
            misses = _describe_misses(trials, trials.of(idle)[-1])
            return HeadwayError(f"slo: no number of replicas keeps it: {alone}, {misses}; ask for less.")
    size = space.describe(top.counts)
    return HeadwayError(f"max: {size} do not keep the SLO: {_describe_misses(trials, run)}; raise it, or ask for less.")


def _idle(trials: Trials, run: Json) -> int:
    """How many times less load can be tried, with enough requests to tell and no run that would never end."""
    if trials.load.why_not is not None:
        return 0
    most = min(FURTHEST, int(LONGEST_S / max(run["duration_s"], 1e-9)))
    ends_by_count = trials.space.resolved["workload"].get("requests") is not None or trials.load.unit == "speed"
    return most if ends_by_count else min(most, run["requests"]["arrived"] // SAMPLE)


def too_much(trials: Trials, counts: Counts) -> HeadwayError:
    """Why there is no load that a cluster holds."""
    loads = sorted({candidate.load for candidate, _ in trials.used})
    runs = {load: trials.of(Candidate(counts, load))[-1] for load in loads}
    lowest = next((load for load, run in runs.items() if run["requests"]["completed"] >= SAMPLE), loads[0])
    misses = _describe_misses(trials, runs[lowest])
    least = f"not even {trials.load.describe(lowest)}"
    return HeadwayError(f"slo: this cluster keeps it under no load, {least}: {misses}; ask for less.")


def _describe_misses(trials: Trials, run: Json) -> str:
    misses = [
        f"{target.figure} is {target.describe_value(target.value(run))}, not {target.describe_limit()}"
        for target in trials.targets
        if not target.met(run)
    ]
    return join_words(misses)


def notes(
    scenario: Scenario,
    trials: Trials,
    answer: Candidate,
    holds: Fraction | None,
    breaks: Fraction | None,
    trusts: bool,
) -> list[str]:
    """What a reader of the answer should know."""
    sentences = []
    if trusts:
        sentences.append(
            "Mixes smaller than one that broke the SLO were not run; where it broke by chance, --every finds them."
        )
    workload, load, runs = scenario.workload, trials.load, trials.of(answer)
    if (doubts := note_unmeasured(scenario)) is not None:
        sentences.append(doubts)
    if scales(scenario.cluster, scenario.resolved()["policies"]):
        sentences.append("The autoscaler is left aside: a plan is of clusters that keep their size.")
    if load.why_not is not None:
        sentences.append(f"No curve: {load.why_not}")
    if len(runs) > 1 and all(run == runs[0] for run in runs):
        sentences.append("All seeds gave the same run: nothing in it is drawn, and one seed says as much.")
    if holds is not None and breaks is None:
        cure = "give the workload more requests, or ask for more"
        sentences.append(f"Nothing up to {load.describe(holds)} breaks the SLO in a run so short; {cure}.")
    short = _short(runs[0])
    if short is not None and load.unit != "users":
        sentences.append(short)
    profiles = [tenant.profile.__struct_config__.tag for tenant in workload.senders() if tenant.closed_loop is None]
    if holds is not None and workload.duration is None and any(tag != "constant" for tag in profiles):
        sentences.append(
            "The workload ends after so many requests: a higher load sees less of its profile; say a duration."
        )
    return sentences


def _short(run: Json) -> str | None:
    """Whether requests come for so short a time that a queue cannot build."""
    came, longest = run["arrivals_per_s"], run["latency"]["e2e"]["p99"]
    if came is None or longest is None:
        return None
    span_s = run["requests"]["arrived"] / came
    if span_s >= LONG * longest / 1000:
        return None
    short = f"Requests come for {span_s:,.3g} s and take up to {longest / 1000:,.3g} s, too short for a queue to build"
    return f"{short}: in the long run less load is held; give the workload more requests."
