"""ServeGen client data: for each client and each window of ten minutes, the number of requests, the distribution of
their gaps, and histograms of their lengths. The data is not a log, so the requests are drawn at random.

In a window, the rate of a client sets the number of its requests. Their gaps follow the window's distribution, and are
rescaled to fill the window. Every client is a tenant and has one random stream per window. Therefore its requests do
not depend on the drawn period or on other clients. Time 0 is the start of the drawn period.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from heapq import merge
from math import gamma, log
from operator import itemgetter
from random import Random
from typing import Any, Final

from headway import streams
from headway.config.units import duration_ps
from headway.config.wording import join_words, shown
from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND, PS_PER_US
from headway.workload.traces import servegen_data
from headway.workload.traces.limits import LAST_PS, MAX_LENGTH
from headway.workload.traces.record import Format, Info, Options, Reader, Record
from headway.workload.traces.servegen_data import WINDOW, Client, Datasets, Lengths, Window

US: Final = 1_000_000  # microseconds in a second
# Gaps are rounded to multiples of 2^-20 of their mean, so that their sum is exact and the same on every machine.
UNIT: Final = 1 << 20
MEDIA: Final = (("image_tokens", "image_count"), ("audio_tokens", "audio_count"), ("video_tokens", "video_count"))

Arrival = tuple[int, int, Record]  # (time in microseconds, index of the client, request)


def tell(path: pathlib.Path, first: list[bytes]) -> bool:
    return servegen_data.looks_like(path)


def read(path: pathlib.Path, options: Options) -> Reader:
    known = servegen_data.clients(path)
    end = max((client.windows[-1].start + WINDOW for client in known if client.windows), default=0)
    start_us = _microseconds(options.start, "start", 0)
    stop_us = min(start_us + _microseconds(options.duration, "duration", max(0, end * US - start_us)), end * US)
    if stop_us <= start_us:
        raise HeadwayError(f"{path.name}: the data ends after {end} s, before the requested period.")
    drawn = [client for client in known if client.lengths is not None]
    if not drawn:
        remedy = "Add the chunk-*-dataset.json of the same clients to the folder"
        raise HeadwayError(f"{path.name}: contains rates, but no lengths. {remedy}.")
    extra: dict[str, Any] = {"clients": len(drawn), "start_s": start_us / US, "duration_s": (stop_us - start_us) / US}
    if notes := _left_out(known, start_us, stop_us):
        extra["notes"] = notes
    sources = [_arrivals(client, index, options.seed, start_us, stop_us) for index, client in enumerate(drawn)]
    records = (record for _, _, record in merge(*sources, key=itemgetter(0, 1)))
    return Reader(Info("servegen", extra=extra), records)


def _microseconds(value: Any, name: str, default: int) -> int:
    """Convert a number of seconds, or a duration with a unit, to microseconds."""
    if value is None:
        return default
    if isinstance(value, str):
        return duration_ps(value, name) // PS_PER_US
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LAST_PS // PS_PER_SECOND:
        raise HeadwayError(f"{name}: expected seconds from 0 to 100 days, or a duration like 10m, got {shown(value)}.")
    return round(value * US)


def _left_out(known: list[Client], start_us: int, stop_us: int) -> list[str]:
    """Return a phrase about the clients that are skipped because they have no lengths."""
    without = [client for client in known if client.lengths is None]
    if not without:
        return []

    def requests(clients: list[Client]) -> int:
        return sum(
            window.requests for client in clients for window in client.windows if _meets(window, start_us, stop_us)
        )

    share = requests(without) / max(1, requests(known))
    names = join_words([str(client.number) for client in without[:20]]) + (", ..." if len(without) > 20 else "")
    which = f"{len(without)} of {len(known)} clients have no lengths and are skipped"
    return [f"{which}, with {share:.1%} of the requests: {names}"]


def _meets(window: Window, start_us: int, stop_us: int) -> bool:
    return window.start * US < stop_us and (window.start + WINDOW) * US > start_us


def _arrivals(client: Client, index: int, seed: int, start_us: int, stop_us: int) -> Iterator[Arrival]:
    """Yield the requests of one client, window by window."""
    datasets: Datasets | None = None
    in_force = -1
    lengths: Lengths = {}
    for window in client.windows:
        if not _meets(window, start_us, stop_us):
            continue
        if datasets is None:
            datasets = Datasets(client)
        if (start := datasets.at(window.start)) != in_force:
            in_force, lengths = start, datasets.lengths(start)
        name = f"servegen.{client.name}.{window.start}"
        draw = _request(client, lengths, streams.stream(seed, f"{name}.lengths"))
        for at_us in times(window, streams.stream(seed, f"{name}.arrivals")):
            record = next(draw)  # draw earlier requests too, so that the period's start changes no request in it
            if start_us <= at_us < stop_us:
                record.at_ps = (at_us - start_us) * PS_PER_US
                yield at_us, index, record


def times(window: Window, rng: Random) -> Iterator[int]:
    """Yield the arrival times of a window in microseconds. n requests have n + 1 gaps, which together fill the
    window."""
    total = 0
    if window.law == "Gamma":
        gap, shape = rng.gammavariate, window.shape
        steps = (gap(shape, 1.0) / shape for _ in range(window.requests + 1))
    else:
        power, mean, uniform = 1.0 / window.shape, gamma(1.0 + 1.0 / window.shape), rng.random
        steps = ((-log(1.0 - uniform())) ** power / mean for _ in range(window.requests + 1))
    ticks = [int(step * UNIT + 0.5) for step in steps]
    for tick in ticks:
        total += tick
    if not total:
        ticks, total = [1] * len(ticks), len(ticks)
    passed = 0
    for tick in ticks[:-1]:
        passed += tick
        # The last gap may be 0, so `min` keeps the last arrival before the end of the window.
        yield window.start * US + min(passed * (WINDOW * US) // total, WINDOW * US - 1)


def _request(client: Client, lengths: Lengths, rng: Random) -> Iterator[Record]:
    """Yield the requests of a client, but without their times. The iterator never ends."""
    draws = {name: make(rng) for name, make in lengths.items()}
    output, ratio, text = draws["output_tokens"], draws.get("reason_ratio"), draws.get("text_tokens")
    media = [(tokens, draws[tokens], draws[count]) for tokens, count in MEDIA if {tokens, count} <= draws.keys()]
    while True:
        extra: dict[str, Any] = {}
        if text is None:
            prompt = int(draws["input_tokens"]())
        else:
            extra["text_tokens"] = prompt = int(text())
            for kind, tokens, count in media:
                size = sum(int(tokens()) for _ in range(int(count())))
                if size:
                    extra[kind] = size
                    prompt += size
        generated = int(output())
        if ratio is not None:
            extra["reason_ratio"] = float(ratio())
        label = None if ratio is None else "reasoning"
        yield Record(min(max(prompt, 1), MAX_LENGTH), max(generated, 1), tenant=client.name, extra=extra, kind=label)


FORMAT: Final = Format(
    "servegen", "ServeGen client data: rates and lengths to draw from", tell, read, blocks=False, drawn=True
)
