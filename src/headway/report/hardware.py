"""Hardware profiles in the terminal: all profiles in a table, or one with its constants."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from headway.report.number_format import GAP, count, number
from headway.report.terminal import facts, table

SPEC_SHEET = "spec sheet"
SEEN = (
    "gpu_blocks: auto uses the GiB seen (what the driver reports) if `latency` names an engine, else the vendor's GB."
)
NOT_MEASURED = "A spec sheet profile uses the card's peaks with the efficiencies of a measured card; results say so."

LIMITS = (
    "8 bits: for each layer and 1,024 numbers of the hidden state, if activations are rounded. TB/s and TFLOP/s: the "
    "engine's kernels on an H200, for a KV cache of 8 bits, for weights of 8 bits above 16 tokens, and for weights "
    "below 8 bits. Other cards have them in proportion; 0: as the profile."
)

ORIGINS = {
    "measured": "fitted to measurements of this GPU",
    "derived": "this card's peak × the efficiency of a measured card",
    "assumed": "not measured on this GPU; a rate of 0 uses the rate of more general work",
}

Profile = Mapping[str, Any]


def listing(document: Mapping[str, Any]) -> RenderableType:
    """Return a table with one row per profile, measured profiles first."""
    profiles = sorted(document["profiles"], key=lambda profile: not profile["calibrated"])
    rows = []
    for profile in profiles:
        reach = profile["range"] or {"tokens": [None, None], "context": [None, None]}
        card = profile["card"]
        kind = "measured" if profile["calibrated"] else SPEC_SHEET
        sizes = [count(reach["tokens"][1]), count(reach["context"][1]), count(card["memory_gb"])]
        sizes.append(GAP if card["visible_mib"] is None else number(card["visible_mib"] / 1024, 1))
        speeds = [number(card["bandwidth_tb_s"], 2), count(card["tflops"])]
        rows.append([profile["name"], kind, profile["as_of"][:7], *sizes, *speeds])
    heads = ("profile", "constants", "as of", "tokens\n/ step", "context", "card\nGB", "seen\nGiB", "TB/s", "TFLOP/s")
    errors: list[RenderableType] = []
    for profile in profiles:
        if profile["calibrated"]:
            source = [("source", profile["source"]), *_errors(profile)]
            errors += ["", Text(profile["name"], style="bold"), facts(source)]
    return Group(table(*heads, rows=rows, left=(0, 1)), "", Text(NOT_MEASURED), Text(SEEN), *errors)


def page(profile: Profile) -> RenderableType:
    """Return one profile: its source, its range, its constants, and example steps."""
    kind = "measured" if profile["calibrated"] else f"{SPEC_SHEET}, not calibrated"
    rows = [("source", profile["source"]), ("as of", profile["as_of"]), ("measured", profile["measured"])]
    rows += _errors(profile)
    if profile["range"] is not None:
        tokens, context = (f"{low:,} to {high:,}" for low, high in map(profile["range"].get, ("tokens", "context")))
        rows.append(("range", f"{tokens} tokens per step, {context} of context"))
    if profile["shapes"]:
        rows.append(("models", ", ".join(profile["shapes"])))
    if profile["card"] is not None:
        card = profile["card"]
        figures = f"{card['memory_gb']:g} GB, {card['bandwidth_tb_s']:g} TB/s, {card['tflops']:g} TFLOP/s in BF16"
        rows += [("card", figures), *_memory(card), ("link", _link(card["link"]))]
        if card["approximate"]:
            rows.append(("estimates", ", ".join(card["approximate"])))
    rows += [("host", _host(profile))]
    if profile["all_reduce_times"] != 1:
        rows.append(("all-reduces", f"× {profile['all_reduce_times']:.4g}, fitted to a run on several GPUs"))
    origins = {constant["origin"] for constant in profile["constants"].values()}
    cells = [
        [name, f"{constant['value']:.5g}", constant["unit"], constant["origin"], constant["of"]]
        for name, constant in profile["constants"].items()
    ]
    constants = table("constant", "value", "unit", "origin", "of", rows=cells, left=(0, 2, 3, 4))
    constants.columns[4].no_wrap = False
    parts: list[RenderableType] = [Text(f"{profile['name']}: {kind}", style="bold"), facts(rows), "", constants]
    parts += [Text(f"{origin}: {words}") for origin, words in ORIGINS.items() if origin in origins]
    parts += [Text(f"{name}: {reason}") for name, reason in profile["assumed"].items()]
    return Group(*parts, "", *_engines(profile["engines"]), "", *_examples(profile["examples"]))


def _host(profile: Profile) -> str:
    parts = [f"{profile['host_ms']:g} ms per step"]
    if profile["host_sequence_us"]:
        parts.append(f"{profile['host_sequence_us']:g} µs per sequence")
    engine = profile["engine"] or "the profile names no engine"
    if profile["default_engine"]:
        engine = f"assumed: scenarios use {profile['default_engine']} instead"
    return f"{' and '.join(parts)}, in addition to the GPU's time ({engine})"


def _engines(engines: Mapping[str, Any]) -> list[RenderableType]:
    """Return the times of the known engines, which replace those of the profile."""
    figures = ("step_us", "sequence_us", "quantise_us", "kv8_tb_s", "fp8_many_tb_s", "packed_tb_s", "packed_tflops")
    rows = [[name, *(f"{engine[key]:g}" for key in figures)] for name, engine in engines.items()]
    heads = (
        "engine",
        "step\nµs",
        "sequence\nµs",
        "8 bits\nµs",
        "KV\nTB/s",
        "8 bits\nTB/s",
        "below 8\nTB/s",
        "\nTFLOP/s",
    )
    grid = table(*heads, rows=rows, left=(0,))
    sources = [Text(f"{name}: {engine['source']}") for name, engine in engines.items()]
    for name, engine in engines.items():
        shares = ", ".join(f"{share:g} times as fast on {card}" for card, share in engine["fp8_share"].items())
        if shares:
            sources.append(Text(f"{name}: matmuls in 8 bits are {shares} as in proportion"))
    title = Text("Times of engines, which `latency: {engine: NAME}` uses instead", style="bold")
    return [title, grid, Text(LIMITS), *sources]


def _memory(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    visible = card["visible_mib"]
    note = "as the driver reports it; gpu_blocks: auto uses it if `latency` names an engine"
    return [] if visible is None else [("visible", f"{visible:,.0f} MiB, {note}")]


def _link(link: Mapping[str, Any]) -> str:
    access = "with" if link["peer"] else "without"
    source = "assumed: the card names no link" if link["assumed"] else f"spec sheet: {link['source']}"
    return f"{link['name']}, {link['bandwidth_gb_s']:g} GB/s in one direction, {access} peer access ({source})"


def _errors(profile: Profile) -> list[tuple[str, str]]:
    return [("error", f"{name}: {error}") for name, error in profile["error"].items()]


def _examples(examples: Mapping[str, Any]) -> list[RenderableType]:
    split = f" on {examples['tp']} GPUs" if examples["tp"] > 1 else ""
    rows = []
    for step in examples["steps"]:
        new, past = step["chunks"][0] if step["chunks"] else (None, None)
        sizes = (step["decodes"] or None, step["context"] or None, new, past)
        rows.append([*map(count, sizes), f"{step['gpu_ms']:.3f}" if step["gpu_ms"] else GAP])
    title = Text(f"Steps of {examples['model']}{split}, without host time", style="bold")
    grid = table("decodes", "context", "chunk", "past", "ms", rows=rows, left=())
    return [title, grid, *([Text(examples["note"])] if examples["note"] else [])]
