"""How often `headway check` is wrong: false alarms, planted regressions, and the coverage of its intervals.

    check_errors.py alarms      200 pairs that decide differently and are equal in expectation
    check_errors.py suite       20 such pairs on the embedded suite
    check_errors.py power       planted regressions of 5 % and 2 %
    check_errors.py coverage    the sequential test alone, on drawn numbers with heavy and skewed tails

Every pair has seeds of its own, so that the pairs are independent. docs/checking.md has the figures.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from math import exp, sqrt
from pathlib import Path
from random import Random

import headway
from headway.experiment.runner import runner_of
from headway.regression.conditions import read_conditions
from headway.regression.measure import measure
from headway.regression.pairs import Trials
from headway.regression.sequential import Spending, judge, looks, paired
from headway.regression.sides import BASE, CANDIDATE, meet, read_side
from headway.types import Json

SALTED = f"{Path(__file__).with_name('salted_ties.py')}:SaltedTies"
SEEDS = 64
APART = 1000  # between the seeds of two pairs
OTHER = 10**6  # added to the policy seed of the candidate
PER_LOAD = {"light": "6/s", "heavy": "14/s"}
Outcomes = Counter[str]


def scenario(load: str, requests: int) -> Json:
    """A small cluster with linear step times."""
    return {
        "name": load,
        "workload": {
            "requests": requests,
            "rate": PER_LOAD[load],
            "prompt_tokens": {"dist": "lognormal", "mean": 900, "std": 700, "min": 32, "max": 8000},
            "output_tokens": {"dist": "lognormal", "mean": 90, "std": 60, "min": 4, "max": 400},
        },
        "cluster": {"instances": 4, "latency": {"model": "linear"}},
    }


def with_salt(salt: int) -> str:
    return f"policies.routing={{name: '{SALTED}', salt: {salt}}}"


def equal_pair(number: int) -> tuple[Json, list[str], list[str]]:
    """A scenario, and the changes of both sides: `random` under two policy seeds, or two salts."""
    base = scenario(("light", "heavy")[number % 2], 100) | {"seed": {"workload": number * APART, "simulation": 0}}
    if number % 4 < 2:
        seeds = (number * APART, OTHER + number * APART)
        changes = [["policies.routing=random", f"seed.simulation={seed}"] for seed in seeds]
    else:
        changes = [[with_salt(number)], [with_salt(OTHER + number)]]
    return base, changes[0], changes[1]


def alarms(pairs: int) -> None:
    """Count verdicts "fail" for equal pairs: at a limit of 0 %, where an alarm is likeliest, and, of a quarter of the
    pairs, at 5 %."""
    for limit, many in (("+0%", pairs), ("+5%", pairs // 4)):
        outcomes: dict[str, Outcomes] = {}
        longest = 0.0
        for number in range(many):
            figure = ("ttft.p99", "e2e.mean")[number // 4 % 2]
            base, mine, its = equal_pair(number)
            begun = time.process_time()
            found = headway.check(
                base, fail_if=f"{figure}>{limit}", base_set=mine, candidate_set=its, seeds=SEEDS, workers=1
            )
            longest = max(longest, time.process_time() - begun)
            outcomes.setdefault(figure, Counter())[found.outcome] += 1
            if number % 50 == 49:
                print(f"{number + 1} of {many}", file=sys.stderr, flush=True)
        for figure, counts in sorted(outcomes.items()):
            tell(f"{figure}>{limit}", counts)
        tell(f"all >{limit}", sum(outcomes.values(), Counter()), f"; at most {longest:.1f} CPU-seconds a pair")


def suite(pairs: int) -> None:
    """Count verdicts for `random` against itself under another policy seed, on the embedded suite with 8 seeds."""
    counts: Outcomes = Counter()
    begun = time.process_time()
    for number in range(pairs):
        workload = f"seed.workload={number * APART}"
        found = headway.check(
            "random",
            "random",
            "e2e.mean>+0%",
            overrides=workload,
            base_set=f"seed.simulation={number * APART}",
            candidate_set=f"seed.simulation={OTHER + number * APART}",
            seeds=8,
            workers=1,
        )
        counts[found.outcome] += 1
        print(f"{number + 1} of {pairs}", file=sys.stderr, flush=True)
    each = (time.process_time() - begun) / pairs
    tell("embedded suite, e2e.mean>+0%", counts, f"; {each:.0f} CPU-seconds a pair")


def slower(factor: float) -> str:
    """The change that makes every step slower by a factor."""
    base = headway.Scenario.load(scenario("light", 1)).resolved()["cluster"]["latency"]
    values = {key: scaled(value, factor) for key, value in base.items() if key != "model"}
    return f"cluster.latency={{model: linear, {', '.join(f'{key}: {value}' for key, value in values.items())}}}"


def scaled(value: object, factor: float) -> str:
    text = str(value)
    number = text.rstrip("abcdefghijklmnopqrstuvwxyzµ")
    return f"{float(number) * factor:.6f}{text[len(number) :]}"


def effect(figure: str, factor: float, seeds: int = 200) -> tuple[float, float]:
    """The true change of a figure at a factor, and half of its 95 % interval, from many seeds."""
    both = [with_salt(0), f"seed.workload={OTHER}"]
    sides = [read_side(name, scenario("light", 300)) for name in (BASE, CANDIDATE)]
    trials = Trials(meet(*sides, None, both, [*both, slower(factor)]), seeds)
    with runner_of(1) as runner:
        trials.run_to(seeds, runner)
    evidence = {name: [(one.summary, other.summary) for one, other in pairs] for name, pairs in trials.pairs.items()}
    (condition,) = read_conditions(f"{figure}>+0%")
    estimate = measure(condition, evidence, 0.05, whole=True).estimate
    assert estimate is not None
    return condition.shown(estimate.mean), condition.shown(estimate.high) - condition.shown(estimate.mean)


def power(pairs: int) -> None:
    """Count verdicts for candidates that are slower by 5 % or 2 % and break ties with another salt."""
    for figure in ("e2e.mean", "ttft.p99"):
        for planted in (0.05, 0.02):
            factor = 1 + planted
            for _ in range(2):
                factor = 1 + (factor - 1) * planted / effect(figure, factor)[0]
            true, half = effect(figure, factor)
            counts: Outcomes = Counter()
            for number in range(pairs):
                found = headway.check(
                    scenario("light", 300) | {"seed": {"workload": number * APART, "simulation": 0}},
                    fail_if=f"{figure}>+0%",
                    base_set=with_salt(number),
                    candidate_set=[with_salt(OTHER + number), slower(factor)],
                    seeds=SEEDS,
                    workers=1,
                )
                counts[found.outcome] += 1
            about = f"; true change {100 * true:.2f} % ± {100 * half:.2f}"
            tell(f"{figure}>+0%, planted {100 * planted:g} %", counts, about)


DRAWS: dict[str, Callable[[Random], float]] = {
    "normal": lambda rng: rng.gauss(0, 1),
    "Student's t, 3 degrees": lambda rng: rng.gauss(0, 1) / sqrt(rng.gammavariate(1.5, 2) / 3),
    "exponential, right tail": lambda rng: rng.expovariate(1) - 1,
    "exponential, left tail": lambda rng: 1 - rng.expovariate(1),
    "lognormal, right tail": lambda rng: exp(rng.gauss(0, 1)) - exp(0.5),
}


def coverage(pairs: int) -> None:
    """Count verdicts when the mean of the numbers is the limit, so that "pass" and "fail" both are errors."""
    condition = read_conditions("ttft.p99>+0ms")[0]
    for name, draw in DRAWS.items():
        counts: Outcomes = Counter()
        for number in range(pairs):
            rng = Random(number)
            values = [draw(rng) for _ in range(SEEDS)]
            spending = Spending(0.05, SEEDS)
            outcome = "cannot tell"
            for count in looks(SEEDS):
                estimate = paired(values[:count], spending.take(count, count == SEEDS), 0.0)
                outcome = judge(condition, estimate, whole=False)
                if outcome != "cannot tell":
                    break
            counts[outcome] += 1
        wrong = counts["pass"] + counts["fail"]
        tell(name, counts, f"; wrong: {interval(wrong, pairs)}")


def interval(count: int, whole: int) -> str:
    """A rate with its 95 % interval (Wilson)."""
    z, rate = 1.96, count / whole
    middle = (rate + z * z / (2 * whole)) / (1 + z * z / whole)
    half = z / (1 + z * z / whole) * sqrt(rate * (1 - rate) / whole + z * z / (4 * whole * whole))
    return f"{100 * rate:.1f} % ({100 * max(0, middle - half):.1f} to {100 * (middle + half):.1f})"


def tell(name: str, counts: Outcomes, more: str = "") -> None:
    whole = counts.total()
    words = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("fail", "pass", "cannot tell"))
    print(f"{name}: {whole} checks: {words}; fail {interval(counts['fail'], whole)}{more}", flush=True)


PARTS = {"alarms": (alarms, 200), "suite": (suite, 20), "power": (power, 40), "coverage": (coverage, 2000)}


def main(arguments: Iterable[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument("--pairs", type=int, help="number of checks of each part")
    options = parser.parse_args(list(arguments))
    for name in options.parts or PARTS:
        part, usual = PARTS[name]
        part(options.pairs or usual)


if __name__ == "__main__":
    main(sys.argv[1:])
