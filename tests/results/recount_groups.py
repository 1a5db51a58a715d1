"""The rest of the recount: patterns, and how many issues there are."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from recount import PS_PER_MS, Recount

EDGES = {"prompt tokens": (256, 1024, 4096, 16384), "queue at target": (1, 5, 20)}
QUARTERS = ("first quarter", "second quarter", "third quarter", "last quarter")


class FullRecount(Recount):
    # --- patterns ------------------------------------------------------------------------------------------------

    @cached_property
    def slow_ps(self) -> int:
        waits = sorted(row["first_token_ps"] - row["arrival_ps"] for row in self.served)
        return int(waits[(len(waits) - 1) * 90 // 100])

    @cached_property
    def has_slo(self) -> bool:
        return any(self.target(row, kind) is not None for row in self.rows for kind in ("ttft", "tpot", "e2e"))

    def ended_badly(self, row: Any) -> bool:
        late = row["first_token_ps"] - row["arrival_ps"] > (0 if self.has_slo else self.slow_ps)
        return self.missed(row) or (not self.has_slo and late)

    @cached_property
    def last(self) -> dict[int, Any]:
        return {one.request: one for one in self.decisions}

    def holds(self, row: Any, condition: str) -> bool:
        feature, _, wanted = condition.partition("=")
        one = self.last.get(row["request"])
        if feature in EDGES:
            number = row["prompt_tokens"] if feature == "prompt tokens" else one.queued[self.seat(one)] if one else -1
            low, _, high = wanted.rstrip("+").partition("-")
            return int(low) <= number <= (int(high or low) if not wanted.endswith("+") else number)
        if feature == "believed cached":
            if self.result.decisions is None:
                tokens = row["predicted_tokens"]
            elif one is None:
                return False
            else:
                tokens = one.believed_tokens[self.seat(one)]
            half = tokens > row["prompt_tokens"] / 2
            return wanted == ("most" if half and tokens else "less than half" if tokens else "nothing")
        if feature == "instance":
            return bool(self.result.instance_ids().get(row["instance"]) == wanted)
        if feature == "time":
            length = self.rows[-1]["arrival_ps"] - self.rows[0]["arrival_ps"] + 1
            return wanted == QUARTERS[(row["arrival_ps"] - self.rows[0]["arrival_ps"]) * 4 // length]
        return bool(row[{"class": "slo_class"}.get(feature, feature)] == wanted)

    def _patterns(self, rest: str) -> Any:
        bad = [row for row in self.judged if self.ended_badly(row)]
        figures = {"bad": len(bad), "requests": len(self.judged), "base": len(bad) / len(self.judged)}
        return self.slow_ps / PS_PER_MS if rest == "slow_ps" else figures[rest]

    def _pattern(self, rest: str) -> Any:
        place, what = rest.split(".")
        words: str = self.options["patterns"][int(place)]
        rows = [row for row in self.judged if all(self.holds(row, one) for one in words.split(" and "))]
        bad, base = sum(map(self.ended_badly, rows)), self._patterns("base")
        return {
            "conditions": words,
            "support": len(rows),
            "bad": bad,
            "rate": bad / len(rows),
            "lift": bad / len(rows) / base,
            "excess": round(bad - len(rows) * base),
        }[what]

    # --- issues --------------------------------------------------------------------------------------------------

    def _issues(self, rest: str) -> int:
        """Without a focus: one a kind of finding, one a kind of loss, and that prefixes were ignored."""
        assert rest == "count"
        kinds = {one.kind for one in self.result.findings()}
        losses = {row["outcome"] for row in self.rows} & {"rejected", "timed_out", "failed"}
        ignored = len(self.decisions) > 0 and len(self.away) >= 0.05 * len(self.decisions)
        return len(kinds) + len(losses) + ignored
