"""`headway report`: the results of runs as one HTML file."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from headway.errors import HeadwayError, argument
from headway.report import html
from headway.report.cases import Case, Cases, Source, open_cases
from headway.report.charts import MOST
from headway.report.digest import Book, digest
from headway.report.sections.attainment import slo
from headway.report.sections.cache_hits import cache
from headway.report.sections.details import parameters
from headway.report.sections.finding_list import findings
from headway.report.sections.latency_curves import distributions
from headway.report.sections.load_over_time import load, over_time
from headway.report.sections.opening import headline, opening
from headway.report.sections.regrets import decisions
from headway.report.sections.sweep_lines import sweep, sweep_of
from headway.results.result import Result

Progress = Callable[[int, int], None]  # called with the number of runs read so far and the total number of runs
DEFAULT: Final = "report.html"
# The parts of a page in reading order: name, title in links, and the function that writes the part ("" if it is empty).
PARTS: Final[tuple[tuple[str, str, Callable[[Book], str]], ...]] = (
    ("headline", "Headline", headline),
    ("latencies", "Latencies", distributions),
    ("load", "Load by instance", load),
    ("cache", "Cache", cache),
    ("decisions", "Decisions", decisions),
    ("slo", "SLO", slo),
    ("over-time", "Over time", over_time),
    ("findings", "Findings", findings),
    ("parameters", "Parameters", parameters),
)


def report(
    sources: Source | Sequence[Source], output: str | Path | None = None, progress: Progress | None = None
) -> Path:
    """Write an HTML page about runs or about one study folder, and return the path of the page. Runs are folders or
    results in memory.

    Several runs are compared with the first. The default `output` is `report.html` in the folder of a single run or
    study, in the parent folder of several runs, or in the current folder for results in memory.
    """
    runs = [sources] if isinstance(sources, str | Path | Result) else list(sources)
    path = place(runs) if output is None else Path(output)
    if path.is_dir():
        raise HeadwayError(
            f"{argument('output')}: {str(path)!r} is a folder; name a file, as in {str(path / DEFAULT)!r}."
        )
    html.write(path, page(open_cases(runs), progress), argument("output"))
    return path


def place(sources: Sequence[Source]) -> Path:
    """Return the default path of a page: in the folder of a single run or study, or in the parent folder of several
    runs. Results in memory use the current folder."""
    folders = [Path(source) for source in sources if not isinstance(source, Result)]
    if not folders:
        return Path(DEFAULT)
    return (folders[0] if len(sources) == 1 else folders[0].parent) / DEFAULT


def page(cases: Cases, progress: Progress | None = None) -> str:
    """Return the page as a string."""
    swept = sweep_of(cases) if cases.kind == "sweep" else None
    tabled = cases if swept is None else swept.table(cases)
    chosen, note = choose_drawn(tabled)
    digests = []
    for finished, case in enumerate(chosen):
        if progress is not None:
            progress(finished, len(chosen))
        digests.append(digest(case.label, case.result(), case.folder))
    book = Book(tabled, digests, note)
    parts = [(name, title, write(book)) for name, title, write in PARTS]
    if swept is not None:
        parts.insert(2, ("sweep", "Sweep", sweep(book, swept)))
    parts = [part for part in parts if part[2]]
    links = [part[:2] for part in parts]
    return html.page(f"{cases.name}: report", [*opening(book, links), *(part[2] for part in parts)])


def choose_drawn(cases: Cases) -> tuple[list[Case], str]:
    """Return the runs that charts show, always with the baseline, and a note if charts do not show all runs."""
    count = len(cases.cases)
    if count <= MOST:
        return cases.cases, ""
    others = [case.label for case in cases.cases if case.label != cases.baseline]
    labels = {cases.baseline, *others[: MOST - (cases.baseline is not None)]}
    note = f"Charts show {MOST} of {count:,} runs: the best and the baseline. Tables show all runs."
    return [case for case in cases.cases if case.label in labels], note
