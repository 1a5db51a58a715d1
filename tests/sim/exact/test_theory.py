"""Where there is an exact theory the simulator must meet it: queues with known waits, and times worked out by hand."""

from __future__ import annotations

import csv
import gzip
import json
from datetime import datetime
from fractions import Fraction
from heapq import heapreplace
from itertools import pairwise
from math import exp, factorial, sqrt
from pathlib import Path
from random import Random
from statistics import fmean, linear_regression, stdev
from typing import Any

import pytest

import headway
from headway.experiment.run import prepare

Json = dict[str, Any]
PS = 10**12
SURE = 2.6  # standard errors: a bound that holds 99 times of 100; the seeds are fixed, so it holds or it does not
BLOCK = 2500  # requests whose means are taken together, long enough to be nearly independent of the next
SETTLED = 1000  # requests at the start of a run, which begins empty, that are left out


def one_instance(workload: Json, batch: int, p: int, d: int, seed: int = 0, **cluster: Any) -> headway.Result:
    """`fixed` latency of p and d picoseconds a token, without prefix caching."""
    latency = {
        "model": "fixed",
        "prefill_tokens_per_s": str(Fraction(PS, p)),
        "decode_tokens_per_s": str(Fraction(PS, d)),
    }
    kv = {"gpu_blocks": 1_000_000, "prefix_caching": False}
    return headway.simulate(
        {
            "seed": seed,
            "workload": workload,
            "cluster": {"instances": 1, "max_batch_size": batch, "kv": kv, "latency": latency, **cluster},
            "policies": {"routing": "round-robin"},
        }
    )


def waits(result: headway.Result) -> list[int]:
    columns = result.requests
    return [start - came for start, came in zip(columns["started_ps"], columns["arrival_ps"], strict=True)]


def block_means(values: list[float]) -> list[float]:
    """Means of successive blocks, the start of the run left out."""
    return [fmean(values[at : at + BLOCK]) for at in range(SETTLED, len(values) - BLOCK + 1, BLOCK)]


def estimate(means: list[float], control: list[float]) -> tuple[float, float]:
    """A mean and its standard error, freed of what is explained by `control`, whose mean is known to be zero."""
    slope, mean = linear_regression(control, means)
    rest = [value - slope * known for value, known in zip(means, control, strict=True)]
    return mean, stdev(rest) / sqrt(len(rest))


# --- M/D/1 -------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    ("utilisation", "seeds", "requests", "resolution"),
    [
        (0.5, 1, 26_000, 0.03),
        pytest.param(0.5, 2, 41_000, 0.0125, marks=pytest.mark.full),
        pytest.param(0.8, 4, 41_000, 0.016, marks=pytest.mark.full),
    ],
)
def test_batch_1_and_constant_lengths_wait_as_in_m_d_1(
    utilisation: float, seeds: int, requests: int, resolution: float
) -> None:
    """Pollaczek and Khinchine: the mean wait is ρS / 2(1 - ρ), and 1 - ρ of the requests do not wait.

    The wait rises by 2 + ρ / (1 - ρ) per cent with each per cent of rate or service, threefold to sixfold, so with many
    requests an error of 3 % in either is many standard errors away."""
    p, d, prompt, output = 10**8, 10**9, 100, 91
    service = prompt * p + (output - 1) * d
    assert service == PS // 10
    mean_wait = utilisation * service / (2 * (1 - utilisation))
    means: list[float] = []
    idle: list[float] = []
    for seed in range(seeds):
        rate = f"{utilisation * PS / service:.6f}/s"
        workload = {"requests": requests, "rate": rate, "prompt_tokens": prompt, "output_tokens": output}
        result = one_instance(workload, 1, p, d, seed)
        found = waits(result)
        assert found == single_slot_waits(result.requests["arrival_ps"], [service] * len(found))
        means += block_means([float(wait) for wait in found])
        idle += block_means([float(wait == 0) for wait in found])
    # That 1 - ρ find the server idle holds for whatever service law; given that, the rest tells of the wait alone.
    assert abs(fmean(idle) - (1 - utilisation)) < SURE * stdev(idle) / sqrt(len(idle))
    mean, error = estimate(means, [share - (1 - utilisation) for share in idle])
    assert error < resolution * mean_wait
    assert abs(mean - mean_wait) < SURE * error


def single_slot_waits(arrivals: list[int], services: list[int]) -> list[int]:
    free, found = 0, []
    for came, service in zip(arrivals, services, strict=True):
        start = max(came, free)
        found.append(start - came)
        free = start + service
    return found


def test_poisson_arrivals_are_poisson() -> None:
    """Exponential gaps: mean, standard deviation and tail as they should be, and no memory of the gap before."""
    workload = {"requests": 60_000, "rate": "100/s", "prompt_tokens": 1, "output_tokens": 1}
    traffic = prepare(headway.Scenario.load({"seed": 3, "workload": workload, "cluster": {}})).traffic()
    arrivals = [traffic.take().request.arrival_ps for _ in range(60_000)]
    gaps = [(later - came) / (PS / 100) for came, later in pairwise(arrivals)]
    many = len(gaps)
    assert abs(fmean(gaps) - 1) < SURE / sqrt(many)
    assert abs(stdev(gaps) - 1) < SURE * sqrt(2 / many)
    for longer in (0.1, 1, 3):
        share = exp(-longer)
        assert abs(sum(gap > longer for gap in gaps) / many - share) < SURE * sqrt(share * (1 - share) / many)
    memory = fmean((gap - 1) * (after - 1) for gap, after in pairwise(gaps))
    assert abs(memory) < SURE / sqrt(many)


# --- M/M/c -------------------------------------------------------------------------------------------------------


def erlang_c(servers: int, offered: float) -> float:
    """The probability of having to wait."""
    full = offered**servers / factorial(servers) * servers / (servers - offered)
    return full / (sum(offered**k / factorial(k) for k in range(servers)) + full)


def slot_waits(result: headway.Result, slots: int, p: int, d: int) -> list[int]:
    """Waits at so many slots of which each serves alone and starts at any time."""
    free = [0] * slots
    found = []
    for came, output in zip(result.requests["arrival_ps"], result.requests["output_tokens"], strict=True):
        start = max(came, free[0])
        heapreplace(free, start + p + (output - 1) * d)
        found.append(start - came)
    return found


@pytest.mark.parametrize(
    ("servers", "utilisation", "seeds", "requests", "resolution"),
    [
        pytest.param(3, 0.6, 1, 16_000, 0.1, marks=pytest.mark.full),
        *(
            pytest.param(servers, utilisation, 3, 36_000, 0.04, marks=pytest.mark.full)
            for servers, utilisation in ((2, 0.5), (8, 0.7))
        ),
    ],
)
def test_a_batch_of_c_and_exponential_outputs_wait_as_in_m_m_c(
    servers: int, utilisation: float, seeds: int, requests: int, resolution: float
) -> None:
    """A decode step takes 1 ms however many decode, an output 2000 steps on average, a prompt next to nothing. A wait
    of a step or less is the way to the next step boundary, not a queue; of that, nobody waits less than at c slots that
    can start at any time, and all wait little more."""
    p, d, mean_output = 10**6, 10**9, 2000
    # Lengths are rounded to whole tokens, at least 1, and the first comes with the prefill.
    steps = sum(exp(-(length - 0.5) / mean_output) for length in range(2, 60 * mean_output))
    service = p + steps * d
    rate = servers * utilisation / service
    waiting = erlang_c(servers, servers * utilisation)
    drain = servers / service - rate
    beyond_a_step = waiting * exp(-drain * d)
    means: list[float] = []
    queued: list[float] = []
    control: list[float] = []
    for seed in range(seeds):
        workload = {
            "requests": requests,
            "rate": f"{rate * PS:.9f}/s",
            "prompt_tokens": 1,
            "output_tokens": {"dist": "exponential", "mean": mean_output},
        }
        result = one_instance(workload, servers, p, d, seed)
        found = waits(result)
        ideal = slot_waits(result, servers, p, d)
        assert all(wait >= least for wait, least in zip(found, ideal, strict=True))
        assert fmean(found) < 1.01 * fmean(ideal)
        arrivals, outputs = result.requests["arrival_ps"], result.requests["output_tokens"]
        gaps = [0.0] + [float(later - came) for came, later in pairwise(arrivals)]
        means += block_means([float(wait) for wait in found])
        queued += block_means([float(wait > d) for wait in found])
        loads = zip(block_means([float(length - 1) for length in outputs]), block_means(gaps), strict=True)
        control += [length / steps - gap * rate for length, gap in loads]
    wait, wait_error = estimate(means, control)
    assert wait_error < resolution * waiting / drain
    assert abs(wait - waiting / drain) < SURE * wait_error
    share, share_error = estimate(queued, control)
    assert share_error < resolution / 2 * beyond_a_step
    assert abs(share - beyond_a_step) < SURE * share_error


# --- one slot, first come first served, to the picosecond --------------------------------------------------------


def check_single_slot(
    result: headway.Result, trace: list[tuple[int, int, int]], p: int, d: int, hits: list[int] | None = None
) -> None:
    """Rows of (arrival, prompt, output) against one slot that takes them in order."""
    columns = result.requests
    assert columns["outcome"] == ["completed"] * len(trace)
    free = 0
    for row, (came, prompt, output) in enumerate(trace):
        start = max(came, free)
        first = start + (prompt - (hits[row] if hits else 0)) * p
        free = first + (output - 1) * d
        expected = (came, start, first, free, prompt, output)
        names = ("arrival_ps", "started_ps", "first_token_ps", "finished_ps", "prompt_tokens", "output_tokens")
        assert tuple(columns[name][row] for name in names) == expected, f"request {row}"


@pytest.mark.parametrize("budget", [1, 100, 2048])
def test_on_a_made_up_trace_batch_1_is_a_single_slot(budget: int, tmp_path: Path) -> None:
    rng = Random(4)
    at = 0
    rows: list[Json] = []
    for number in range(300):
        at += rng.choice([0, 0, 1, 3, 40, 200])
        prompt, output = rng.randint(1, 700), rng.choice([1, 1, 2, rng.randint(1, 90)])
        ids = [number * 2 + block for block in range(-(-prompt // 512))]
        rows.append({"timestamp": at, "input_length": prompt, "output_length": output, "hash_ids": ids})
    file = tmp_path / "made-up.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trace = [(row["timestamp"] * 10**9, row["input_length"], row["output_length"]) for row in rows]
    p, d = 41_666_667, 1_234_567_891
    workload = {"trace": {"format": "mooncake", "path": str(file)}}
    check_single_slot(one_instance(workload, 1, p, d, max_batch_tokens=budget), trace, p, d)


@pytest.mark.full
def test_on_the_azure_code_trace_batch_1_is_a_single_slot(traces: Path) -> None:
    file = traces / "azure-llm-2023" / "AzureLLMInferenceTrace_code.csv"
    trace: list[tuple[int, int, int]] = []
    with file.open(newline="") as text:
        for row in csv.DictReader(text):
            clock, _, digits = row["TIMESTAMP"].partition(".")
            seconds = int((datetime.fromisoformat(clock) - datetime(2023, 11, 16)).total_seconds())
            came = seconds * PS + int(digits.ljust(12, "0"))
            trace.append((came, int(row["ContextTokens"]), int(row["GeneratedTokens"])))
    trace = [(came - trace[0][0], prompt, output) for came, prompt, output in trace]
    p, d = 10**8, 10**10
    check_single_slot(one_instance({"trace": {"path": str(file)}}, 1, p, d), trace, p, d)


def test_on_the_mooncake_trace_an_endless_cache_saves_what_its_blocks_say(traces: Path) -> None:
    """One slot and room for everything: a request hits whatever full 16-token blocks any earlier prompt began with,
    but for the last token."""
    file = traces / "mooncake" / "synthetic_trace.jsonl.gz"
    rows = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    known: dict[tuple[int, int], int] = {}  # block after block -> the most tokens of it that were ever computed
    hits: list[int] = []
    for row in rows:
        prompt, parent, shared, going = row["input_length"], -1, 0, True
        for at, block in enumerate(row["hash_ids"]):
            tokens = min(512, prompt - 512 * at)
            common = min(tokens, known.get((parent, block), 0))
            if going:
                shared += common
            going = going and common == 512
            known[parent, block] = max(tokens, known.get((parent, block), 0))
            parent = block
        hits.append(min(shared // 16 * 16, (prompt - 1) // 16 * 16))
    assert sum(hits) > 30_000_000
    p, d = 2 * 10**7, 10**10
    trace = [(row["timestamp"] * 10**9, row["input_length"], row["output_length"]) for row in rows]
    kv = {"gpu_blocks": 100_000_000}
    result = one_instance({"trace": {"path": str(file)}}, 1, p, d, kv=kv)
    assert result.requests["cached_tokens"] == hits
    check_single_slot(result, trace, p, d, hits)


# --- a lone request, by hand -------------------------------------------------------------------------------------

PROMPT, OUTPUT, BUDGET = 3000, 5, 2048
CHUNKS = [(2048, 0), (952, 2048)]  # tokens, past
CONTEXTS = [3001, 3002, 3003, 3004]  # of the four decode steps: the prompt and the tokens so far


def lone(latency: Json, **cluster: Any) -> tuple[int, int]:
    """First and last token of a request that has the cluster to itself."""
    workload = {"requests": 1, "rate": "1/s", "arrival": "constant", "prompt_tokens": PROMPT, "output_tokens": OUTPUT}
    cluster = {"instances": 1, "max_batch_tokens": BUDGET, "latency": latency, **cluster}
    columns = headway.simulate({"workload": workload, "cluster": cluster}).requests
    assert columns["arrival_ps"] == columns["started_ps"] == [0]
    return columns["first_token_ps"][0], columns["finished_ps"][0]


def test_a_lone_request_under_fixed() -> None:
    latency = {"model": "fixed", "prefill_tokens_per_s": 3000, "decode_tokens_per_s": 70}
    p, d = 333_333_333, 14_285_714_286
    assert lone(latency) == (PROMPT * p, PROMPT * p + (OUTPUT - 1) * d)


def test_a_lone_request_under_linear() -> None:
    terms = {"prefill_token": "20us", "prefill_pair": "1.5ns", "sequence": "13us", "context_token": "41ns"}
    us, ns = 10**6, 10**3
    first = 0
    for tokens, past in CHUNKS:
        pairs = tokens * past + tokens * (tokens + 1) // 2
        first += 7000 * us + 20 * us * tokens + 3 * ns * pairs // 2 + 13 * us
    last = first + sum(7000 * us + 13 * us + 41 * ns * context for context in CONTEXTS)
    assert lone({"model": "linear", "step": "7ms", **terms}) == (first, last)


def test_a_lone_request_under_piecewise() -> None:
    """RouteSim's defaults: 50,000 tokens a second of prefill, 80 of decode at batch 1."""
    first = PROMPT * PS // 50_000
    assert lone({"model": "piecewise"}) == (first, first + (OUTPUT - 1) * PS // 80)


def test_two_requests_under_piecewise_share_the_curve() -> None:
    """At batch 2 the throughput is 80 + (3200 - 80) / 63 tokens a second, so a step takes 2 over that."""
    workload = {"requests": 2, "rate": "1000000/s", "arrival": "constant", "prompt_tokens": 1000, "output_tokens": 3}
    cluster = {"instances": 1, "max_batch_tokens": 2048, "latency": {"model": "piecewise"}}
    columns = headway.simulate({"workload": workload, "cluster": cluster}).requests
    # The second comes 1 µs after the first's step began: it prefills in the next step, with the first's decode.
    one, pair = PS // 80, round(2 * PS / (80 + Fraction(3200 - 80, 63)))
    prefill = 1000 * PS // 50_000
    firsts = [prefill, prefill + one + prefill]
    assert columns["first_token_ps"] == firsts
    assert columns["finished_ps"] == [firsts[1] + pair, firsts[1] + pair + one]


@pytest.mark.parametrize(
    ("gpu", "flops", "bandwidth"),
    [("h100", 989e12, 3.35e12), ("a100-80gb", 312e12, 2.0e12), ("l40s", 362e12, 0.864e12)],
)
def test_a_lone_request_under_roofline(gpu: str, flops: float, bandwidth: float) -> None:
    """Llama 3.1 8B: 32 layers of 32 heads of 128, 8 of them with keys and values, in BF16."""
    mfu, mbu, overhead = 0.5, 0.7, 0.002
    params, kv_bytes = 8_030_261_248, 2 * 32 * 8 * 128 * 2

    def step(tokens: int, pairs: int, reads: int) -> float:
        compute = (2 * params * tokens + 4 * 32 * 128 * 32 * pairs) / (flops * mfu)
        memory = (2 * params + kv_bytes * reads) / (bandwidth * mbu)
        return max(compute, memory) + overhead

    first = sum(step(t, t * past + t * (t + 1) // 2, past + t) for t, past in CHUNKS)
    last = first + sum(step(1, context, context) for context in CONTEXTS)
    latency = {"model": "roofline", "mfu": mfu, "mbu": mbu, "overhead": "2ms"}
    found = lone(latency, gpu=gpu, model="llama-3.1-8b")
    assert [at / PS for at in found] == pytest.approx([first, last], rel=1e-6)


def test_a_single_output_token_ends_with_the_prefill() -> None:
    workload = {"requests": 1, "rate": "1/s", "arrival": "constant", "prompt_tokens": 10, "output_tokens": 1}
    columns = one_instance(workload, 1, 7, 1_000_003).requests
    assert columns["first_token_ps"] == columns["finished_ps"] == [70]
