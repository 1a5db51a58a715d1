"""Import of BLIS's section `inference_perf`."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from headway.errors import HeadwayError
from headway.interop.blis_import import import_workload
from headway.workload.spec import WorkloadSpec

PROMPTS = {
    "num_unique_system_prompts": 3,
    "num_users_per_system_prompt": 2,
    "system_prompt_len": 100,
    "question_len": 40,
    "output_len": 20,
}
STAGES = [{"rate": 4.0, "duration": 60}, {"rate": 10, "duration": 30}]


def load(stages: list[Any] | None = None, top: dict[str, Any] | None = None, **prompts: Any) -> Any:
    section = {"stages": STAGES if stages is None else stages, "shared_prefix": PROMPTS | prompts}
    return import_workload(deepcopy({"version": "1", "seed": 3, "inference_perf": section, **(top or {})}), "x")


def test_stages_become_a_profile_and_each_system_prompt_a_tenant() -> None:
    workload = load().document["workload"]
    assert (workload["rate"], workload["duration"]) == ("4/s", "90s")
    assert workload["profile"]["levels"] == [{"at": "0s", "multiplier": 1}, {"at": "60s", "multiplier": 2.5}]
    assert list(workload["tenants"]) == ["prompt-0", "prompt-1", "prompt-2"]


def test_every_prompt_is_the_system_prompt_and_the_question() -> None:
    workload = WorkloadSpec(**load().document["workload"])
    tenant = workload.senders()[1]
    assert tenant.prompt_tokens == 40
    assert (tenant.prefix.tokens, tenant.prefix.added, tenant.prefix.groups[0].name) == (100, True, "prompt-1")
    rates = [float(sender.profile.arrivals_before(sender.rate, 90 * 10**12)) for sender in workload.senders()]
    assert sum(rates) == pytest.approx(4 * 60 + 10 * 30)


def test_a_single_stage_has_as_many_requests_as_in_blis() -> None:
    result = load([{"rate": 2.5, "duration": 30}])
    assert result.document["workload"]["requests"] == 75
    assert "duration" not in result.document["workload"]
    assert "need not end exactly" in result.notes[0]


def test_conversations_are_a_closed_loop_of_questions() -> None:
    workload = load(STAGES[:1], enable_multi_turn_chat=True).document["workload"]
    assert workload["closed_loop"] == {"concurrency": 2, "think_time": "1500ms"}  # 6 users at 4/s
    assert (workload["requests"], workload["timeout"]) == (240, "300s")
    with pytest.raises(HeadwayError, match="only with a single stage"):
        load(enable_multi_turn_chat=True)


def test_the_lower_limit_counts() -> None:
    workload = load(top={"num_requests": 50, "horizon": 45_000_000}).document["workload"]
    assert (workload["requests"], workload["duration"]) == (50, "45s")
    assert load(top={"horizon": 10**12}).document["workload"]["duration"] == "90s"


def test_a_missing_system_prompt_has_the_default_length() -> None:
    result = load(system_prompt_len=0)
    assert result.document["workload"]["tenants"]["prompt-0"]["prefix"]["tokens"] == 50
    assert "default prefix of 50 tokens" in result.notes[0]


@pytest.mark.parametrize(
    ("stages", "prompts", "word"),
    [
        ([], {}, "stages: the list is empty"),
        ([{"rate": 0, "duration": 5}], {}, r"stages\[0\].rate: must be above 0"),
        ([{"rate": 1, "duration": 0}], {}, r"stages\[0\].duration: must be at least 1 second"),
        (None, {"num_users_per_system_prompt": 10**9}, "num_users_per_system_prompt: must be between 1 and 10,000"),
        (None, {"num_unique_system_prompts": 0}, "num_unique_system_prompts: must be between 1 and 10,000"),
        (None, {"question_len": -1}, "question_len: must not be negative"),
        (None, {"odd": 1}, "there is no such key"),
    ],
)
def test_a_wrong_value_is_named(stages: list[Any] | None, prompts: dict[str, Any], word: str) -> None:
    with pytest.raises(HeadwayError, match=word):
        load(stages, **prompts)


def test_stages_exclude_clients() -> None:
    with pytest.raises(HeadwayError, match=r"x\.inference_perf: cannot be combined with clients"):
        load(top={"clients": [{"id": "a"}]})
