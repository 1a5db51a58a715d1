"""ServeGen client data: requests are drawn as the rates and histograms say, by client and window alone."""

from __future__ import annotations

import ast
import csv
import io
import json
import math
import random
import tarfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from headway.errors import HeadwayError
from headway.workload.traces import open_trace, servegen
from headway.workload.traces.record import Options, Record
from headway.workload.traces.servegen_data import Window, clients

RATES = "0,0.05,1,Gamma,1.0,20\n600,0,0,,0,0\n1200,0.1,2,Weibull,0.5,5\n"
LENGTHS = '{"0": {"input_tokens": "{100: 0.75, 200: 0.25}", "output_tokens": "{10: 1.0}"}}'


def folder(path: Path, files: dict[str, str]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (path / name).write_text(content)
    return path


def small(path: Path, rates: str = RATES, lengths: str = LENGTHS) -> Path:
    return folder(path, {"chunk-3-trace.csv": rates, "chunk-3-dataset.json": lengths})


def draw_records(path: Path, **options: object) -> list[Record]:
    return list(servegen.read(path, Options(**options)).records)  # type: ignore[arg-type]


def seconds(records: list[Record]) -> list[float]:
    return [(record.at_ps or 0) / 1e12 for record in records]


def test_a_window_has_as_many_requests_as_its_rate_says_and_silence_has_none(tmp_path: Path) -> None:
    at = seconds(draw_records(small(tmp_path)))
    assert len(at) == 90 and at == sorted(at)
    assert sum(time < 600 for time in at) == 30 and sum(1200 <= time < 1800 for time in at) == 60


def test_every_client_is_a_tenant_with_lengths_of_its_own(tmp_path: Path) -> None:
    path = small(tmp_path)
    folder(path, {"chunk-12-trace.csv": RATES, "chunk-12-dataset.json": LENGTHS.replace("10:", "77:")})
    records = draw_records(path)
    assert {(record.tenant, record.output_tokens) for record in records} == {("client-3", 10), ("client-12", 77)}
    assert seconds(records) == sorted(seconds(records))


def test_the_stretch_and_other_clients_change_no_request(tmp_path: Path) -> None:
    path = small(tmp_path / "one")
    both = small(tmp_path / "both")
    folder(both, {"chunk-12-trace.csv": RATES, "chunk-12-dataset.json": LENGTHS})

    def own(records: list[Record], shift: float) -> list[tuple[float, int]]:
        return [
            (round(at + shift, 6), record.prompt_tokens)
            for at, record in zip(seconds(records), records, strict=True)
            if record.tenant == "client-3"
        ]

    whole = own(draw_records(path), 0)
    assert own(draw_records(both), 0) == whole
    assert own(draw_records(path, start=300, duration="20m"), 300) == [row for row in whole if 300 <= row[0] < 1500]
    assert own(draw_records(path, seed=1), 0) != whole


def test_an_archive_gives_what_its_folder_gives(tmp_path: Path) -> None:
    path = small(tmp_path / "language" / "m-tiny")
    with tarfile.open(tmp_path / "t.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "language", "language")
    assert servegen.tell(tmp_path / "t.tar.gz", []) and servegen.tell(path, [])
    assert draw_records(tmp_path / "t.tar.gz") == draw_records(path)


@pytest.mark.parametrize(("law", "shape"), [("Gamma", 0.25), ("Gamma", 4.0), ("Weibull", 0.7), ("Weibull", 1.5)])
def test_gaps_follow_the_law(law: str, shape: float) -> None:
    """The ratio of the second moment to the squared first is free of the rescaling."""
    at = list(servegen.times(Window(0, 200_000, law, shape), random.Random(4)))
    gaps = [later - earlier for earlier, later in pairwise(at)]
    mean = math.fsum(gaps) / len(gaps)
    cv2 = math.fsum((gap - mean) ** 2 for gap in gaps) / len(gaps) / mean**2
    g = math.gamma
    expected = 1 / shape if law == "Gamma" else g(1 + 2 / shape) / g(1 + 1 / shape) ** 2 - 1
    moments = {  # of gaps with mean 1: second, third, fourth
        "Gamma": [math.prod(1 + step / shape for step in range(order)) for order in (2, 3, 4)],
        "Weibull": [g(1 + order / shape) / g(1 + 1 / shape) ** order for order in (2, 3, 4)],
    }[law]
    second, third, fourth = moments
    # Delta method for m2 / m1^2: gradient (-2 m2, 1), covariance of the first two sample moments.
    variance = 4 * second**2 * (second - 1) - 4 * second * (third - second) + fourth - second**2
    assert abs(cv2 - expected) < 5 * math.sqrt(variance / len(gaps)) + 1e-3


def test_images_and_reasoning_are_told(tmp_path: Path) -> None:
    image = (
        '{"0": {"text_tokens": "{7: 1.0}", "image_tokens": "{500: 1.0}", "image_count": "{2: 1.0}", '
        '"audio_tokens": "{0: 1.0}", "audio_count": "{0: 1.0}", "output_tokens": "{3: 1.0}"}}'
    )
    record = draw_records(small(tmp_path / "image", lengths=image))[0]
    assert record.prompt_tokens == 1007 and record.extra == {"text_tokens": 7, "image_tokens": 1000}
    reason = LENGTHS.replace('"output', '"reason_ratio": "{0.5: 1.0}", "output')
    record = draw_records(small(tmp_path / "reason", lengths=reason))[0]
    assert (record.kind, record.extra) == ("reasoning", {"reason_ratio": 0.5})


def test_lengths_are_those_of_the_window_in_force(tmp_path: Path) -> None:
    fields = '{{"input_tokens": "{{{0}: 1.0}}", "output_tokens": "{{1: 1.0}}"}}'
    lengths = (
        f'{{"0": {fields.format(5)}, "1200": {fields.format(9)}, "1800": {fields.replace("{0}: 1.0", "").format()}}}'
    )
    records = draw_records(small(tmp_path, lengths=lengths))
    assert [record.prompt_tokens for record in records] == [5] * 30 + [9] * 60


def test_clients_without_lengths_are_left_out_and_told(tmp_path: Path) -> None:
    path = folder(small(tmp_path), {"chunk-4-trace.csv": RATES})
    reader = servegen.read(path, Options())
    assert reader.info.extra["notes"] == [
        "1 of 2 clients have no lengths and are skipped, with 50.0% of the requests: 4"
    ]
    assert len(list(reader.records)) == 90


@pytest.mark.parametrize(
    ("rates", "lengths", "problem"),
    [
        ("0,1,1,Gamma,1", LENGTHS, "chunk-3-trace.csv line 1: has 5 values"),
        (
            RATES + "1200,0,0,,0,0",
            LENGTHS,
            "line 4: the window start must be a multiple of 600 s, later than",
        ),
        ("0,fast,1,Gamma,1,1", LENGTHS, "line 1: the rate must be a number"),
        ("0,inf,1,Gamma,1,1", LENGTHS, "line 1: the rate must be a number"),
        ("0,1e9,1,Gamma,1,1", LENGTHS, "line 1: the rate must be a number"),
        ("0,1,1,Pareto,1,1", LENGTHS, "line 1: the law must be Gamma or Weibull"),
        ("0,1,1,Weibull,1e-9,1", LENGTHS, "line 1: the shape must be"),
        (RATES, "[]", "chunk-3-dataset.json"),
        (RATES, "{}", "contains no histograms"),
        (RATES, LENGTHS[:-9], "chunk-3-dataset.json"),
        (RATES, LENGTHS.replace("input_tokens", "inputs"), "window 0: has no input_tokens"),
        (RATES, LENGTHS.replace("{10: 1.0}", "__import__('os').getcwd()"), "output_tokens must be a dict"),
        (RATES, LENGTHS.replace("{10: 1.0}", "{10: 0.0}"), "probabilities that are all 0"),
        (RATES, LENGTHS.replace("{10: 1.0}", "{-10: 1.0}"), "contains -10, which is not a number"),
        (RATES, LENGTHS.replace("{10: 1.0}", "[" * 5000), "output_tokens must be a dict"),
        (RATES, LENGTHS.replace("{10: 1.0}", "{10: 1.0}" + " " * (5 << 20)), "more than 4 MiB"),
    ],
)
def test_mistakes_are_told_by_file_and_place(tmp_path: Path, rates: str, lengths: str, problem: str) -> None:
    with pytest.raises(HeadwayError, match=problem):
        draw_records(small(tmp_path, rates, lengths))


def test_folders_without_clients_or_lengths_and_two_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=r"contains no chunk-\*-trace.csv"):
        draw_records(folder(tmp_path / "empty", {}))
    with pytest.raises(HeadwayError, match="contains rates, but no lengths"):
        draw_records(folder(tmp_path / "rates", {"chunk-0-trace.csv": RATES}))
    small(tmp_path / "two" / "a")
    small(tmp_path / "two" / "b")
    with pytest.raises(HeadwayError, match="Name one of these folders"):
        draw_records(tmp_path / "two")
    with pytest.raises(HeadwayError, match="before the requested period"):
        draw_records(small(tmp_path / "late"), start=10_000)


def test_damaged_archives_give_errors_and_nothing_else(tmp_path: Path) -> None:
    small(tmp_path / "m")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(tmp_path / "m", "m")
    whole, rng, path = buffer.getvalue(), random.Random(6), tmp_path / "t.tar"
    for _ in range(60):
        hurt = bytearray(whole[: rng.randrange(1, len(whole))] if rng.random() < 0.5 else whole)
        for _ in range(rng.randrange(12)):
            hurt[rng.randrange(min(len(hurt), 3000))] = rng.randrange(256)
        path.write_bytes(hurt)
        servegen.tell(path, [])
        try:
            draw_records(path)
        except HeadwayError as error:
            assert str(error)


# --- the real data ------------------------------------------------------------------------------------------------

MEANS = {  # clients, seconds, requests a second
    "reason_deepseek-r1": (73, 86_400, 16.0),
    "multimodal_mm-image": (35, 86_400, 9.5),
    "language_m-large_rates": (162, 1_209_600, 195.8),
    "language_m-small_rates": (43, 1_209_600, 1174.0),
}


@pytest.mark.full
@pytest.mark.parametrize("name", MEANS)
def test_the_real_rates_integrate_to_what_is_known_of_them(traces: Path, name: str) -> None:
    count, span, rate = MEANS[name]
    known = clients(traces / "servegen" / f"{name}.tar.gz")
    assert len(known) == count
    requests = sum(window.requests for client in known for window in client.windows)
    assert abs(requests / span - rate) <= (0.05 if rate < 1000 else 0.5)


def rates(path: Path, start: int, stop: int) -> Iterator[tuple[str, float]]:
    with tarfile.open(path) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith("-trace.csv") else None
            for cells in csv.reader(io.TextIOWrapper(file)) if file else ():
                if start <= int(cells[0]) < stop:
                    yield member.name.rsplit("/", 1)[-1].split("-")[1], float(cells[1])


@pytest.mark.full
@pytest.mark.parametrize("name", ["reason_deepseek-r1", "multimodal_mm-image"])
def test_an_hour_of_the_real_data_has_the_requests_of_each_client(traces: Path, name: str) -> None:
    path = traces / "servegen" / f"{name}.tar.gz"
    records = draw_records(path, start=43_200, duration=3600)
    expected: dict[str, float] = {}
    for client, rate in rates(path, 43_200, 46_800):
        expected[client] = expected.get(client, 0.0) + rate * 600
    requests = dict.fromkeys(expected, 0)
    for record in records:
        assert record.tenant is not None
        requests[record.tenant.removeprefix("client-")] += 1
    assert requests == {client: round(count) for client, count in expected.items()}
    assert seconds(records) == sorted(seconds(records)) and seconds(records)[-1] < 3600


@pytest.mark.full
def test_lengths_of_the_real_data_are_those_of_its_histograms(traces: Path) -> None:
    """What an hour's draws should have on the mean, with the histograms' own spread as the measure of error."""
    path, start, stop = traces / "servegen" / "reason_deepseek-r1.tar.gz", 43_200, 46_800
    counts: dict[str, float] = {}
    for client, rate in rates(path, start, stop):
        counts[client] = counts.get(client, 0.0) + rate * 600
    moments = {"input_tokens": [0.0, 0.0], "output_tokens": [0.0, 0.0], "reason_ratio": [0.0, 0.0]}
    with tarfile.open(path) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith("-dataset.json") else None
            count = counts[member.name.rsplit("/", 1)[-1].split("-")[1]] if file else 0
            for name, text in json.load(file)["43200"].items() if file and count else ():
                shares = ast.literal_eval(text)
                mean = math.fsum(value * share for value, share in shares.items())
                moments[name][0] += count * mean
                moments[name][1] += count * math.fsum((value - mean) ** 2 * share for value, share in shares.items())
    records = draw_records(path, start=start, duration=stop - start)
    requests = {
        "input_tokens": math.fsum(record.prompt_tokens for record in records),
        "output_tokens": math.fsum(record.output_tokens for record in records),
        "reason_ratio": math.fsum(record.extra["reason_ratio"] for record in records),
    }
    for name, (total, variance) in moments.items():
        assert abs(requests[name] - total) < 4 * math.sqrt(variance), name


def test_only_what_is_drawn_takes_a_start_and_a_duration(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n')
    with pytest.raises(HeadwayError, match=r"t\.jsonl: start and duration do not apply to a mooncake trace.*slice"):
        open_trace(file, None, Options(start=10))
