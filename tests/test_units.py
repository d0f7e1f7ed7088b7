"""Quantities with units: what is read, what is refused, and what is printed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nest import units


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_bytes, "80 GiB", 80 * 2**30),
        (units.parse_bytes, "80GiB", 80 * 2**30),
        (units.parse_bytes, "141 GB", 141e9),
        (units.parse_bytes, " 1.5 kB ", 1500),
        (units.parse_bytes, "0", 0),
        (units.parse_bytes, 4096, 4096),
        (units.parse_bytes, "1e9", 1e9),
        (units.parse_bytes, "1_000 B", 1000),
        (units.parse_bandwidth, "400 Gb/s", 50e9),
        (units.parse_bandwidth, "400 Gbps", 50e9),
        (units.parse_bandwidth, "400Gb/s", 50e9),
        (units.parse_bandwidth, "400G", 50e9),
        (units.parse_bandwidth, "1.6T", 200e9),
        (units.parse_bandwidth, "900 GB/s", 9e11),
        (units.parse_bandwidth, "3.35 TB/s", 3.35e12),
        (units.parse_bandwidth, "1 GiB/s", 2**30),
        (units.parse_seconds, "5 us", 5e-6),
        (units.parse_seconds, "5 µs", 5e-6),
        (units.parse_seconds, "0.1 ms", 1e-4),
        (units.parse_seconds, 0, 0),
        (units.parse_flops, "989 TFLOP/s", 989e12),
        (units.parse_flops, "989 TFLOPS", 989e12),
        (units.parse_flops, "1.979 PFLOP/s", 1.979e15),
    ],
)
def test_quantities_are_read_in_si_units(parse, text, value):
    assert parse(text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("parse", "allowed"),
    [
        (units.parse_bytes, "GiB"),
        (units.parse_bandwidth, "Gb/s"),
        (units.parse_seconds, "us"),
        (units.parse_flops, "TFLOP/s"),
    ],
)
@pytest.mark.parametrize(
    "bad",
    [
        "",
        "GiB",
        "5 parsecs",
        "-1",
        "nan",
        "inf",
        "1e999",
        "1 2",
        "5 GiB GiB",
        "9" * 400,
        "0x10",
        True,
        None,
        [],
        {},
        math.nan,
        math.inf,
        -1,
        -0.5,
        10**400,
        b"5",
        "٣",
        "5 GIb",
    ],
)
def test_a_bad_quantity_says_what_was_given_and_what_is_allowed(parse, allowed, bad):
    with pytest.raises(ValueError, match="got .*allowed: ") as caught:
        parse(bad)
    assert allowed in str(caught.value)
    assert len(str(caught.value)) < 400


def test_bits_and_bytes_are_told_apart():
    assert units.parse_bandwidth("8 Gb/s") == units.parse_bandwidth("1 GB/s") == 1e9
    with pytest.raises(ValueError, match="bytes"):
        units.parse_bytes("8 Gb")


@pytest.mark.parametrize(
    ("format_", "value", "text"),
    [
        (units.format_bytes, 80 * 2**30, "80 GiB"),
        (units.format_bytes, 0, "0 B"),
        (units.format_bytes, 1536, "1.5 KiB"),
        (units.format_bytes, 1000 * 2**30, "1000 GiB"),
        (units.format_seconds, 0, "0 s"),
        (units.format_seconds, 2.5e-3, "2.5 ms"),
        (units.format_seconds, 12.3456, "12.35 s"),
        (units.format_seconds, 123456.0, "123456 s"),
        (units.format_bandwidth, 50e9, "50 GB/s"),
        (units.format_flops, 989e12, "989 TFLOP/s"),
        (units.format_flops, 2250e12, "2250 TFLOP/s"),
        (units.format_flops, 1e18, "1000 PFLOP/s"),
        (units.format_count, 70553706496, "70.55 B"),
        (units.format_count, 12, "12"),
        (units.format_seconds, math.inf, "inf"),
    ],
)
def test_quantities_are_printed_with_a_fitting_unit(format_, value, text):
    assert format_(value) == text


@given(st.floats(min_value=1, max_value=1e17))
def test_what_is_printed_can_be_read_again(value):
    assert units.parse_bytes(units.format_bytes(value)) == pytest.approx(value, rel=1e-3)
    assert units.parse_bandwidth(units.format_bandwidth(value)) == pytest.approx(value, rel=1e-3)
    assert units.parse_flops(units.format_flops(value)) == pytest.approx(value, rel=1e-3)
    seconds = value * 1e-9
    assert units.parse_seconds(units.format_seconds(seconds)) == pytest.approx(seconds, rel=1e-3)


@given(st.text() | st.integers() | st.floats() | st.none() | st.binary())
def test_nothing_but_value_error_escapes(value):
    for parse in (units.parse_bytes, units.parse_bandwidth, units.parse_seconds, units.parse_flops):
        try:
            result = parse(value)
        except ValueError:
            continue
        assert math.isfinite(result) and result >= 0


def test_shorten_cuts_long_values_and_survives_odd_ones():
    assert units.shorten("x" * 500).endswith("...")
    assert len(units.shorten("x" * 500)) == 60
    assert "bits" in units.shorten(10**5000)
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    assert units.shorten(nested)
