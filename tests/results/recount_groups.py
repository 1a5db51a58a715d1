"""The rest of the recount: bursts of tenants, patterns, and how many issues there are."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from recount import PS_PER_MS, Recount

EDGES = {"prompt tokens": (256, 1024, 4096, 16384), "queue at target": (1, 5, 20)}
QUARTERS = ("first quarter", "second quarter", "third quarter", "last quarter")


class FullRecount(Recount):
    # --- bursts --------------------------------------------------------------------------------------------------

    @cached_property
    def window_ps(self) -> int:
        times = [row["arrival_ps"] for row in self.counted]
        return max(10**12, (times[-1] - times[0]) // 200 + 1)

    def window(self, row: Any) -> int:
        return int((row["arrival_ps"] - self.counted[0]["arrival_ps"]) // self.window_ps)

    def burst_windows(self, tenant: str) -> dict[int, int]:
        """The windows in which a tenant sent at least ten, and at least three times its mean a window."""
        sent = [self.window(row) for row in self.judged if row["tenant"] == tenant]
        windows = max(self.window(row) for row in self.judged) + 1
        return {at: sent.count(at) for at in sorted(set(sent)) if sent.count(at) >= max(10, 3 * len(sent) / windows)}

    def _burst(self, rest: str) -> Any:
        tenant, _, what = rest.rpartition(".")
        high = self.burst_windows(tenant)
        others = [row for row in self.judged if row["tenant"] != tenant]
        inside = [row for row in others if self.window(row) in high or self.window(row) - 1 in high]
        outside = [row for row in others if row not in inside]
        lost, kept = sum(map(self.missed, inside)), sum(map(self.missed, outside))
        largest = max(high.values())
        first = next(at for at, number in high.items() if number == largest)
        return {
            "tenant": tenant,
            "windows": len(high),
            "window_s": self.window_ps / 10**12,
            "largest": largest,
            "at_ps": (self.counted[0]["arrival_ps"] + first * self.window_ps) / 10**12,
            "missed_inside": lost,
            "share": lost / max(1, lost + kept),
            "rate_inside": lost / len(inside),
            "rate_outside": kept / max(1, len(outside)),
        }[what]

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
        """Without a focus: one a kind of finding, a kind of loss, a tenant that bursts to the harm of others; and that
        prefixes were ignored."""
        assert rest == "count"
        kinds = {one.kind for one in self.result.findings()}
        losses = {row["outcome"] for row in self.rows} & {"rejected", "timed_out", "failed"}
        ignored = len(self.decisions) > 0 and len(self.away) >= 0.05 * len(self.decisions)
        return len(kinds) + len(losses) + sum(map(self.harms, sorted({row["tenant"] for row in self.judged}))) + ignored

    def harms(self, tenant: str) -> bool:
        if len({row["tenant"] for row in self.rows}) < 2 or not self.burst_windows(tenant):
            return False
        if self._burst(f"{tenant}.missed_inside") < 10:
            return False
        share, inside = self._burst(f"{tenant}.share"), self._burst(f"{tenant}.rate_inside")
        return bool(share >= 0.1 and inside >= 1.5 * self._burst(f"{tenant}.rate_outside"))
