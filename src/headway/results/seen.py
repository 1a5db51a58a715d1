"""What an engine did as far as it is seen from outside: it is busy while it has any request."""

from __future__ import annotations

from headway.results.recorder import InstanceStats, Recorder


def seen_stats(
    recorder: Recorder,
    index: int,
    name: str,
    *,
    ended_ps: int,
    pool: str | None = None,
    model: str = "",
    peak_kv: int = 0,
    kv_blocks: int = 0,
) -> InstanceStats:
    """Of the instance with this number; a request that has not ended counts until the run does."""
    mine = [row for row in range(len(recorder)) if recorder.instance[row] == index]
    prompt = sum(recorder.prompt_tokens[row] for row in mine)
    cached = sum(recorder.cached_tokens[row] for row in mine)
    ends = [recorder.finished_ps[row] for row in mine]
    stays = sorted(
        (recorder.started_ps[row], ended_ps if end < 0 else end) for row, end in zip(mine, ends, strict=True)
    )
    return InstanceStats(
        name,
        pool=pool,
        model=model,
        requests=len(mine),
        busy_ps=covered(stays),
        prefill_tokens=prompt - cached,
        output_tokens=sum(recorder.output_tokens[row] for row in mine),
        cached_tokens=cached,
        prompt_tokens=prompt,
        peak_kv_blocks=min(peak_kv, kv_blocks),
        kv_blocks=kv_blocks,
    )


def covered(stays: list[tuple[int, int]]) -> int:
    """How long anybody was there."""
    found, until = 0, -1
    for begin, end in stays:
        if end > until:
            found += end - max(begin, until)
            until = end
    return found
