"""What must hold of every run before its figures may be believed. A breach is our own mistake, not the user's."""

from __future__ import annotations

from operator import ge

from headway.errors import InvariantError
from headway.results.recorder import COLUMNS, COMPLETED, IN_FLIGHT, InstanceStats, Recorder, RunFacts, TierStats
from headway.results.scaling import held_ps
from headway.results.scaling_checks import check_scaling
from headway.results.transfers import check_transfers
from headway.types import OUTCOMES


def verify(recorder: Recorder, instances: list[InstanceStats], facts: RunFacts) -> None:
    """Raise unless every request is accounted for once, every time is causal, and no instance did the impossible."""
    _conserved(recorder)
    _causal(recorder, len(instances), facts)
    length_ps = facts.ended_ps - facts.started_ps
    if any(stats.role is not None for stats in instances):
        check_transfers(recorder, instances, length_ps)
    check_scaling(recorder, instances, facts)
    for stats in instances:
        held = held_ps(stats, length_ps)
        if not 0 <= stats.busy_ps <= held <= length_ps:
            was = f"was busy for {stats.busy_ps} ps and held for {held} ps"
            raise InvariantError(f"Instance {stats.id} {was} of a run of {length_ps} ps.")
        if not 0 <= stats.peak_kv_blocks <= stats.kv_blocks:
            raise InvariantError(f"Instance {stats.id} held {stats.peak_kv_blocks} of {stats.kv_blocks} KV blocks.")
        for tier in stats.tiers:
            _possible(tier, length_ps)


def _possible(tier: TierStats, length_ps: int) -> None:
    place = f"The {tier.name} tier of {tier.owner}"
    if not 0 <= tier.peak_blocks <= tier.blocks or not 0 <= tier.block_ps <= tier.blocks * length_ps:
        kept = f"{tier.peak_blocks} of {tier.blocks} blocks, {tier.block_ps} block-ps in {length_ps} ps"
        raise InvariantError(f"{place} kept the impossible: {kept}.")
    if not 0 <= tier.link_busy_ps <= length_ps or not 0 <= tier.thrashed_blocks <= tier.loaded_blocks:
        moved = f"busy for {tier.link_busy_ps} of {length_ps} ps, {tier.thrashed_blocks} thrashed blocks"
        raise InvariantError(f"{place} moved the impossible: {moved} of {tier.loaded_blocks} loaded.")


def _conserved(recorder: Recorder) -> None:
    arrived = len(recorder)
    for name in COLUMNS:
        column = getattr(recorder, name)
        if len(column) != arrived:
            raise InvariantError(f"Column {name} has {len(column)} rows for {arrived} requests that arrived.")
    ended = sum(recorder.outcome.count(code) for code in range(len(OUTCOMES)))
    if ended != arrived:
        raise InvariantError(f"{arrived} requests arrived, but {ended} have an outcome.")
    if not (0 <= recorder.abandoned <= recorder.not_issued and 0 <= recorder.retried <= arrived):
        counts = f"{recorder.not_issued} turns never issued, {recorder.abandoned} of them abandoned"
        raise InvariantError(f"{arrived} requests arrived, {recorder.retried} of them sent again, and {counts}.")
    arrivals = recorder.arrival_ps
    if not all(map(ge, arrivals[1:], arrivals)):
        raise InvariantError("Requests are not in order of arrival.")


def _causal(recorder: Recorder, instances: int, facts: RunFacts) -> None:
    begun_ps, ended_ps = facts.started_ps, facts.ended_ps
    rows = zip(
        recorder.arrival_ps,
        recorder.admitted_ps,
        recorder.routed_ps,
        recorder.enqueued_ps,
        recorder.started_ps,
        recorder.first_token_ps,
        recorder.finished_ps,
        recorder.outcome,
        recorder.output_tokens,
        recorder.instance,
        strict=True,
    )
    for row, (arrival, admitted, routed, enqueued, started, first, finished, outcome, tokens, instance) in enumerate(
        rows
    ):
        if outcome == COMPLETED:
            causal = begun_ps <= arrival <= admitted <= routed <= enqueued <= started <= first <= finished <= ended_ps
            possible = tokens >= 1 and 0 <= instance < instances
        else:
            causal = _causal_so_far((begun_ps, arrival, admitted, routed, enqueued, started, first, finished, ended_ps))
            possible = -1 <= instance < instances and (started == -1 or instance != -1)
            possible = possible and (outcome != IN_FLIGHT or finished == -1)
        if not (causal and possible):
            raise InvariantError(
                f"Request {row} is impossible: arrival {arrival} ps, admitted {admitted} ps, routed {routed} ps, "
                f"enqueued {enqueued} ps, start {started} ps, first token {first} ps, "
                f"end {finished} ps, {OUTCOMES[outcome]}, {tokens} output tokens, instance {instance} of {instances}; "
                f"the run lasted from {begun_ps} to {ended_ps} ps."
            )


def _causal_so_far(times: tuple[int, ...]) -> bool:
    """Of a request that was not completed: what came, came in order, and no first token before a start."""
    started, first = times[5:7]
    came = [at for at in times if at != -1]
    return came == sorted(came) and (first == -1 or started != -1)
