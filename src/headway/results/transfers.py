"""What it cost to move KV caches from the instances that compute prompts to those that generate."""

from __future__ import annotations

from collections.abc import Sequence

from headway.errors import InvariantError
from headway.results.percentiles import spread_of
from headway.results.recorder import InstanceStats, Recorder
from headway.results.sample import rate
from headway.types import Json


def transfers(recorder: Recorder, instances: Sequence[InstanceStats], warmup: int, length_ps: int) -> Json:
    """The section `transfer` of a summary, where prompts may be computed apart.

    Both times begin when the prompt has been computed, so that together they are what a request waits for its KV cache:
    first until the other instance has room for it, then until the last byte is there.
    """
    senders = [stats for stats in instances if stats.role == "prefill"]
    if not senders:
        return {}
    waits, moves = [], []
    for row in range(warmup, len(recorder)):
        arrived = recorder.transferred_ps[row]
        if arrived >= 0:
            handed = recorder.handed_ps[row]
            begun = max(handed, recorder.transfer_ps[row])
            waits.append(begun - handed)
            moves.append(arrived - begun)
    busy_ps = sum(stats.link_busy_ps for stats in senders)
    moved = sum(stats.sent_bytes for stats in senders)
    return {
        "transfer": {
            "count": len(moves),
            "bytes": moved,
            "bytes_per_s": rate(moved, length_ps),
            "wait": spread_of(waits),
            "time": spread_of(moves),
            "link_utilization": busy_ps / (len(senders) * length_ps) if length_ps else None,
        }
    }


def check_transfers(recorder: Recorder, instances: Sequence[InstanceStats], length_ps: int) -> None:
    """A request has its prompt computed by one instance and its answer by another, in that order, and no token counts
    on both."""
    roles = [stats.role for stats in instances]
    rows = zip(
        recorder.prefill_instance,
        recorder.instance,
        recorder.started_ps,
        recorder.handed_ps,
        recorder.transfer_ps,
        recorder.transferred_ps,
        recorder.finished_ps,
        strict=True,
    )
    for row, (prefill, decode, started, handed, begun, arrived, finished) in enumerate(rows):
        if prefill == -1:
            possible = handed == begun == arrived == -1
        else:
            # who had to leave the instance that it was handed to may have gone to one that does both
            possible = roles[prefill] == "prefill" and (roles[decode] == "decode" or recorder.redirects[row] > 0)
            came = [at for at in (started, handed, arrived, finished) if at != -1]
            possible = possible and came == sorted(came) and (arrived == -1 or started <= begun <= arrived)
        if not possible:
            raise InvariantError(
                f"Request {row} is impossible: prompt on instance {prefill}, answer on instance {decode}, start "
                f"{started} ps, handed over {handed} ps, transfer from {begun} to {arrived} ps, end {finished} ps."
            )
    for stats in instances:
        if not 0 <= stats.link_busy_ps <= length_ps:
            raise InvariantError(f"The link of {stats.id} was busy for {stats.link_busy_ps} of {length_ps} ps.")
    prompts = sum(stats.prefill_tokens + stats.cached_tokens for stats in instances)
    sent = sum(tokens * (1 + again) for tokens, again in zip(recorder.prompt_tokens, recorder.retries, strict=True))
    if prompts > sent:
        raise InvariantError(f"{prompts} prompt tokens were computed or cached, of {sent}.")
    generated = sum(stats.output_tokens for stats in instances)
    got = sum(recorder.output_tokens) + recorder.lost_tokens
    if generated != got:
        raise InvariantError(f"{generated} tokens were generated, but requests got {got}.")
