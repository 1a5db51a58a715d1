"""The link between the cards of a node, and the memory that engines see."""

from __future__ import annotations

import pytest
from rich.console import Console

from headway.experiment.hardware import hardware
from headway.latency import read_gpu
from headway.latency.gpus import gpus, interconnect, interconnects
from headway.report.hardware import page

CARD = {"name": "mine", "memory": "80GB", "bandwidth": "3TB/s", "tflops": 900, "usd_per_hour": 1}


@pytest.mark.parametrize(
    ("card", "link", "gb_s", "peer"),
    [
        ("h100", "nvlink4-nvswitch-h100", 450, True),
        ("h200", "nvlink4-nvswitch", 450, True),
        ("b200", "nvlink5-nvswitch", 900, True),
        ("a100-80gb", "nvlink3-nvswitch", 300, True),
        ("a100-40gb", "nvlink3-nvswitch", 300, True),
        ("h100-nvl", "nvlink4-bridge", 300, True),
        ("h100-pcie", "pcie5", 63, True),
        ("rtx-pro-6000", "pcie5-no-p2p", 63, False),
        ("l40s", "pcie4", 31.5, True),
        ("l4", "pcie4-no-p2p", 31.5, False),
        ("a10g", "pcie4-no-p2p", 31.5, False),
        ("rtx-4090", "pcie4-no-p2p", 31.5, False),
        ("mi300x", "infinity-fabric", 448, True),
    ],
)
def test_each_card_has_the_link_of_its_usual_server(card: str, link: str, gb_s: float, peer: bool) -> None:
    found = interconnect(read_gpu(card, "gpu"))
    assert (found.name, found.bandwidth / 1e9, found.peer, found.assumed) == (link, gb_s, peer, False)


def test_every_card_of_the_table_names_a_link() -> None:
    assert {gpu.link for gpu in gpus().entries.values()} <= {*interconnects().entries}


def test_a_card_that_names_no_link_gets_pcie_and_says_that_this_is_assumed() -> None:
    unknown = interconnect(read_gpu(CARD, "gpu"))
    assert (unknown.name, unknown.peer, unknown.assumed) == ("pcie5", True, True)
    named = interconnect(read_gpu({**CARD, "link": "PCIe4_no_P2P"}, "gpu"))
    assert (named.name, named.peer, named.assumed) == ("pcie4-no-p2p", False, False)


def test_a_bridge_joins_two_cards_and_a_larger_group_uses_pcie() -> None:
    card = read_gpu("h100-nvl", "gpu")
    assert [interconnect(card, group).name for group in (1, 2, 4)] == ["nvlink4-bridge", "nvlink4-bridge", "pcie5"]


def test_a_small_group_uses_only_some_links_of_a_mesh() -> None:
    card = read_gpu("mi300x", "gpu")
    assert [interconnect(card, group).bandwidth / 1e9 for group in (2, 4, 8)] == [64, 192, 448]


def test_a_switch_gives_every_group_the_same_bandwidth() -> None:
    card = read_gpu("h200", "gpu")
    assert {interconnect(card, group).bandwidth for group in (2, 4, 8)} == {450 * 10**9}


@pytest.mark.parametrize("name", gpus().entries)
def test_the_visible_memory_is_near_the_vendors_figure(name: str) -> None:
    gpu = gpus().entries[name]
    # Vendors give GB, GiB, or a figure between the two.
    assert gpu.visible is not None and 1 <= gpu.visible / gpu.memory < 1.0738


def test_a_card_is_shown_with_its_link_its_memory_and_its_estimates() -> None:
    console = Console(width=200, record=True)
    console.print(page(hardware("l4")))
    text = console.export_text()
    assert "23,034 MiB, as the driver reports it" in text
    assert "pcie4-no-p2p, 31.5 GB/s in one direction, without peer access" in text
    assert "usd_per_hour, idle_watts, link" in text
