"""Convert the requests that a workload plans to the records of a trace.

The conversion assumes that answers take no time. So the delay of a request that waits for an answer is only the think
time. A replay adds this delay to the time when the simulated answer ends. Blocks have `BLOCK_TOKENS` tokens.
"""

from collections.abc import Iterator
from typing import Final

from headway.types import Path
from headway.workload.traces.blocks import Run
from headway.workload.traces.record import Info, Reader, Record, present
from headway.workload.traffic import Traffic

BLOCK_TOKENS: Final = 16
IDS_OF_KEY: Final = 1 << 28  # number of block ids reserved for each key of a prompt; no prompt has that many blocks


def planned_trace(traffic: Traffic, origin: str) -> Reader:
    """Return a reader that yields the requests of a `Traffic` as records of a trace."""
    info = Info("workload", BLOCK_TOKENS, whole_blocks=True, sessions=traffic.listens, extra={"origin": origin})
    return Reader(info, _records(traffic))


def _records(traffic: Traffic) -> Iterator[Record]:
    numbers: dict[int, int] = {}  # prompt key -> its number, in order of appearance
    last_ps: dict[str, int] = {}  # session -> time of its latest arrival
    for planned in traffic:
        request = planned.request
        record = Record(
            request.prompt_tokens,
            planned.output_tokens,
            at_ps=request.arrival_ps,
            blocks=_blocks(request.path, numbers),
            session=request.session,
            turn=None if request.session is None else request.turn,
            model=request.model or None,
            tenant=request.tenant,
            slo_class=request.slo_class,
            kind=request.kind,
            max_tokens=request.max_tokens,
            shared_prefix_tokens=request.shared_prefix_tokens,
            extra=present({"adapter": request.adapter}),
        )
        if request.session is not None:
            before_ps = last_ps.get(request.session)
            record.delay_ps = None if before_ps is None else request.arrival_ps - before_ps
            last_ps[request.session] = request.arrival_ps
        yield record


def _blocks(path: Path, numbers: dict[int, int]) -> list[Run]:
    """Return the ids of the full blocks of a prompt, as runs of consecutive ids. Prompts with the same prefix have the
    same ids for the blocks of this prefix."""
    runs, start = [], 0
    for key, end in path.blocks(BLOCK_TOKENS):
        number = numbers.setdefault(key, len(numbers))
        runs.append((number * IDS_OF_KEY + start, end - start))
        start = end
    return runs
