"""Late requests, and the parts of their time in which they lost it."""

import pytest
from findings_made import of_kind, request, result, seen
from recorders import SECOND

from headway.results.findings import find, first_cause
from headway.results.records import QueueLimit

TTFT = {"slo": {"ttft": "1s"}}
TPOT = {"slo": {"tpot": "100ms"}}


def waits(count: int, wait: float, **more: object) -> list[dict[str, object]]:
    """Requests that wait before a prefill of 0.1 s."""
    rows = [request(k, start=k + wait, first=k + wait + 0.1, end=k + wait + 0.2, **more) for k in range(count)]
    return [row | {"prompt_tokens": 100} for row in rows]


def test_a_run_whose_requests_meet_their_targets_has_no_loss() -> None:
    loss = seen(waits(10, 0.5), scenario=TTFT).loss
    assert loss.late == [] and loss.by_part == {} and loss.late_share == 0


def test_the_wait_of_a_late_request_is_lost_and_its_usual_prefill_is_not() -> None:
    loss = seen(waits(10, 2.0), scenario=TTFT).loss
    assert loss.late_share == 1
    assert loss.by_part == {"queue.step": pytest.approx(1)}


def test_only_the_phase_of_the_missed_target_counts() -> None:
    quick = [request(k, start=k + 5, first=k + 5.1, end=k + 5.2, output_tokens=11) for k in range(9)]
    slow = request(9, start=14, first=14.1, end=24.1, output_tokens=11)
    loss = seen([*quick, slow], scenario=TPOT).loss
    assert loss.shares(9) == {"decode": 1}
    assert loss.late == [9]


def test_without_targets_a_request_is_late_if_it_lost_half_of_its_time_and_a_second() -> None:
    loss = seen([*waits(9, 0.5), request(9, start=11, first=11.1, end=11.2)]).loss
    assert loss.late == [9]


def test_a_rejected_request_counts_as_rejected() -> None:
    rows = [*waits(3, 0.1), request(3, outcome="rejected") | {"finished_ps": 3 * SECOND, "instance": -1}]
    rows[3] |= {"routed_ps": -1, "enqueued_ps": -1, "admitted_ps": -1}
    loss = seen(rows, scenario=TTFT).loss
    assert loss.by_part == {"rejected": 1}


def test_a_share_is_relative_to_the_whole_loss() -> None:
    loss = seen(waits(10, 2.0), scenario=TTFT).loss
    assert loss.share([0, 1, 2]) == pytest.approx(0.3)
    assert loss.share([0, 1, 2], ("router",)) == 0
    assert loss.claim({0: 0.5, 1: 2.0}) == pytest.approx(0.15)
    assert loss.within(2 * SECOND, 4 * SECOND) == [2, 3, 4]


@pytest.mark.parametrize(
    ("limit", "resource"), [("kv", "kv"), ("slots", "slots"), ("tokens", "prefill"), ("adapter", "adapters")]
)
def test_the_limit_of_the_queue_names_the_resource(limit: str, resource: str) -> None:
    run = result(waits(10, 2.0), scenario=TTFT, queue_limits=[QueueLimit(0, 0, limit)])
    (finding,) = of_kind(run, "bottleneck")
    assert (finding.resource, finding.level) == (resource, "severe")
    assert finding.explains == pytest.approx(1)
    assert first_cause(find(run)) == finding


def test_a_few_late_requests_are_only_a_note() -> None:
    late = [request(100 + k, start=110, first=110.1, end=110.2) for k in range(6)]
    (finding,) = of_kind(result([*waits(400, 0.1), *late], scenario=TTFT), "bottleneck")
    assert finding.level == "note"


def test_an_instance_with_most_of_the_loss_is_blamed() -> None:
    rows = [*waits(5, 0.1), *(row | {"instance": 2} for row in waits(5, 2.0))]
    rows.sort(key=lambda row: row["arrival_ps"])  # type: ignore[arg-type, return-value]
    (finding,) = of_kind(result(rows, scenario=TTFT, instances=3), "bottleneck")
    assert [(blame.kind, blame.name) for blame in finding.blames] == [("instance", "i2")]
