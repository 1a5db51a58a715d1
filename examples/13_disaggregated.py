"""When disaggregation wins: eight GPUs, split in four ways, under three loads.

With a split, no decode waits for the prompt of another request, so the gaps between tokens (ITL) are those of decoding
alone. In return, decode instances can no longer help with prompts, and prefill instances cannot help with decoding. A
split wins if prompts would disturb decoding a lot and the split fits the load. It loses if one of the two groups is too
small, or if prompts hardly disturb decoding.
"""

from typing import Any

import headway

FILE = "examples/13_disaggregated.yaml"
LOADS = {  # mean prompt and output tokens, requests a second
    "prompt-heavy": (6000, 100, 15),
    "even": (2000, 250, 25),
    "decode-heavy": (300, 600, 80),
}


def cluster(prefill: int) -> dict[str, Any]:
    if not prefill:
        return {"gpu": "h200", "instances": 8}
    halves = {"prefill": {"instances": prefill}, "decode": {"instances": 8 - prefill}}
    return {"gpu": "h200", "architecture": "disaggregated", **halves}


def changes(prompt: int, output: int, rate: int) -> list[str]:
    return [
        f"workload.rate={rate}/s",
        f"workload.prompt_tokens={{dist: lognormal, mean: {prompt}, std: {prompt * 0.75}, min: 50, max: 16000}}",
        f"workload.output_tokens={{dist: lognormal, mean: {output}, std: {output * 0.8}, min: 2, max: 3000}}",
    ]


def row(label: str, how: str, found: dict[str, Any]) -> str:
    latency, slo = found["latency"], found["slo"]
    figures = (latency["ttft"]["p99"], latency["tpot"]["p99"], latency["itl"]["p99"], latency["e2e"]["mean"])
    return f"{label:14}{how:>14}" + "".join(f"{figure:10,.1f}" for figure in figures) + f"{slo['goodput_ratio']:8.1%}"


print("1,000 requests on 8 GPUs, those that compute prompts + those that generate.")
print("Times in ms; within the SLO: TTFT up to 1 s and TPOT up to 8 ms\n")
print(f"{'':28}{'TTFT p99':>10}{'TPOT p99':>10}{'ITL p99':>10}{'E2E mean':>10}{'in SLO':>8}")
data = headway.Scenario.load(FILE).resolved()
for label, load in LOADS.items():
    for prefill in (0, 2, 4, 6):
        how = f"{prefill} + {8 - prefill}" if prefill else "8 that do both"
        scenario = headway.Scenario.load({**data, "cluster": cluster(prefill)}, changes(*load))
        print(row(label, how, headway.simulate(scenario, routing="least-loaded").summary()))
        label = ""

print("\nPrompts that share prefixes, on 2 + 6: what is found where they are computed\n")
for keep in ("false", "true"):
    shared = ["workload.prefix={groups: 300, tokens: 1500}", f"cluster.transfer.keep_prefill_copy={keep}"]
    for policy in ("least-loaded-pair", "prefix-pair"):
        found = headway.simulate(FILE, overrides=shared, routing=policy).summary()
        hits, ttft = found["cache"]["token_hit_ratio"], found["latency"]["ttft"]["mean"]
        print(f"keep_prefill_copy: {keep:6}{policy:18}{hits:6.1%} cached, mean TTFT {ttft:6.1f} ms")
