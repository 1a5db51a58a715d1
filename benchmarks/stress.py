"""How every built-in routing policy bears stress, compared with `least-loaded`: `make stress`.

    python benchmarks/stress.py                  # all stresses: writes stress.json and the tables of docs/stress.md
    python benchmarks/stress.py slow draining    # some of them; the other figures stay
    python benchmarks/stress.py --knees          # search for the knees of the traces again, and print them

The real traces lie next to the project's folder, in ../shared/traces. Without them, their figures stay as they are.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import headway
from headway.policies import registry

HERE = Path(__file__).resolve().parent
TRACES = HERE.parent.parent / "shared" / "traces"
FIGURES = HERE / "stress.json"
PAGE = HERE.parent / "docs" / "stress.md"
BLOCK = re.compile(r"(<!-- stress: (\w+) -->\n).*?(<!-- /stress -->)", re.DOTALL)
BASELINE: Final = "least-loaded"
MOST: Final = 3  # a cell above this multiple of the baseline needs an explanation
WORKERS: Final = 2
Json = dict[str, Any]


class Cell(NamedTuple):
    """A policy under a stress."""

    ttft_p99: float  # ms
    spread: float  # most requests of one instance, divided by the mean of all instances


class Stress(NamedTuple):
    """A scenario. A policy that does badly in it has the `word` in the paragraph `Limits` of its docstring."""

    word: str
    about: str
    scenario: Json
    knee: str = ""  # for a trace: the bound that `least-loaded` keeps up to the load of the scenario


CONVERSATIONS: Final = {
    "kind": {
        "kind": "chat",
        "turns": {"dist": "geometric", "mean": 4, "max": 12},
        "turn_tokens": {"dist": "lognormal", "mean": 500, "std": 500, "min": 16, "max": 4096},
        "think_time": {"dist": "exponential", "mean": "2s"},
        "growth": "linear",
    },
    "requests": 2400,
    "rate": "3/s",
    "prompt_tokens": {"dist": "lognormal", "mean": 2500, "std": 500, "min": 2100, "max": 8192},
    "output_tokens": {"dist": "lognormal", "mean": 150, "std": 120, "min": 8, "max": 1024},
    "prefix": {"groups": 40, "tokens": 2048, "popularity": {"dist": "zipf", "s": 0.8}},
}
ANSWERS: Final = {"dist": "lognormal", "mean": 150, "std": 100, "min": 2, "max": 600}
HOST: Final = {"host": "500us"}  # that of the table in the docs
FOUR: Final = {"instances": 4, "model": "llama-3.1-8b", "gpu": "l40s", "latency": HOST}
TWO_LEAVE: Final = "def scale(pool):\n    if pool.now >= 10 and pool.now < 40:\n        return 2\n    return 4\n"


def scenario(workload: Json, cluster: Json, **more: Any) -> Json:
    return {"seed": 7, "defaults": "2026-12", "workload": workload, "cluster": cluster, **more}


def fault(kind: str, instance: int, at: str, **more: Any) -> Json:
    return {"at": at, "instance": f"instance-{instance}", "kind": kind, **more}


def conversations(cluster: Json = FOUR, **more: Any) -> Json:
    return scenario(CONVERSATIONS, cluster, retries=3, **more)


def replay(path: str, instances: int, **more: Any) -> Json:
    cluster = {"instances": instances, "model": "llama-3.1-8b", "gpu": "h200", "latency": HOST}
    return scenario({"trace": {"path": str(TRACES / path), **more}}, cluster)


SPREAD_TICKS: Final = [{"dequantise": {}}]
AGENTS: Final = {"limit": 3000, "transforms": [{"cap": {"max_turns": 20}}]}
STRESSES: Final[dict[str, Stress]] = {
    "healthy": Stress("healthy", "conversations on four healthy L40S", conversations()),
    "overload": Stress(
        "overload",
        "2,000 requests at 200/s on four L40S: every instance has far more requests than `max_queue` (64)",
        scenario(
            {
                "requests": 2000,
                "rate": "200/s",
                "prompt_tokens": {"dist": "normal", "mean": 1000, "std": 200, "min": 600, "max": 4000},
                "output_tokens": ANSWERS,
                "prefix": {"groups": 20, "tokens": 512},
            },
            {**FOUR, "max_queue": 64, "max_batch_size": 32},
        ),
    ),
    "one-prompt": Stress(
        "same prompt",
        "all 1,500 requests share a prompt of 1,024 tokens, at 40/s",
        scenario(
            {
                "requests": 1500,
                "rate": "40/s",
                "prompt_tokens": 1040,
                "output_tokens": {**ANSWERS, "mean": 200},
                "prefix": {"groups": 1, "tokens": 1024},
            },
            FOUR,
        ),
    ),
    "one-left": Stress(
        "one instance",
        "three of four instances crash after 10 s and are back after 20 s; lost requests are retried",
        conversations(faults=[fault("crash", instance, "10s", duration="10s") for instance in (0, 1, 2)]),
    ),
    "draining": Stress(
        "drain",
        "the autoscaler drains two of four instances after 10 s and starts them again after 40 s",
        conversations(
            cluster={**FOUR, "min_replicas": 1, "max_replicas": 4},
            scaling={"interval": "5s"},
            policies={"scaling": {"name": "code", "source": TWO_LEAVE}},
        ),
    ),
    "unreachable": Stress(
        "unreachable",
        "one instance is unreachable from 10 s to 30 s; lost requests are retried",
        conversations(faults=[fault("unreachable", 0, "10s", duration="20s")]),
    ),
    "slow": Stress(
        "slow",
        "every step of one instance takes ten times as long, and no signal says so",
        conversations(faults=[fault("slow", 0, "0s", factor=10)]),
    ),
    "mooncake-conversation": Stress(
        "trace",
        "Mooncake, conversations; ticks of 3 s spread evenly",
        replay("mooncake/conversation_trace.jsonl.gz", 8, limit=4000, transforms=SPREAD_TICKS, speed=3.51),
        "ttft_p99<=10s",
    ),
    "mooncake-synthetic": Stress(
        "trace", "Mooncake, synthetic", replay("mooncake/synthetic_trace.jsonl.gz", 8, speed=2.40), "ttft_p99<=10s"
    ),
    "mooncake-arxiv": Stress(
        "trace",
        "Mooncake, first 1,000 requests of the older trace; ticks spread evenly",
        replay("mooncake/arxiv_mooncake_trace_first1000.jsonl", 8, transforms=SPREAD_TICKS, speed=3.62),
        "ttft_p99<=10s",
    ),
    "azure-code": Stress(
        "trace",
        "Azure 2023, code",
        replay("azure-llm-2023/AzureLLMInferenceTrace_code.csv", 4, limit=4000, speed=2.56),
        "ttft_p99<=2s",
    ),
    "azure-conversation": Stress(
        "trace",
        "Azure 2023, conversations",
        replay("azure-llm-2023/AzureLLMInferenceTrace_conv.csv", 4, limit=4000, speed=18.8),
        "ttft_p99<=2s",
    ),
    "coding-agents": Stress(
        "trace",
        "WEKA, coding agents; the first 20 turns of each session",
        replay("agentic-coding-weka/sessions_compact.jsonl.gz", 4, **AGENTS, starts={"users": 8, "pause": "1s"}),
        "ttft_p99<=10s",
    ),
    "servegen": Stress(
        "trace",
        "ServeGen, deepseek-r1: drawn from the recorded clients",
        replay("servegen/reason_deepseek-r1.tar.gz", 4, limit=3000, speed=2.32),
        "ttft_p99<=2s",
    ),
    "dynamo": Stress(
        "trace",
        "Dynamo, 17 requests of a coding agent: too few for a knee, so they arrive as a burst",
        replay("dynamo-request-trace/pi_request_trace.jsonl.gz", 2, speed=1024),
    ),
    "tracelab": Stress(
        "trace",
        "TraceLab, 19 requests of two sessions: too few for a knee, so both start at once",
        replay("tracelab-example/round_trace.jsonl", 2, starts={"rate": "1024/s"}),
    ),
}
FAULTS: Final = [name for name, stress in STRESSES.items() if "trace" not in stress.scenario["workload"]]
REPLAYS: Final = [name for name in STRESSES if name not in FAULTS]


def measure(name: str, policies: list[str], workers: int = WORKERS) -> dict[str, Cell]:
    """Run a stress under these policies."""
    compared = headway.compare(STRESSES[name].scenario, policies, workers=workers, progress=False)
    cells = {}
    for policy in policies:
        summary = compared[policy]
        counts = [instance["requests"] for instance in summary["instances"]]
        lost = summary["requests"]["arrived"] - summary["requests"]["completed"]
        assert not lost, f"{name}: {policy} lost {lost} requests, so that its TTFT cannot be compared"
        spread = max(counts) * len(counts) / sum(counts)
        cells[policy] = Cell(round(summary["latency"]["ttft"]["p99"], 3), round(spread, 4))
    return cells


def read_figures() -> dict[str, dict[str, Cell]]:
    if not FIGURES.exists():
        return {}
    table = json.loads(FIGURES.read_text(encoding="utf-8"))
    return {name: {policy: Cell(*cell) for policy, cell in row.items()} for name, row in table.items()}


def write_figures(table: dict[str, dict[str, Cell]]) -> None:
    rows = []
    for name in STRESSES:
        cells = ",\n".join(
            f"  {json.dumps(policy)}: {json.dumps(cell)}" for policy, cell in table.get(name, {}).items()
        )
        rows.append(f" {json.dumps(name)}: {{\n{cells}\n }}")
    FIGURES.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


def relative(cell: Cell, baseline: Cell) -> Cell:
    return Cell(cell.ttft_p99 / baseline.ttft_p99, cell.spread / baseline.spread)


def is_bad(cell: Cell, baseline: Cell) -> bool:
    return max(relative(cell, baseline)) > MOST


def limits(policy: str) -> str:
    """Return the paragraph of a policy's docstring that begins with "Limits:", in one line, or an empty text."""
    text = inspect.getdoc(registry.find("routing", policy, "stress").make) or ""
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    return next((paragraph for paragraph in paragraphs if paragraph.startswith("Limits:")), "")


def bad_cells(table: dict[str, dict[str, Cell]]) -> dict[str, list[str]]:
    """Return the stresses in which each policy has a cell above `MOST`."""
    bad: dict[str, list[str]] = {}
    for name, row in table.items():
        for policy, cell in row.items():
            if is_bad(cell, row[BASELINE]):
                bad.setdefault(policy, []).append(name)
    return bad


def unexplained(table: dict[str, dict[str, Cell]]) -> list[tuple[str, str]]:
    """Return the cells above `MOST` that the policy's docstring does not explain, as (policy, stress)."""
    bad = bad_cells(table).items()
    return [(policy, name) for policy, names in bad for name in names if STRESSES[name].word not in limits(policy)]


# --- the page ----------------------------------------------------------------------------------------------------


def cells_table(table: dict[str, dict[str, Cell]], names: list[str]) -> str:
    lines = ["| Policy | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    baseline = [table[name][BASELINE] for name in names]
    seconds = " | ".join(f"{cell.ttft_p99 / 1000:.2f} s · {cell.spread:.2f}" for cell in baseline)
    lines.append(f"| `{BASELINE}` | {seconds} |")
    for policy in registry.names("routing"):
        if policy == BASELINE:
            continue
        texts = []
        for name, base in zip(names, baseline, strict=True):
            cell = table[name][policy]
            ratio = cell.ttft_p99 / base.ttft_p99
            text = f"{ratio:.2f} · {cell.spread:.2f}" if ratio < 10 else f"{ratio:.0f} · {cell.spread:.2f}"
            texts.append(f"**{text}**" if is_bad(cell, base) else text)
        lines.append(f"| `{policy}` | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def scenarios_table(names: list[str]) -> str:
    lines = ["| Stress | What happens |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {STRESSES[name].about} |" for name in names)]) + "\n"


def traces_table() -> str:
    lines = ["| Stress | Trace | H200 | Load | Knee: `least-loaded` keeps |", "|---|---|---:|---:|---|"]
    for name in REPLAYS:
        stress = STRESSES[name]
        trace, instances = stress.scenario["workload"]["trace"], stress.scenario["cluster"]["instances"]
        starts = trace.get("starts", {})
        if "speed" in trace:
            load = f"speed {trace['speed']:,}"
        else:
            load = f"{starts['users']} users" if "users" in starts else f"sessions at {starts['rate']}"
        knee = stress.knee.replace("ttft_p99<=", "TTFT p99 within ") or "none"
        lines.append(f"| {name} | {stress.about} | {instances} | {load} | {knee} |")
    return "\n".join(lines) + "\n"


def reasons_list(table: dict[str, dict[str, Cell]]) -> str:
    bad = bad_cells(table)
    lines = []
    for policy in registry.names("routing"):
        if policy in bad:
            lines.append(f"* `{policy}` ({', '.join(bad[policy])}). {limits(policy)}")
    return "\n".join(lines) + "\n"


def render(page: str, table: dict[str, dict[str, Cell]]) -> str:
    """Return the page with its generated blocks."""
    blocks = {
        "scenarios": scenarios_table(FAULTS),
        "faults": cells_table(table, FAULTS),
        "knees": traces_table(),
        "traces": cells_table(table, REPLAYS),
        "reasons": reasons_list(table),
    }
    return BLOCK.sub(lambda block: f"{block[1]}{blocks[block[2]]}{block[3]}", page)


# --- the command -------------------------------------------------------------------------------------------------


def print_knees() -> None:
    """Search for the highest load at which `least-loaded` keeps the bound of each trace."""
    for name in REPLAYS:
        stress = STRESSES[name]
        if stress.knee:
            planned = {**stress.scenario, "policies": {"routing": BASELINE}}
            plan = headway.plan(planned, stress.knee, find="load", seeds=1, points=0, workers=WORKERS, progress=False)
            load = plan.summary()["load"]
            print(
                f"{name}: {stress.knee} up to {load['holds']:g}, not at {load['breaks']:g} ({load['unit']})", flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="Run every built-in routing policy under stress.")
    parser.add_argument("stresses", nargs="*", help=f"by default all: {', '.join(STRESSES)}")
    parser.add_argument("--knees", action="store_true", help="search for the knees of the traces, and print them")
    options = parser.parse_args()
    for name in options.stresses:
        if name not in STRESSES:
            parser.error(f"there is no stress {name!r}. Known: {', '.join(STRESSES)}")
    if options.knees:
        print_knees()
        return
    table = read_figures()
    for name in options.stresses or STRESSES:
        if name in REPLAYS and not TRACES.is_dir():
            print(f"{name}: skipped, because {TRACES} does not exist", file=sys.stderr)
            continue
        before = time.perf_counter()
        table[name] = measure(name, registry.names("routing"))
        print(f"{name}: {time.perf_counter() - before:.0f} s", file=sys.stderr, flush=True)
    write_figures(table)
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8"), table), encoding="utf-8")
    print(reasons_list(table), end="")
    if missing := unexplained(table):
        sys.exit("\n".join(f"{policy} under {name}: above {MOST} without an explanation" for policy, name in missing))


if __name__ == "__main__":
    main()
