"""`headway report` on the folder of a search: its candidates, the winner's descent, and the held-out comparison as one
HTML file. While the search runs, the page has no winner yet, and the browser loads it again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import ndiff
from html import escape
from itertools import pairwise
from math import fsum
from pathlib import Path
from typing import Final

from headway.errors import HeadwayError, argument
from headway.evolve.ablation import candidate_id
from headway.evolve.final import points
from headway.evolve.fitness import FAILED, share
from headway.evolve.journal import Judged, read_batches, read_cpu_s, read_search
from headway.evolve.objectives import COMPLEXITY, PRIMARY
from headway.evolve.search_tables import beaten_oracles, candidates_chart, cpu_chart, front_chart, held_out_chart
from headway.evolve.texts import readable
from headway.policies.bundle import Bundle
from headway.report import html
from headway.report.charts import categories, chart, figure, hints, side_by_side
from headway.report.number_format import GAP, brief
from headway.report.result_view import Figure
from headway.types import Json

REFRESH_S: Final = 10
SHOWN: Final = 20  # candidates in the table


def report_search(folder: Path, output: Path | None = None) -> Path:
    """Write the page of a search, and return its path. The default is `report.html` in the folder."""
    path = folder / "report.html" if output is None else output
    if path.is_dir():
        raise HeadwayError(f"{argument('output')}: {str(path)!r} is a folder. Name a file, such as report.html.")
    html.write(path, search_page(folder), argument("output"))
    return path


def follow_search(folder: Path, output: Path | None, wait: Callable[[], object]) -> Path:
    """Write the page of a search again after each new batch until the search has ended. `wait` waits for a moment."""
    written = -1
    while True:
        concluded = read_search(folder)[1] is not None
        if concluded or len(read_batches(folder)) != written:
            written = len(read_batches(folder))
            path = report_search(folder, output)
        if concluded:
            return path
        wait()


def search_page(folder: Path) -> str:
    """Return the page as a string."""
    search, result = read_search(folder)
    batches, seconds = read_batches(folder), read_cpu_s(folder)
    judged = [each for batch in batches for each in batch]
    winner = None if result is None else Bundle.read(result["winner"]["bundle"])
    title = f"{search.get('suite', folder.name)}: search"
    parts = [html.heading(title, _state(search, judged, result)), _facts(judged, result, seconds)]
    parts.append(_candidates(judged, winner, cpu_chart(batches, seconds)))
    if result is not None and winner is not None:
        parts += [_winner(judged, winner, result), _held_out(result)]
    return html.page(title, filter(None, parts), REFRESH_S if result is None else None)


def _state(search: Json, judged: Sequence[Judged], result: Json | None) -> str:
    how = f"Engine {search.get('engine')}, seed {search.get('seed')}, batches of {search.get('batch')}. "
    if result is None:
        return f"{how}The search is not finished: {len(judged):,} candidates so far."
    return how + str(result["verdict"])


def _facts(judged: Sequence[Judged], result: Json | None, seconds: Sequence[float]) -> str:
    distinct = {each.bundle.id: each for each in judged}
    gains = [each.evaluation.fitness[PRIMARY] for each in judged]
    failed = sum(not each.evaluation.ok and each.evaluation.stopped is None for each in distinct.values())
    stopped = sum(each.evaluation.stopped is not None for each in distinct.values())
    rows = [
        ("candidates", f"{len(judged):,}"),
        ("of these different", f"{len(distinct):,}"),
        ("failed", f"{failed:,}"),
        ("stopped early", f"{stopped:,}"),
        ("best gain on train", share(max(gains)) if gains else GAP),
    ]
    if seconds:
        minutes = fsum(seconds) / 60
        rows.append(("CPU minutes of the search", f"{minutes:,.1f}"))
        rows.append(("candidates per CPU minute", f"{len(judged) / minutes:,.0f}" if minutes > 0 else GAP))
    if result is not None and result["held_out"]:
        rows.append(("looks at the held-out part", str(result["looks"])))
    return html.facts(rows)


# --- the candidates ---------------------------------------------------------------------------------------------------


def _candidates(judged: Sequence[Judged], winner: Bundle | None, over_cpu: Sequence[Figure]) -> str:
    if not judged:
        return html.section("Candidates", note="No batch is finished yet.")
    drawn = [*candidates_chart(judged), *over_cpu, *front_chart(judged, "" if winner is None else candidate_id(winner))]
    best = sorted({each.bundle.id: each for each in judged}.values(), key=_gain, reverse=True)
    names = [name for name in best[0].evaluation.fitness if name not in (PRIMARY, COMPLEXITY)]
    by_id = {each.bundle.id: each.bundle for each in judged}
    rows = []
    for bundle, evaluation in best[:SHOWN]:
        fitness, parent = evaluation.fitness, by_id.get(bundle.parent or "")
        gains = [_share(fitness[name]) for name in (PRIMARY, *names)]
        change = _changes(bundle, by_id) or GAP
        rows.append([bundle.name, *gains, f"{fitness[COMPLEXITY]:.0f}", parent.name if parent else GAP, change])
    note = f"Gains over the baseline on train. The table has the best {len(rows)} of {len(best):,} candidates."
    headers = ["candidate", PRIMARY, *names, COMPLEXITY, "parent", "change"]
    return html.section("Candidates", _figures("candidates", drawn), html.table(headers, rows), note=note)


def _changes(bundle: Bundle, by_id: Mapping[str, Bundle]) -> str:
    """Return what a search changed in the parent of a candidate, with names instead of ids."""
    words = " ".join(", ".join(bundle.mutations).split()).split(" ")
    return " ".join(by_id[word].name if word in by_id else word for word in words)


def _gain(judged: Judged) -> float:
    return judged.evaluation.fitness[PRIMARY]


def _share(gain: float) -> str:
    return "failed" if gain <= FAILED else share(gain)


def _figures(name: str, drawn: Sequence[Figure]) -> str:
    return side_by_side([figure(f"{name}-{place}", title, each) for place, (title, each) in enumerate(drawn)])


# --- the winner -------------------------------------------------------------------------------------------------------


def _winner(judged: Sequence[Judged], winner: Bundle, result: Json) -> str:
    """Return the winner's source and its descent: what each ancestor changed in its parent."""
    known = {each.bundle.id: each for each in reversed(judged)}
    stages = [stage for stage in winner.policies if len({str(each.bundle.policy(stage)) for each in judged}) > 1]
    chain, current = [winner], winner
    while current.parent in known and current.parent not in {bundle.id for bundle in chain}:
        current = known[current.parent].bundle
        chain.append(current)
    steps = []
    for child, parent in pairwise(chain):
        gain, before = (_share(_gain(known[each.id])) if each.id in known else GAP for each in (child, parent))
        change = _changes(child, {name: each.bundle for name, each in known.items()})
        steps.append(f"<h3>{escape(f'{child.name} from {parent.name}' + (f': {change}' if change else ''))}</h3>")
        steps.append(f"<p>{escape(f'Gain on train: {before} before, {gain} after.')}</p>")
        steps += [_difference(_source(parent, stage), _source(child, stage)) for stage in stages or ["routing"]]
    source = f"<pre>{escape(str(result['source']).rstrip())}</pre>"
    if len(chain) == 1:
        steps.append("<p>The winner has no parent among the candidates.</p>")
    else:
        steps.insert(0, f"<p>{escape(' ← '.join(bundle.name for bundle in chain))}</p>")
    note = f"Chosen on {result['chosen_on']}: {winner.name}."
    return html.section("Winner and its descent", source, *steps, note=note)


def _source(bundle: Bundle, stage: str) -> list[str]:
    return readable(bundle, stage).rstrip().splitlines()


def _difference(before: Sequence[str], after: Sequence[str]) -> str:
    """Return the lines of two sources; added and removed lines are marked."""
    marks = {"+ ": "ins", "- ": "del"}
    lines = []
    for line in ndiff(before, after):
        if not line.startswith("? "):
            mark = marks.get(line[:2])
            shown = escape(line)
            lines.append(f"<{mark}>{shown}</{mark}>" if mark else f"{shown}\n")
    return f"<pre>{''.join(lines)}</pre>"


# --- the held-out part ------------------------------------------------------------------------------------------------


def _held_out(result: Json) -> str:
    contestants: list[Json] = result["held_out"]
    if not contestants:
        return html.section("Held out", note="The suite has no held-out part.")
    workloads = list(contestants[0]["gain"]["workloads"])
    rows = []
    for each in contestants:
        kind = "" if each["kind"] == "built-in" else f" ({each['kind']})"
        gain = each["gain"]
        cells = [_share(gain["mean"]) + _half(gain), GAP if each["ahead"] is None else _lead(each["ahead"])]
        gains = [_share(gain["workloads"][workload]) for workload in workloads]
        rows.append([html.unbroken(f"{each['name']}{kind}"), *(cells if each["ok"] else ["failed", GAP]), *gains])
    note = "Gains over the baseline with 95 % confidence intervals, and the winner's lead in points, paired by seed."
    headers = ["policy", "gain", "winner leads by", *workloads]
    drawn = [*held_out_chart(contestants), *_heat(contestants, workloads)]
    return html.section(
        "Held out", _figures("held-out", drawn), html.table(headers, rows), _headroom(result), note=note
    )


def _lead(gain: Mapping[str, float | None]) -> str:
    return points(gain["mean"] or 0.0) + _half(gain)


def _half(gain: Mapping[str, float | None]) -> str:
    low, high = gain["low"], gain["high"]
    return "" if low is None or high is None else f" ± {50 * (high - low):.1f}"


def _heat(contestants: Sequence[Json], workloads: Sequence[str]) -> list[Figure]:
    """Chart the gain of each policy in each workload."""
    names = [each["name"] for each in contestants if each["ok"]]
    values = [
        {"policy": each["name"], "workload": workload, "value": brief(each["gain"]["workloads"][workload])}
        for each in contestants
        if each["ok"]
        for workload in workloads
    ]
    best = max(contestants, key=lambda each: each["gain"]["mean"])["gain"]["workloads"].values()
    top = max(0.02, *map(abs, best))  # policies that are far worse have the last colour
    colour = {
        "field": "value",
        "type": "quantitative",
        "scale": {"scheme": "blueorange", "reverse": True, "domain": [-top, top], "clamp": True},
        "legend": {"title": None, "orient": "top", "gradientLength": 160, "format": ".0%"},
    }
    drawn = chart(
        "Gain over the baseline, by policy and workload.",
        values,
        height=max(60, 18 * len(names)),
        mark={"type": "rect"},
        encoding={
            "x": categories("workload", workloads, labelAngle=0),
            "y": categories("policy", names, labelLimit=200, ticks=False),
            "color": colour,
            "tooltip": hints(("policy", "policy"), ("workload", "workload"), ("value", "gain")),
        },
    )
    return [("Gain by policy and workload", drawn)] if values else []


def _headroom(result: Json) -> str:
    rooms = result["headroom"]
    rows = [
        [
            workload,
            _share(room["winner"]),
            GAP if room["oracle"] is None else _share(room["oracle"]),
            _share(room["best"]),
            room["policy"],
        ]
        for workload, room in rooms.items()
    ]
    if not rows:
        return ""
    head = "<h3>Headroom: the best gain of any policy, which is the least that can be gained there</h3>"
    words = beaten_oracles([(room["oracle"], room["best"]) for room in rooms.values()])
    note = f"<p>{escape(words)}</p>" if words else ""
    return head + html.table(["workload", "winner's gain", "oracle's gain", "best gain", "of policy"], rows) + note
