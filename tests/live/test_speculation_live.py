"""vLLM with n-gram speculation, and the simulator with the acceptance that vLLM measured: the same steps."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise

import pytest
import tiny_model
from msgspec import Struct
from vllm_engine import BATCH, BLOCK, BLOCKS, BUDGET, INSTALLED, Vllm

import headway

pytestmark = pytest.mark.live

DRAFTS = 4
REQUESTS, PROMPT, OUTPUT = 12, 96, 160
METHOD = {"method": "ngram", "num_speculative_tokens": DRAFTS, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


class Told(Struct):
    """What the engine tells of its steps."""

    steps: float
    drafts: float
    drafted: float
    accepted: float
    tokens: float
    by_position: list[float]

    def since(self, before: Told) -> Told:
        rows = zip(self.by_position, before.by_position, strict=True)
        pairs = ((getattr(self, name), getattr(before, name)) for name in self.__struct_fields__[:-1])
        return Told(*(now - then for now, then in pairs), [now - then for now, then in rows])


def told(engine: Vllm) -> Told:
    page = engine.metrics()
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    found = re.findall(rf'^{name}{{[^}}]*position="(\d+)"[^}}]*}} (\S+)$', page, re.MULTILINE)
    by_position = {int(position): float(value) for position, value in found}
    return Told(
        engine.counter("vllm:iteration_tokens_total_count"),
        engine.counter("vllm:spec_decode_num_drafts_total"),
        engine.counter("vllm:spec_decode_num_draft_tokens_total"),
        engine.counter("vllm:spec_decode_num_accepted_tokens_total"),
        engine.counter("vllm:generation_tokens_total"),
        [by_position[position] for position in range(DRAFTS)],
    )


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    if not INSTALLED.is_file():
        pytest.skip("vLLM on the CPU is not installed (`make live`)")
    folder = tmp_path_factory.mktemp("drafting")
    engine = Vllm("d0", tiny_model.write(folder / "model"), folder, None, ("--speculative-config", json.dumps(METHOD)))
    try:
        engine.wait()
        yield engine
    finally:
        engine.stop()


def repeated(number: int) -> str:
    """A prompt that says the same again and again, so that its n-grams foretell what comes."""
    few = tiny_model.text(8, 500 + number)
    return " ".join([few] * (PROMPT // 8))


def ask(engine: Vllm, number: int) -> list[int]:
    """The tokens that had come after each delivery."""
    answer = engine.client().completions.create(
        model=tiny_model.NAME,
        prompt=repeated(number),
        max_tokens=OUTPUT,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={
            "ignore_eos": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
    )
    seen = [chunk.usage.completion_tokens for chunk in answer if chunk.usage is not None]
    return sorted(set(seen))


def test_with_the_acceptance_that_vllm_measures_the_simulator_takes_as_many_steps(drafting: Vllm) -> None:
    ask(drafting, 99)  # so that nothing is its first
    before = told(drafting)
    deliveries = [ask(drafting, number) for number in range(REQUESTS)]
    real = told(drafting).since(before)
    decode_steps = real.steps - REQUESTS
    print(f"vLLM: {real}, {decode_steps:g} steps of decodes")
    assert real.tokens == REQUESTS * OUTPUT
    assert 0 < real.accepted <= real.drafted <= DRAFTS * real.drafts
    assert real.drafts <= decode_steps
    assert sum(real.by_position) == real.accepted

    # The tokens of a step come as one delivery. On a busy machine, vLLM's server joins the deliveries of some steps.
    assert 0.8 * real.steps < sum(map(len, deliveries)) <= real.steps + REQUESTS
    gains = [later - sooner for one in deliveries for sooner, later in pairwise(one)]
    assert sum(gain > DRAFTS + 1 for gain in gains) <= 0.2 * len(gains)
    assert any(1 < gain <= DRAFTS + 1 for gain in gains)

    # A step without drafts is one in which the first is not accepted.
    reached = [decode_steps, *real.by_position]
    acceptance = [now / then if then else 0 for then, now in pairwise(reached)]
    scenario = {
        "workload": {
            "requests": REQUESTS,
            "rate": "1/s",
            "arrival": "constant",
            "prompt_tokens": PROMPT,
            "output_tokens": OUTPUT,
        },
        "cluster": {
            "instances": 1,
            "max_batch_size": BATCH,
            "max_batch_tokens": BUDGET,
            "kv": {"block_tokens": BLOCK, "gpu_blocks": BLOCKS},
            "latency": {"model": "fixed", "prefill_tokens_per_s": 100_000, "decode_tokens_per_s": 1000},
            "speculation": {"tokens": DRAFTS, "acceptance": acceptance},
        },
        "warmup": 0,
    }
    summary = headway.simulate(scenario, progress=False).summary()
    simulated = summary["speculation"]
    (instance,) = summary["instances"]
    print(f"simulator: {instance['steps']} steps, {simulated}; acceptance by position {acceptance}")
    assert simulated["tokens_per_step"] == pytest.approx(1 + real.accepted / decode_steps, rel=0.01)
    assert instance["steps"] == pytest.approx(real.steps, rel=0.05)
