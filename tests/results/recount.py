"""Every figure that a summary in words may hold, counted again from the records in the plainest way.

`Recount(result).value(source)` is what stands at a fact's source. Nothing here is shared with the code under test.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cached_property
from statistics import mean
from typing import Any

from headway.results.decisions import Decision
from headway.results.findings.observed import Observed
from headway.results.result import Result
from headway.results.words.focus import OTHERS

PS_PER_MS = 10**9
TIMES = {"ms": 10**9, "s": 10**12, "us": 10**6, "ns": 10**3, "ps": 1}


def percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def duration(text: str) -> int:
    match = re.fullmatch(r"([\d.]+)(ps|ns|us|ms|s)", text)
    assert match, text
    return round(float(match[1]) * TIMES[match[2]])


class Recount:
    def __init__(self, result: Result, shown: dict[str, Any] | None = None) -> None:
        self.result = result
        self.rows = list(result.requests.rows())
        self.warmup = result.scenario["warmup"]
        self.decisions: list[Decision] = list(result.decisions or ())
        self.options = shown or {}

    def value(self, source: str) -> Any:
        if source.startswith("key:"):
            return source.rpartition(".")[2]
        kind, _, rest = source.partition(".")
        return getattr(self, f"_{kind}")(rest)

    # --- documents -----------------------------------------------------------------------------------------------

    def _scenario(self, rest: str) -> Any:
        return self._walk(self.result.scenario, rest)

    def _walk(self, found: Any, rest: str) -> Any:
        for key in rest.split("."):
            found = found[int(key)] if isinstance(found, list) else found[key]
        return str(found).lower() if isinstance(found, bool) else found

    def _summary(self, rest: str) -> Any:
        """From the requests where they say it, else as the summary has it."""
        if re.fullmatch(r"latency\.(ttft|tpot|e2e)\.p\d\d", rest):
            return self._latency(self.served, rest)
        if re.fullmatch(r"requests\.(arrived|completed|rejected|timed_out|failed|in_flight)", rest):
            return self._ends(self.rows, rest.partition(".")[2])
        if rest == "slo.goodput_ratio":
            return self._goodput(self.counted)
        if rest == "cache.token_hit_ratio":
            began = [row for row in self.counted if row["started_ps"] >= 0]
            return sum(row["cached_tokens"] for row in began) / sum(row["prompt_tokens"] for row in began)
        if rest == "slo.ttft_attainment":
            return mean(row["first_token_ps"] - row["arrival_ps"] <= self.target(row, "ttft") for row in self.served)
        if rest == "preemptions":
            return len(self.result.preemptions)
        if rest == "shadow.divergences":
            return len(self.drifts)
        if rest == "shadow.too_high_tokens":
            return sum(drift for drift in self.drifts if drift > 0)
        if rest == "shadow.too_low_tokens":
            return -sum(drift for drift in self.drifts if drift < 0)
        if rest == "transfer.count":
            return sum(row["transferred_ps"] >= 0 for row in self.counted)
        return self._walk(self.result.summary(), rest)

    def _tenants(self, rest: str) -> Any:
        return self._group("tenant", "tenants", rest)

    def _classes(self, rest: str) -> Any:
        return self._group("slo_class", "classes", rest)

    def _group(self, column: str, section: str, rest: str) -> Any:
        groups = self.result.summary()[section]
        if rest == "rest":
            return len(groups) - 5
        one = next(one["id"] for one in groups if rest.startswith(one["id"] + "."))
        rest = rest[len(one) + 1 :]
        rows = [row for row in self.counted if row[column] == one]
        if rest == "id":
            return one
        if rest.startswith("requests."):
            return self._ends([row for row in self.rows if row[column] == one], rest.partition(".")[2])
        if rest == "slo.goodput_ratio":
            return self._goodput(rows)
        if rest.startswith("target."):
            return self.target(rows[0], rest.partition(".")[2]) / PS_PER_MS
        assert rest.startswith("latency."), rest
        return self._latency([row for row in rows if row["outcome"] == "completed"], rest)

    def _latency(self, rows: list[Any], rest: str) -> float:
        _, kind, statistic = rest.split(".")
        values = {
            "ttft": [row["first_token_ps"] - row["arrival_ps"] for row in rows],
            "e2e": [row["finished_ps"] - row["arrival_ps"] for row in rows],
            "tpot": [
                (row["finished_ps"] - row["first_token_ps"]) / (row["output_tokens"] - 1)
                for row in rows
                if row["output_tokens"] > 1
            ],
        }[kind]
        return percentile(values, int(statistic[1:])) / PS_PER_MS

    def _ends(self, rows: list[Any], end: str) -> int:
        return len(rows) if end == "arrived" else sum(row["outcome"] == end for row in rows)

    def _goodput(self, rows: list[Any]) -> float:
        abandoned = self.result.summary()["requests"]["abandoned"] if rows is self.counted else 0
        good = sum(row["outcome"] == "completed" and not self.missed(row) for row in rows)
        return good / (len(rows) + abandoned)

    @cached_property
    def drifts(self) -> list[int]:
        """Believed less cached tokens of each request that is wrong by a block or more, and by a tenth of its prompt.
        The last token of a prompt is always computed."""
        drifts = []
        for row in self.counted:
            most = row["prompt_tokens"] - 1
            wrong = abs(min(row["predicted_tokens"], most) - row["cached_tokens"])
            if row["started_ps"] >= 0 and wrong >= 16 and 10 * wrong > row["prompt_tokens"]:
                drifts.append(row["predicted_tokens"] - row["cached_tokens"])
        return drifts

    # --- promises ------------------------------------------------------------------------------------------------

    @cached_property
    def counted(self) -> list[Any]:
        return self.rows[self.warmup :]

    @cached_property
    def served(self) -> list[Any]:
        return [row for row in self.counted if row["outcome"] == "completed"]

    @cached_property
    def judged(self) -> list[Any]:
        return [row for row in self.counted if row["outcome"] != "in_flight"]

    def target(self, row: Any, kind: str) -> Any:
        workload = self.result.scenario["workload"]
        own = (workload.get("tenants") or {}).get(row["tenant"], {}).get("slo") or {}
        given = own if any(own.values()) else self.result.scenario["slo"]
        return duration(given[kind]) if given.get(kind) else None

    def missed(self, row: Any) -> bool:
        if row["outcome"] != "completed":
            return True
        took = {"ttft": row["first_token_ps"] - row["arrival_ps"], "e2e": row["finished_ps"] - row["arrival_ps"]}
        for kind, time in took.items():
            if self.target(row, kind) is not None and time > self.target(row, kind):
                return True
        limit = self.target(row, "tpot")
        between = row["output_tokens"] - 1
        return limit is not None and row["finished_ps"] - row["first_token_ps"] > limit * between

    @cached_property
    def bad(self) -> list[Any]:
        return [row for row in self.judged if self.missed(row)]

    def _slo(self, rest: str) -> float:
        return float(self.target(self.rows[0], rest) / PS_PER_MS)

    def _requests(self, rest: str) -> float:
        if rest == "planned":
            return len(self.counted) + self.result.summary()["requests"]["abandoned"]
        assert rest == "missed_rate"
        return len(self.bad) / len(self.judged)

    def _losses(self, rest: str) -> Any:
        end, what = rest.split(".")
        reasons = Counter(row["reason"] for row in self.rows if row["outcome"] == end)
        if what == "share":
            return sum(reasons.values()) / len(self.rows)
        times = max(reasons.values())
        why = min(reason for reason, found in reasons.items() if found == times)
        return why if what == "reason" else times

    def _misses(self, rest: str) -> int:
        late = 0
        for row in self.served:
            took = row["first_token_ps"] - row["arrival_ps"]
            if rest == "tpot":
                took = (row["finished_ps"] - row["first_token_ps"]) / max(1, row["output_tokens"] - 1)
            late += self.target(row, rest) is not None and took > self.target(row, rest)
        return late

    def _spans(self, rest: str) -> Any:
        who, what = rest.split(".")
        rows = self.bad if who == "missed" else self.judged
        rows = [row for row in rows if row["first_token_ps"] >= 0 and not row["retries"] and not row["redirects"]]
        ends = {"router": ("arrival_ps", "routed_ps"), "queue": ("routed_ps", "started_ps")}
        begun, until = ends.get(what, ("started_ps", "first_token_ps"))
        return len(rows) if what == "count" else sum(row[until] - row[begun] for row in rows) / len(rows) / PS_PER_MS

    def _limits(self, rest: str) -> float:
        """Go through each change of each request's queue: the naive version of the split of time."""
        who, limit = rest.split(".")
        waited = limited = 0
        for row in self.bad if who == "missed" else self.judged:
            if row["first_token_ps"] < 0 or row["retries"] or row["redirects"]:
                continue
            for instance, begin, left in self._waits(row):
                changes = [change for change in self.result.queue_limits if change.instance == instance]
                ends = [*(change.at_ps for change in changes[1:]), left]
                waited += left - begin
                for change, end in zip(changes, ends[: len(changes)], strict=True):
                    if change.limit == limit:
                        limited += max(0, min(end, left) - max(change.at_ps, begin))
        return limited / waited

    def _waits(self, row: Any) -> list[tuple[int, int, int]]:
        """Return (instance, begin, end) of each wait of a request in a queue: before its first turn, after a load, and
        after a transfer."""
        home = row["prefill_instance"] if row["prefill_instance"] >= 0 else row["instance"]
        loaded = row["started_ps"] + row["loading_ps"]
        waits = [(home, row["enqueued_ps"], row["started_ps"]), (home, loaded, loaded + row["ready_ps"])]
        if row["joined_ps"] >= 0:
            waits.append((row["instance"], row["transferred_ps"], row["joined_ps"]))
        return [wait for wait in waits if wait[2] > wait[1]]

    # --- instances and requests ----------------------------------------------------------------------------------

    def _instances(self, rest: str) -> Any:
        instances = self.result.summary()["instances"]
        return len(instances) if rest == "count" else max(one["utilization"] for one in instances)

    def _instance(self, rest: str) -> str:
        return self.result.instance_ids()[int(rest)]

    def _model(self, rest: str) -> str:
        assert rest in {row["model"] for row in self.rows}
        return rest

    def _request(self, rest: str) -> Any:
        number, what = rest.split(".")
        row = self.rows[int(number)]
        if what == "ttft_ps":
            return (row["first_token_ps"] - row["arrival_ps"]) / PS_PER_MS
        return row[what].replace("_", " ") if what == "outcome" else row[what]

    # --- decisions -----------------------------------------------------------------------------------------------

    def _decision(self, rest: str) -> Any:
        place, *more = rest.split(".")
        one = self.decisions[int(place)]
        if len(more) == 2:
            value = getattr(one, more[1])[one.candidates.index(int(more[0]))]
            return value / PS_PER_MS if more[1].endswith("_ps") else value
        if more[0] == "regret_ps":
            return one.estimated_regret_ps() / PS_PER_MS
        return one.at_ps / 10**12 if more[0] == "at_ps" else getattr(one, more[0])

    def _worst(self, rest: str) -> int:
        regretted = sum(self.estimated(one) and one.estimated_regret_ps() > 0 for one in self.decisions)
        better = len([gain for gain in self.gains.values() if gain > 0])
        return min(self.options["examples"], max(regretted, better))

    def _audit(self, rest: str) -> int:
        return min(4 * self.options["examples"], len(self.decisions))

    def seat(self, one: Decision) -> int:
        return one.candidates.index(one.prefill if one.prefill >= 0 else one.target)

    def estimated(self, one: Decision) -> bool:
        return one.estimated_ttft_ps[self.seat(one)] >= 0

    def most(self, one: Decision) -> int:
        """The most that any candidate that computes prompts is believed to hold."""
        able = zip(one.believed_tokens, one.estimated_ttft_ps, strict=True)
        return max(one.believed_tokens[self.seat(one)], *(tokens for tokens, time in able if time >= 0), 0)

    def once(self, one: Decision) -> bool:
        row = self.rows[one.request]
        return not row["retries"] and not row["redirects"]

    @cached_property
    def away(self) -> list[Decision]:
        return [one for one in self.decisions if self.most(one) > one.believed_tokens[self.seat(one)]]

    def holder(self, one: Decision) -> int:
        most = self.most(one)
        able = zip(one.believed_tokens, one.estimated_ttft_ps, strict=True)
        return next(place for place, (tokens, time) in enumerate(able) if tokens == most and time >= 0)

    def _decisions(self, rest: str) -> Any:
        known = [one for one in self.decisions if self.estimated(one)]
        regrets = [one.estimated_regret_ps() for one in known]
        if rest.startswith("away."):
            return self._away(rest.partition(".")[2])
        came = [one for one in known if self.once(one) and self.rows[one.request]["first_token_ps"] >= 0]
        figures: dict[str, Any] = {
            "count": lambda: len(self.decisions),
            "estimated": lambda: len(known),
            "regretted": lambda: sum(regret > 0 for regret in regrets),
            "regret_ms_mean": lambda: sum(regrets) / len(known) / PS_PER_MS,
            "regret_s_sum": lambda: sum(regrets) / 10**12,
            "soonest_share": lambda: sum(regret == 0 for regret in regrets) / len(known),
            "most_cached_share": lambda: 1 - len(self.away) / len(self.decisions),
            "candidates_mean": lambda: round(mean(len(one.candidates) for one in self.decisions)),
            "hit_elsewhere": lambda: sum(self.elsewhere(one) for one in self.decisions),
            "expected_ms_mean": lambda: mean(one.estimated_ttft_ps[self.seat(one)] for one in came) / PS_PER_MS,
            "waited_ms_mean": lambda: (
                mean(self.rows[one.request]["first_token_ps"] - one.at_ps for one in came) / PS_PER_MS
            ),
        }
        return figures[rest]()

    def uncached(self, one: Decision) -> bool:
        row = self.rows[one.request]
        return self.once(one) and row["started_ps"] >= 0 and row["cached_tokens"] == 0

    def elsewhere(self, one: Decision) -> bool:
        """Nothing was cached, and another candidate was believed to hold more than the one chosen."""
        return self.uncached(one) and self.most(one) > one.believed_tokens[self.seat(one)]

    def _away(self, what: str) -> Any:
        judged = [one for one in self.away if self.once(one) and self.rows[one.request] in self.judged]
        deciders = Counter(filter(None, map(self.decider, self.away)))
        best = max(deciders.values(), default=0)
        figures: dict[str, Any] = {
            "count": lambda: len(self.away),
            "tokens_mean": lambda: round(
                mean(self.most(one) - one.believed_tokens[self.seat(one)] for one in self.away)
            ),
            "short_queue": lambda: sum(one.queued[self.holder(one)] < 5 for one in self.away),
            "uncached": lambda: sum(map(self.uncached, self.away)),
            "missed_rate": lambda: mean(self.missed(self.rows[one.request]) for one in judged),
            "decided": lambda: best,
            "decider": lambda: min(scorer for scorer, times in deciders.items() if times == best),
        }
        return figures[what]()

    def decider(self, one: Decision) -> str | None:
        routing = self.result.scenario["policies"]["routing"]
        weights = {scorer["name"]: scorer["weight"] for scorer in routing.get("scorers", ())}
        gains = {}
        for scorer, scores in one.scores.items():
            mine, its = scores[self.seat(one)], scores[self.holder(one)]
            if mine is not None and its is not None and len(one.scores) > 1:
                gains[scorer] = weights.get(scorer, 1) * (mine - its) * (-1 if one.lowest_wins else 1)
        best = max(gains.values(), default=0)
        return next(scorer for scorer, gain in gains.items() if gain == best) if best > 0 else None

    # --- counterfactuals -----------------------------------------------------------------------------------------

    @cached_property
    def gains(self) -> dict[tuple[int, int], int]:
        found: dict[tuple[int, int], int] = {}
        for one in self.result.counterfactuals:
            if one.ttft_ps >= 0 and one.alternative_ttft_ps >= 0:
                gain = one.ttft_ps - one.alternative_ttft_ps
                key = one.request, one.at_ps
                found[key] = max(gain, found.get(key, gain))
        return found

    def _counterfactuals(self, rest: str) -> Any:
        told = [one for one in self.result.counterfactuals if one.value is not None]
        figures: dict[str, Any] = {
            "decisions": lambda: len(self.gains),
            "better": lambda: sum(gain > 0 for gain in self.gains.values()),
            "regret_ms_mean": lambda: mean(max(0, gain) for gain in self.gains.values()) / PS_PER_MS,
            "objective_known": lambda: len(told),
            "objective_better": lambda: sum(one.alternative_value > one.value for one in told),  # type: ignore[operator]
        }
        return figures[rest]()

    def _counterfactual(self, rest: str) -> Any:
        place, what = rest.split(".")
        value = getattr(self.result.counterfactuals[int(place)], what)
        return value / 10**12 if what == "at_ps" else value / PS_PER_MS if what.endswith("_ps") else value

    # --- findings ------------------------------------------------------------------------------------------------

    def _finding(self, rest: str) -> Any:
        place, what, *more = rest.split(".")
        value = getattr(self.result.findings()[int(place)], what)
        if what == "suggestions":
            return getattr(value[int(more[0])], more[1])
        return value[int(more[0])] if more else value / 10**12 if what.endswith("_ps") else value

    def _issue(self, rest: str) -> str:
        kind, _, turn, what = rest.split(".")
        return str(getattr(list(OTHERS[kind](Observed(self.result)))[int(turn)], what))

    def _findings(self, rest: str) -> Any:
        kind, what = rest.split(".")
        same = [one for one in self.result.findings() if one.kind == kind]
        return len(same) - 1 if what == "more" else sum(one.count for one in same)

    def _constant(self, rest: str) -> int:
        return {"SHORT_QUEUE": 5, "TIMES": 3}[rest]
