"""What vLLM tells of its cache corrects what the gateway believes, and what is lost on the way is noticed."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_model
from known_gateway import before, believed, hearing, sent
from vllm_engine import BLOCK, BLOCKS, Vllm

pytestmark = pytest.mark.live

TOKENS = 20 * BLOCK


def prompt(number: int) -> str:
    """Whole blocks, of which each is told."""
    return tiny_model.text(TOKENS, 500 + number)


def heard(gateway: Any, engine: Vllm) -> Any:
    return gateway.app.listener.engines[engine.name].counts


def trust(gateway: Any, engine: Vllm) -> str:
    return str(gateway.app.plane.beliefs.trust(gateway.app.fleet.names.get(engine.name).place))


def test_prompts_sent_behind_the_gateways_back_are_believed_where_they_are(live, vllm: list[Vllm]) -> None:
    gateway = hearing(before(live, vllm), vllm)
    places = {prompt(number): vllm[number in (1, 2)] for number in range(4)}
    for text, engine in places.items():
        engine.prefill(text)
    for text, engine in places.items():
        gateway.until(lambda text=text, engine=engine: believed(gateway, engine, text) == TOKENS)
        assert [believed(gateway, other, text) for other in vllm if other is not engine] == [0]
    hits = [engine.counter("vllm:prefix_cache_hits_total") for engine in vllm]
    assert [sent(gateway, text) for text in places] == [engine.name for engine in places.values()]
    # The last token is computed in any case, and with it its block.
    assert [engine.counter("vllm:prefix_cache_hits_total") for engine in vllm] == [
        one + 2 * (TOKENS - BLOCK) for one in hits
    ]


def test_what_an_engine_has_let_go_of_is_believed_no_longer(live, vllm: list[Vllm]) -> None:
    gateway = hearing(before(live, vllm), vllm)
    name = sent(gateway, prompt(10))
    engine = next(one for one in vllm if one.name == name)
    assert believed(gateway, engine, prompt(10)) == TOKENS
    gateway.until(lambda: trust(gateway, engine) == "exact")
    engine.forget()
    engine.prefill(prompt(11))  # it tells with the next step
    gateway.until(lambda: believed(gateway, engine, prompt(11)) == TOKENS)
    assert believed(gateway, engine, prompt(10)) == 0


def test_a_lost_event_is_noticed_and_asked_for_again(live, vllm: list[Vllm]) -> None:
    gateway, engine = hearing(before(live, vllm, events=lambda engine: engine.relay.endpoint), vllm), vllm[0]
    engine.prefill(prompt(20))
    gateway.until(lambda: believed(gateway, engine, prompt(20)) == TOKENS)
    gaps = heard(gateway, engine).gaps

    engine.relay.lose(1)
    engine.prefill(prompt(21))
    engine.relay.until(lambda: engine.relay.lossless)
    assert believed(gateway, engine, prompt(21)) == 0
    engine.prefill(prompt(22))
    gateway.until(lambda: believed(gateway, engine, prompt(22)) == TOKENS)
    assert heard(gateway, engine).gaps == gaps + 1 and heard(gateway, engine).replayed
    assert [believed(gateway, engine, prompt(number)) for number in (20, 21)] == [TOKENS, TOKENS]
    assert trust(gateway, engine) == "exact"


def test_where_nothing_can_be_asked_for_again_what_was_known_is_given_up_until_the_cache_is_known(
    live, vllm: list[Vllm]
) -> None:
    gateway = before(live, vllm, events=lambda engine: engine.relay.endpoint, events_replay=lambda _: None)
    engine = vllm[0]
    hearing(gateway, vllm)
    engine.prefill(prompt(30))
    gateway.until(lambda: believed(gateway, engine, prompt(30)) == TOKENS)
    assert trust(gateway, engine) == "partial"  # of what was before it came

    engine.relay.lose(1)
    engine.prefill(prompt(31))
    engine.relay.until(lambda: engine.relay.lossless)
    engine.prefill(prompt(32))
    gateway.until(lambda: believed(gateway, engine, prompt(32)) == TOKENS)
    assert heard(gateway, engine).gaps == 1
    assert [believed(gateway, engine, prompt(number)) for number in (30, 31)] == [0, 0]
    target = next(one for one in vllm if one.name == sent(gateway, prompt(33)))
    assert believed(gateway, target, prompt(33)) == TOKENS  # what it sends itself it believes meanwhile

    engine.forget()
    engine.prefill(prompt(34))
    gateway.until(lambda: trust(gateway, engine) == "exact" and believed(gateway, engine, prompt(34)) == TOKENS)
    assert believed(gateway, engine, prompt(32)) == 0


def test_the_load_that_others_bring_is_seen(live, vllm: list[Vllm]) -> None:
    gateway = before(live, vllm)
    views = [gateway.app.plane.views[gateway.app.fleet.names.get(engine.name).place] for engine in vllm]
    gateway.until(lambda: all(view.observed_at is not None for view in views))
    assert [view.kv_blocks * gateway.app.plane.block_tokens for view in views] == [BLOCKS * BLOCK] * 2

    ask = {"model": tiny_model.NAME, "prompt": prompt(50), "max_tokens": 7000, "extra_body": {"ignore_eos": True}}
    with vllm[1].client().completions.create(**ask, stream=True):
        gateway.until(lambda: views[1].running == 1 and views[1].kv_used > 0)
        assert views[0].running == 0 and views[1].inflight == 0
    gateway.until(lambda: views[1].running == 0)
