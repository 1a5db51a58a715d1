"""Quantities as people write them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.config import units
from headway.errors import HeadwayError


@pytest.mark.parametrize(
    ("text", "picoseconds"),
    [
        ("250ms", 250 * 10**9),
        ("1.5s", 15 * 10**11),
        ("5m", 300 * 10**12),
        ("5min", 300 * 10**12),
        ("2h", 7200 * 10**12),
        ("1d", 86400 * 10**12),
        ("3us", 3 * 10**6),
        ("3µs", 3 * 10**6),
        ("7ns", 7000),
        ("1ps", 1),
        ("0s", 0),
        (" 10 ms ", 10**10),
        ("1_000ms", 10**12),
        ("1e-3s", 10**9),
        (".5s", 5 * 10**11),
        ("0.1ms", 10**8),
    ],
)
def test_durations_become_whole_picoseconds(text, picoseconds):
    assert units.duration_ps(text, "x") == picoseconds


@given(st.integers(0, 8_639_999), st.integers(0, 999_999_999))
def test_decimal_seconds_are_exact(whole, billionths):
    assert units.duration_ps(f"{whole}.{billionths:09d}s", "x") == whole * 10**12 + billionths * 1000


@pytest.mark.parametrize(
    "text",
    [
        "250",
        250,
        0.5,
        "",
        "ms",
        "-1s",
        "1 year",
        "1s2",
        "1..5s",
        "nan s",
        None,
        ["1s"],
        "1S",
        "1e5000s",
        "1e999999999s",
        "9" * 5000 + "s",
    ],
)
def test_what_is_no_duration_is_told(text):
    with pytest.raises(HeadwayError, match=r"^slo\.ttft: .* is not a duration; write it with its unit"):
        units.duration_ps(text, "slo.ttft")


@pytest.mark.parametrize(
    ("text", "per_second"),
    [
        ("40/s", 40),
        ("90/min", Fraction(3, 2)),
        ("90/m", Fraction(3, 2)),
        ("1200/h", Fraction(1, 3)),
        ("0.1 / s", Fraction(1, 10)),
    ],
)
def test_rates_are_exact(text, per_second):
    assert units.rate(text, "x") == per_second


@pytest.mark.parametrize(
    "text", ["40", 40, "0/s", "-3/s", "40/day", "40 rps", "/s", None, "1e-5000/s", "1e999999999/s"]
)
def test_what_is_no_rate_is_told(text):
    with pytest.raises(HeadwayError, match=r"^workload\.rate: .* is not a rate; write a positive number with its unit"):
        units.rate(text, "workload.rate")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GB", 80 * 10**9),
        ("16GiB", 2**34),
        ("1.5 kB", 1500),
        ("1KB", 1000),
        ("3MiB", 3 * 2**20),
        ("2TB", 2 * 10**12),
        ("7B", 7),
    ],
)
def test_sizes_become_bytes(text, size):
    assert units.size_bytes(text, "x") == size
    assert units.bandwidth(f"{text}/s", "x") == size


@pytest.mark.parametrize("text", ["80", 80, "80G", "80gb", "-1GB", "iB", "5kiB", "1e999999999GB"])
def test_what_is_no_size_is_told(text):
    with pytest.raises(HeadwayError, match=r"^gpu\.memory: .* is not a size; write it with its unit"):
        units.size_bytes(text, "gpu.memory")


@pytest.mark.parametrize("text", ["50GB", "50/s", "fast", 50, "50GB/h"])
def test_what_is_no_bandwidth_is_told(text):
    with pytest.raises(HeadwayError, match=r"^gpu\.bandwidth: .* is not a (bandwidth|size)"):
        units.bandwidth(text, "gpu.bandwidth")


@pytest.mark.parametrize(
    ("read", "text", "sentence"),
    [
        (units.duration_ps, "101d", "x: must be at most 100d, got '101d'."),
        (units.rate, "1e-20/s", "x: must lie between 0.001/h and 1e12/s, got '1e-20/s'."),
        (units.size_bytes, "1e20GB", "x: must be at most 1000000TB, got '1e20GB'."),
    ],
)
def test_a_quantity_beyond_all_use_is_told(read, text, sentence):
    with pytest.raises(HeadwayError) as caught:
        read(text, "x")
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("text", "picoseconds"), [("0.5ps", Fraction(1, 2)), ("1_000.25ns", 1_000_250), (".1ps", Fraction(1, 10))]
)
def test_a_fine_duration_keeps_parts_of_a_picosecond(text, picoseconds):
    assert units.fine_duration(text, "x") == picoseconds
    assert units.duration_ps(text, "x") == round(picoseconds)


@given(st.integers(0, units.LONGEST_PS))
def test_a_duration_is_written_so_that_it_reads_the_same(ps):
    assert units.duration_ps(units.duration_text(ps), "x") == ps
