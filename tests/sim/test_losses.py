"""What becomes of requests when the instance goes that has them, where that is more than one place, or more than one
request: prompts computed apart, stores below the GPU, several routers, stale reports."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import headway
from drawn_policies import Witness
from headway import Route
from headway.errors import HeadwayError
from headway.types import Scale
from lived import BLOCK, MS, Told, lived, ms, requests, rows, scenario, states

TOKEN_BYTES = 131_072  # of llama-3.1-8b
PROMPT, ANSWER = 480, 5
# One request alone: chunks of its prompt by 16, 32 and 48 ms, the last of its blocks by 63 ms, tokens until 103 ms.
HANDED, THERE, END = 48, 63, 103


def apart(workload: dict[str, Any], prefill: int = 2, decode: int = 2, **more: Any) -> dict[str, Any]:
    """A block a millisecond over the link, and 5 ms of latency; chunks of 160 tokens, sent as they are computed."""
    bounds = {"min_replicas": 0, "max_replicas": 4}
    more.setdefault("transfer", {"pipelined": True})
    transfer = {"latency": "5ms", "bandwidth": f"{TOKEN_BYTES * 16_000}B/s"} | more.pop("transfer")
    found = scenario(
        workload,
        architecture="disaggregated",
        prefill={"instances": prefill, **bounds, **more.pop("of_prefill", {})},
        decode={"instances": decode, **bounds, **more.pop("of_decode", {})},
        transfer=transfer,
        max_batch_tokens=160,
        **more,
    )
    del found["cluster"]["instances"]
    return found


# --- prompts computed apart --------------------------------------------------------------------------------------

STAGES = {"the prompt is computed": 8, "it is half there": 24, "it is on its way": 55, "it decodes": 70}
# First and last token by half, by stage. From the beginning on another instance: HANDED and END later. Where the prompt
# is still computed as the other half goes, it is done with its chunk, which is cached when it comes again; but cached
# chunks set out with the next, so that two or three of them are then on their way at once.
CRASHED: dict[str, list[tuple[float, float]]] = {
    "prefill": [(8 + HANDED, 8 + END), (24 + HANDED, 24 + END), (55 + HANDED, 55 + END), (HANDED, END)],
    "decode": [(HANDED, 32 + 20 + 10 + 5 + 40), (HANDED, 48 + 30 + 5 + 40), (55 + HANDED, 55 + END), (118, 70 + END)],
}
# Another comes up a millisecond later. Who had its first token has 481 tokens computed where it goes on to generate.
REDIRECTED: dict[str, list[tuple[float, float]]] = {
    "prefill": [(9 + HANDED, 9 + END), (25 + HANDED, 25 + END), (HANDED, 56 + 48.1 + 30), (HANDED, END)],
    "decode": [*CRASHED["decode"][:2], (HANDED, 56 + 48.1 + 30), (HANDED, 71 + 48.1 + 30)],
}


class TheSecond:
    """Chooses the last of each half."""

    pairs = True

    def route(self, request: Any, cluster: Any) -> Route:
        prompts = [view.id for view in cluster.instances if view.role == "prefill"]
        others = [view.id for view in cluster.instances if view.role == "decode"]
        return Route(others[-1], prefill=prompts[-1])


@pytest.mark.parametrize("half", ["prefill", "decode"])
@pytest.mark.parametrize("number", range(4), ids=list(STAGES))
@pytest.mark.parametrize("kind", ["crash", "unreachable"])
def test_an_instance_is_lost_at_every_stage_of_a_handover(tmp_path: Path, half: str, number: int, kind: str) -> None:
    at = list(STAGES.values())[number]
    given = apart(requests(tmp_path, (0, PROMPT, ANSWER)), retries=1)
    given["faults"] = [{"at": f"{at}ms", "instance": f"{half}-1", "kind": kind}]
    result = lived(given, routing=TheSecond())
    (row,) = rows(result)
    first, last = CRASHED[half][number]
    assert row["outcome"] == "completed"
    assert (row["first_token_ps"] / MS, row["finished_ps"] / MS) == (first, last)
    assert row.get("retries", 0) == (last != END)
    (row,) = rows(lived({**given, "retries": 0}, routing=TheSecond()))
    assert (row["outcome"], row["finished_ps"]) == (("completed", END * MS) if last == END else ("failed", at * MS))
    assert row["output_tokens"] == (ANSWER if last == END else int(at > HANDED))


@pytest.mark.parametrize("half", ["prefill", "decode"])
@pytest.mark.parametrize("number", range(4), ids=list(STAGES))
def test_an_instance_is_emptied_at_every_stage_of_a_handover(tmp_path: Path, half: str, number: int) -> None:
    at = list(STAGES.values())[number]
    given = apart(requests(tmp_path, (0, PROMPT, ANSWER)), 1, 1)
    given["scaling"] = {"interval": "1ms", "drain": {"mode": "redirect"}}
    result = lived(given, partial(Told, **{half: [(at, 0), (at + 1, 1)]}))
    (row,) = rows(result)
    first, last = REDIRECTED[half][number]
    assert (row["outcome"], row["output_tokens"]) == ("completed", ANSWER)
    assert (row["first_token_ps"] / MS, row["finished_ps"] / MS) == (first, pytest.approx(last, abs=1e-9))
    assert (row.get("redirects", 0), row.get("retries", 0)) == (int(last != END), 0)
    there = row.get("transferred_ps", -1)
    assert there == -1 or there <= row["finished_ps"]


@pytest.mark.parametrize("half", ["prefill", "decode"])
@pytest.mark.parametrize("how", ["crash", "redirect"])
def test_a_half_goes_while_a_request_waits_for_room(tmp_path: Path, half: str, how: str) -> None:
    """The decode instance has room for one of the two at a time: the other waits from 32 ms until 225 ms."""
    work = requests(tmp_path, (0, 160, 20), (0, 160, 20))
    given = apart(work, 1, 1, of_decode={"kv": {"gpu_blocks": 12}}, transfer={}, retries=1)
    undisturbed = lived(given)
    assert ms(undisturbed, "finished_ps") == [16 + 15 + 190, 221 + 15 + 190]
    make = None
    if how == "crash":
        given["faults"] = [{"at": "100ms", "instance": f"{half}-0", "kind": "crash", "duration": "1ms"}]
    else:
        given["scaling"] = {"interval": "1ms", "drain": {"mode": "redirect"}}
        make = partial(Told, **{half: [(100, 0), (101, 1)]})
    result = lived(given, make)
    assert result.requests["outcome"] == ["completed"] * 2
    again = result.requests["retries" if how == "crash" else "redirects"]
    assert again == ([0, 1] if half == "prefill" else [1, 1])
    if half == "prefill":
        assert ms(result, "finished_ps")[0] == 221  # it has all it needs
    if how == "redirect":  # each has its first token, and what follows is computed where the rest is
        assert ms(result, "first_token_ps") == [16, 32]


def test_what_is_left_of_a_request_on_the_other_half_ends_with_its_step(tmp_path: Path) -> None:
    """The decode instance crashes in the middle of the prompt's only step: the request has failed at once, and the run
    goes on until the step has ended."""
    given = apart(requests(tmp_path, (0, 160, 5)), 1, 1, transfer={})
    given["faults"] = [{"at": "10ms", "instance": "decode-0", "kind": "crash"}]
    result = lived(given)
    assert (result.requests["outcome"], ms(result, "finished_ps")) == (["failed"], [10])
    assert result.summary()["duration_s"] == 0.016
    given["scaling"] = {"interval": "5ms"}
    result = lived(given, partial(Told, prefill=[(5, 0)]))
    assert states(result, 0)[1:] == [(5, "draining"), (16, "stopped")]  # not while it computes


def test_what_was_computed_of_a_prompt_counts_up_to_the_step_under_way(tmp_path: Path) -> None:
    """Of three chunks one is done as the decode instance crashes, and one is lost; it and the first are cached when the
    prompt comes again, and the third is computed."""
    given = apart(requests(tmp_path, (0, PROMPT, ANSWER)), 1, 2, transfer={}, retries=1)
    given["faults"] = [{"at": "24ms", "instance": "decode-0", "kind": "crash"}]
    prefill = lived(given).summary()["instances"][0]
    assert (prefill["prefill_tokens"], prefill["cached_tokens"]) == (160 + 160, 320)


@pytest.mark.parametrize("half", ["prefill", "decode"])
def test_a_client_has_gone_and_then_an_instance_does(tmp_path: Path, half: str) -> None:
    given = apart({**requests(tmp_path, (0, 160, 5)), "timeout": "5ms"}, 1, 1, retries=3)
    given["faults"] = [{"at": "10ms", "instance": f"{half}-0", "kind": "crash", "duration": "1ms"}]
    result = lived(given)
    assert result.requests["outcome"] == ["timed_out"]
    assert result.requests["retries"] == [0]
    assert ms(result, "finished_ps") == [10 if half == "prefill" else 16]


# --- what an instance takes with it ------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", ["crash", "unreachable"])
def test_an_instances_own_stores_go_with_it_and_shared_ones_stay(tmp_path: Path, shared: bool, kind: str) -> None:
    """Ten blocks are moved to the store by a prompt that takes all of the GPU's."""
    tiers = {"cpu": {"blocks": 100, "shared": shared}}
    work = requests(tmp_path, (0, 160, 1, 9), (50, 320, 1), (200, 160, 1, 9))
    fault = {"at": "100ms", "instance": "instance-0", "kind": kind, "duration": "1ms"}
    given = scenario(work, kv={"gpu_blocks": 20, "tiers": tiers}, faults=[fault])
    kept = shared or kind == "unreachable"
    assert lived(given).requests["loaded_tokens"] == [0, 0, 144 if kept else 0]


def test_a_new_instance_has_no_adapters() -> None:
    work = {"requests": 3, "rate": "10/s", "arrival": "constant", "prompt_tokens": 16, "output_tokens": 2}
    given = scenario({**work, "adapters": ["a"]}, adapters={"slots": 2, "load_time": "7ms"})
    came = ms(lived(given), "arrival_ps")
    at = f"{(came[1] + came[2]) / 2}ms"
    for kind, slow in (("crash", True), ("unreachable", False)):
        result = lived({**given, "faults": [{"at": at, "instance": "instance-0", "kind": kind, "duration": "1ms"}]})
        first = [at - since for at, since in zip(ms(result, "first_token_ps"), came, strict=True)]
        assert first == pytest.approx([8.6, 1.6, 8.6 if slow else 1.6])


@pytest.mark.parametrize("routing", ["prefix-affinity", "lmetric", "weighted"])
@pytest.mark.parametrize("routers", [1, 3])
def test_nobody_believes_in_the_cache_of_an_instance_that_is_gone(tmp_path: Path, routing: str, routers: int) -> None:
    """Eight prompts, a crash, and the prompts once more after the routers have told each other."""
    work = requests(
        tmp_path, *((at, 160, 1, at % 8) for at in range(8)), *((300 + 40 * at, 160, 1, at) for at in range(8))
    )
    crash = {"at": "200ms", "instance": "instance-0", "kind": "crash", "duration": "1ms"}
    spec = {"name": routing} if routing == "weighted" else {"name": routing, "block_tokens": BLOCK}
    given = scenario(work, policies={"routing": spec}, routers={"count": routers, "sync_interval": "250ms"})
    believed = lived(given).requests["predicted_tokens"][8:]
    assert all(believed)  # all routers know of all
    result = lived({**given, "faults": [crash]})
    assert result.requests["predicted_tokens"][8:] == [0] * 8 == result.requests["cached_tokens"][8:]


def test_what_an_instance_had_evicted_is_not_told_of_its_successor(tmp_path: Path) -> None:
    """It crashes at 100 ms; the prompt is there again by 126 ms, and the router would hear of evictions at 150 ms."""
    crash = {"at": "100ms", "instance": "instance-0", "kind": "crash", "duration": "1ms"}
    work = requests(tmp_path, (0, 160, 1, 9), (110, 160, 1, 9), (160, 160, 1, 9))
    for tiers in (None, {"cpu": {"blocks": 100}}):
        given = scenario(
            work, kv={"gpu_blocks": 100, "tiers": tiers}, signals={"kv_event_delay": "50ms"}, faults=[crash]
        )
        given["policies"]["routing"] = {"name": "prefix-affinity", "block_tokens": BLOCK}
        result = lived(given)
        assert result.requests["predicted_tokens"] == [0, 0, 160]
        assert result.requests["cached_tokens"] == [0, 0, 144]


def test_a_session_goes_elsewhere_with_its_instance_gone(tmp_path: Path) -> None:
    crash = {"at": "100ms", "instance": "instance-0", "kind": "crash"}
    for routing in ("sticky", "session-affinity", "unified"):
        given = scenario({"requests": 40, "rate": "100/s", "kind": "chat"}, 3, faults=[crash], retries=1)
        given["policies"]["routing"] = routing
        result = lived(given)
        late = [row for row in rows(result) if row["arrival_ps"] > 100 * MS]
        assert late and all(row["instance"] != 0 for row in late)


# --- several requests, several routers, stale reports ----------------------------------------------------------------


@pytest.mark.parametrize("how", ["crash", "immediate", "redirect", "wait"])
@pytest.mark.parametrize("routers", [1, 3])
@pytest.mark.parametrize("polled", [False, True])
def test_requests_go_on_whatever_the_routers_know(tmp_path: Path, how: str, routers: int, polled: bool) -> None:
    work = requests(tmp_path, *((at * 4, 40, 1 + at % 7) for at in range(40)))
    given = scenario(work, 3, min_replicas=0, max_replicas=3, max_batch_size=4, retries=3)
    given["routers"] = {"count": routers, "sync_interval": "20ms"}
    given["policies"]["routing"] = "least-kv"
    if polled:
        given["signals"] = {"poll_interval": "30ms", "poll_delay": "10ms"}
    make = None
    if how == "crash":
        given["faults"] = [
            {"at": f"{10 + 40 * at}ms", "instance": f"instance-{at}", "kind": "crash", "duration": "50ms"}
            for at in range(3)
        ]
    else:
        given["scaling"] = {"interval": "10ms", "model_load": "3ms", "drain": {"mode": how}}
        make = partial(Told, (20, 1), (60, 3), (90, 0), (110, 2))
    result = lived(given, make)
    assert result.requests["outcome"] == ["completed"] * 40
    if how != "wait":
        assert sum(result.requests["redirects" if how == "redirect" else "retries"]) > 0


@pytest.mark.parametrize("first_token", ["prefill", "decode"])
@pytest.mark.parametrize("routers", [1, 2])
def test_who_hears_of_an_instance_or_a_handover_sees_all_as_it_is_then(
    tmp_path: Path, first_token: str, routers: int
) -> None:
    """The witness writes down all that it is shown with each event: the same however the steps are walked."""
    work = requests(tmp_path, *((at * 9, 100, 30) for at in range(9)))
    given = apart(work, of_decode={"max_batch_size": 3}, transfer={"first_token": first_token}, retries=9)
    given["cluster"]["kv"]["block_tokens"] = 1  # a block a token: what is seen of the cache goes up with every step
    given["routers"] = {"count": routers, "sync_interval": "20ms"}
    given["scaling"] = {"interval": "33ms", "provisioning": "1ms", "drain": {"mode": "redirect"}}
    given["faults"] = [{"at": "77777us", "instance": "decode-0", "kind": "crash", "duration": "9ms"}]
    result = lived(given, partial(Told, (33, 3), (99, 1), (165, 2)), routing=Witness)
    assert result.requests["outcome"] == ["completed"] * 9
    assert result.summary()["policy_metrics"]["decode.events"] > 40


def test_gaps_are_taken_back_once_from_an_instance_that_loses_a_request_twice(tmp_path: Path) -> None:
    """Redirected from 1 to 0 to 1, and then lost there; the other request's gaps stay as they are."""
    work = requests(tmp_path, (0, 16, 20), (0, 16, 30), (0, 16, 60))
    given = scenario(
        work, 2, min_replicas=1, max_replicas=2, scaling={"interval": "10ms", "drain": {"mode": "redirect"}}
    )
    given["faults"] = [
        {"at": f"{at}ms", "instance": f"instance-{which}", "kind": "crash", "duration": "5ms"}
        for at, which in ((75, 0), (115, 1), (155, 0), (195, 1))
    ]
    for retries in range(5):
        result = lived({**given, "retries": retries}, lambda: Told((20, 1), (30, 2), (50, 1), (60, 2)))
        assert set(result.requests["outcome"]) <= {"completed", "failed"}
        assert max(result.requests["retries"]) == min(retries, 4) or retries == 4


def test_a_redirected_request_that_no_other_instance_can_hold_is_rejected_with_what_it_has(tmp_path: Path) -> None:
    work = requests(tmp_path, (0, 160, 50), (0, 16, 100))
    shape = {"latency": {"model": "fixed", "prefill_tokens_per_s": 10_000, "decode_tokens_per_s": 100}}
    big = {"instances": 1, "min_replicas": 0, "kv": {"gpu_blocks": 100}, **shape}
    given = scenario(work, scaling={"interval": "100ms", "drain": {"mode": "redirect"}})
    given["cluster"] = {"deployments": {"big": big, "small": {"instances": 1, "kv": {"gpu_blocks": 11}, **shape}}}
    given["policies"]["routing"] = "always-busiest"
    result = lived(given, partial(Told, (0, 1), big=[(100, 0)]))
    first, second = rows(result)
    assert (first["outcome"], first["output_tokens"], second["outcome"]) == ("rejected", 9, "completed")
    assert first["reason"] == "needs 14 KV blocks, small-0 has 11"
    assert [one["output_tokens"] for one in result.summary()["instances"]] == [9 + 9, 100 - 9]


def test_a_request_that_is_moved_on_for_ever_is_told(tmp_path: Path) -> None:
    """An instance is up for a millisecond at a time, and the prompt takes sixteen."""
    given = scenario(requests(tmp_path, (0, 160, 2)), min_replicas=0)
    given["scaling"] = {"interval": "1ms", "drain": {"mode": "redirect"}}

    class Nervous:
        def scale(self, pool: Any) -> Scale:
            return Scale(pool.now_ps // MS % 2, "now and then")

    with pytest.raises(HeadwayError, match=r"scaling: request 0 was redirected more than 1,000 times without"):
        headway.simulate(given, scaling=Nervous())


def test_routing_to_an_instance_that_is_not_up_is_the_policys_mistake(tmp_path: Path) -> None:
    class Stubborn:
        def route(self, request: Any, cluster: Any) -> Route:
            return Route("instance-1")

    given = scenario(requests(tmp_path, (0, 16, 2)), 1, max_replicas=2)
    with pytest.raises(
        HeadwayError, match=r"Stubborn routed request \d+ to 'instance-1', which is stopped and takes no requests"
    ):
        headway.simulate(given, routing=Stubborn())
