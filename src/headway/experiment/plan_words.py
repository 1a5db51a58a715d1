"""The errors of a plan that finds no answer, and the notes on an answer."""

from fractions import Fraction
from typing import Final

from headway.config.wording import join_words
from headway.errors import HeadwayError, worded
from headway.experiment.bracket import FURTHEST
from headway.experiment.notes import note_bad_rows, note_unmeasured
from headway.experiment.space import Counts
from headway.experiment.trials import Candidate, Trials
from headway.scenario.scenario import Scenario
from headway.types import Json

SAMPLE: Final = 50  # a run with fewer requests is too short to judge
QUIET: Final = 16  # a load divided by this number is so low that requests hardly wait for each other
LONGEST_S: Final = 90 * 86400.0  # maximum simulated time of a run
LONG: Final = 10  # arrivals should last this many times as long as the longest requests, so that a queue can build


def too_few(trials: Trials) -> HeadwayError:
    """Return an error that says why no cluster meets the SLO: either more replicas than `max` are necessary, or the SLO
    is missed even when the cluster is almost idle, so that more replicas cannot help."""
    space, load = trials.space, trials.load
    top = Candidate(tuple(pool.high for pool in space.pools), load.base)
    run = trials.of(top)[-1]
    less = _idle(trials, run)
    if less >= QUIET:
        idle = Candidate(top.counts, load.round(load.base / less, 4))
        if not trials.meets(idle):
            alone = f"Even at 1/{less} of the load, where requests hardly wait for each other"
            misses = _describe_misses(trials, trials.of(idle)[-1])
            return HeadwayError(f"slo: no number of replicas meets the SLO. {alone}, {misses}. Relax the SLO.")
    size = space.describe(top.counts)
    misses = _describe_misses(trials, run)
    return HeadwayError(f"max: {size} do not meet the SLO: {misses}. Allow more replicas, or relax the SLO.")


def _idle(trials: Trials, run: Json) -> int:
    """Return the largest number by which the load can be divided. After the division, enough requests must arrive to
    judge the SLO, and the simulation must not become too long. If the load cannot be scaled, return 0."""
    if trials.load.why_not is not None:
        return 0
    most = min(FURTHEST, int(LONGEST_S / max(run["duration_s"], 1e-9)))
    ends_by_count = trials.space.resolved["workload"].get("requests") is not None or trials.load.unit == "speed"
    return most if ends_by_count else min(most, run["requests"]["arrived"] // SAMPLE)


def too_much(trials: Trials, counts: Counts) -> HeadwayError:
    """Return an error that says that a cluster does not meet the SLO at any load."""
    loads = sorted({candidate.load for candidate, _ in trials.used})
    runs = {load: trials.of(Candidate(counts, load))[-1] for load in loads}
    lowest = next((load for load, run in runs.items() if run["requests"]["completed"] >= SAMPLE), loads[0])
    misses = _describe_misses(trials, runs[lowest])
    least = trials.load.describe(lowest)
    return HeadwayError(
        f"slo: this cluster does not meet the SLO at any load. At {least}, {misses}. Relax the SLO, or add replicas."
    )


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
    skips: bool,
) -> list[str]:
    """Return notes on what limits the answer, each of one or two sentences."""
    sentences = []
    if skips:
        sentences.append(
            "The search skips mixes that are smaller than one that missed the SLO. "
            f"Use {worded('--every', 'every=True')} to run them as well."
        )
    workload, load, runs = scenario.workload, trials.load, trials.of(answer)
    sentences += [note for note in (note_unmeasured(scenario), note_bad_rows(scenario)) if note is not None]
    pools = scenario.cluster.scaling_pools().values()
    if "scaling" in scenario.resolved()["policies"] or any(pool.scales() for pool in pools):
        sentences.append("The plan ignores the autoscaler: it compares clusters of fixed size.")
    if load.why_not is not None:
        sentences.append(f"No curve: {load.why_not}")
    if len(runs) > 1 and all(run == runs[0] for run in runs):
        sentences.append("All seeds gave the same run: nothing in it is random, so one seed is enough.")
    if holds is not None and breaks is None:
        cure = "Give the workload more requests, or set a stricter SLO."
        sentences.append(f"In a run this short no load up to {load.describe(holds)} breaks the SLO. {cure}")
    short = _short(runs[0])
    if short is not None and load.unit != "users":
        sentences.append(short)
    profiles = [tenant.profile.__struct_config__.tag for tenant in workload.senders() if tenant.closed_loop is None]
    if holds is not None and workload.duration is None and any(tag != "constant" for tag in profiles):
        sentences.append(
            "The workload ends after a number of requests, so a higher load sees less of its profile. Set a duration."
        )
    return sentences


def _short(run: Json) -> str | None:
    """If requests arrive for so short a time that no queue can build, return a note that says so."""
    came, longest = run["arrivals_per_s"], run["latency"]["e2e"]["p99"]
    if came is None or longest is None:
        return None
    span_s = run["requests"]["arrived"] / came
    if span_s >= LONG * longest / 1000:
        return None
    return (
        f"Requests arrive for {span_s:,.3g} s and take up to {longest / 1000:,.3g} s, too short for a queue to build. "
        "Over a longer time the cluster sustains less load: give the workload more requests."
    )
