"""A report as people open it: in a real browser, from disk, with the network off."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from reported import compared, counterfactual, finding

from headway.evolve.evolution import Plan, evolve
from headway.evolve.search_page import report_search
from headway.experiment.validate import validate
from headway.report.page import report
from headway.report.validation import page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
# Of each chart: how wide and high it is drawn, and how many of its marks have any size.
DRAWN = """() => [...document.querySelectorAll('.chart')].map(box => {
    const svg = box.querySelector('svg');
    if (!svg) return null;
    const {width, height} = svg.getBoundingClientRect();
    const marks = [...svg.querySelectorAll('.mark-line path, .mark-rect path, .mark-symbol path, .mark-rule line')];
    const shown = marks.filter(mark => { const at = mark.getBoundingClientRect(); return at.width + at.height > 0; });
    return {width, height, marks: shown.length, label: svg.getAttribute('aria-label') || box.textContent};
})"""
COLOUR = "([selector, name]) => getComputedStyle(document.querySelector(selector)).getPropertyValue(name)"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = compared.__wrapped__()  # own ones, as they are changed
    for result in results:
        result._findings = [finding()]
        result.counterfactuals = [counterfactual(result, place, place * 10**10 - 10**11) for place in range(20)]
    return report(results, tmp_path_factory.mktemp("report") / "report.html")


class Opened:
    """A page, with whatever went wrong in it."""

    def __init__(self, browser: Browser, file: Path, **options: Any) -> None:
        self.context = browser.new_context(offline=True, **options)
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda said: self.complaints.append(said.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def drawn(self) -> list[dict[str, Any]]:
        """The charts, once all are there."""
        self.page.wait_for_function("[...document.querySelectorAll('.chart')].every(box => box.querySelector('svg'))")
        found: list[dict[str, Any]] = self.page.evaluate(DRAWN)
        return found

    def colour(self, selector: str, name: str) -> float:
        """How light a colour is, from 0 to 255."""
        parts = re.findall(r"[\d.]+", self.page.evaluate(COLOUR, [selector, name]))
        return sum(int(float(part)) for part in parts[:3]) / 3


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"viewport": WIDE}, id="desktop"),
        pytest.param({"viewport": PHONE}, id="phone", marks=pytest.mark.full),
        pytest.param({"viewport": WIDE, "color_scheme": "dark"}, id="dark", marks=pytest.mark.full),
    ],
)
def test_charts_are_drawn_offline_without_a_complaint(browser: Browser, file: Path, options: dict[str, Any]) -> None:
    with Opened(browser, file, **options) as opened:
        charts = opened.drawn()
        assert len(charts) >= 18
        for chart in charts:
            assert chart["width"] > 100 and chart["height"] > 30 and chart["marks"] > 0, chart
        assert opened.complaints == []
        assert opened.requests == [file.as_uri()]


@pytest.mark.full
@pytest.mark.parametrize("width", [320, 390, 768])
def test_a_narrow_page_does_not_scroll_sideways(browser: Browser, file: Path, width: int) -> None:
    with Opened(browser, file, viewport={"width": width, "height": 844}) as opened:
        opened.drawn()
        opened.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert opened.page.evaluate("document.scrollingElement.scrollWidth") <= width


@pytest.mark.full
def test_the_page_of_a_search_draws_its_charts_and_fits_a_phone(browser: Browser, tmp_path: Path) -> None:
    suite = {
        "name": "short",
        "objectives": [{"name": "ttft", "figure": "latency.ttft.mean"}],
        "baseline": {"routing": "round-robin"},
        "scenario": {"cluster": {"instances": 2, "latency": {"model": "linear"}}},
        "workloads": {"short": {"requests": 20, "rate": "20/s", "prompt_tokens": 900, "output_tokens": 8}},
        "train": [{"workload": "short", "seeds": [1]}],
        "validation": [{"workload": "short", "seeds": [2]}],
        "held_out": [{"workload": "short", "seeds": [3, 4]}],
    }
    evolve(suite, Plan("gp", batch=10), evaluations=10, controls=False, builtins=["lmetric"], output=tmp_path / "found")
    with Opened(browser, report_search(tmp_path / "found"), viewport=PHONE) as opened:
        charts = opened.drawn()
        assert len(charts) == 4
        assert min(chart["marks"] for chart in charts) > 0
        assert opened.complaints == []
        assert opened.page.evaluate("document.scrollingElement.scrollWidth") <= PHONE["width"]


@pytest.mark.full
def test_charts_follow_the_scheme_even_when_it_changes(browser: Browser, file: Path) -> None:
    with Opened(browser, file, viewport=WIDE, color_scheme="light") as opened:
        opened.drawn()
        label = ".chart .mark-text text"
        assert opened.colour("body", "background-color") > 200 and opened.colour(label, "fill") < 130
        opened.page.emulate_media(color_scheme="dark")
        assert opened.colour("body", "background-color") < 60 and opened.colour(label, "fill") > 130
        assert opened.colour("h1", "color") > 200
        opened.page.emulate_media(color_scheme="dark", media="print")
        assert opened.colour("body", "background-color") > 200 and opened.colour(label, "fill") < 130


@pytest.mark.full
def test_a_finding_links_to_the_rows_of_its_requests_and_back(browser: Browser, file: Path) -> None:
    with Opened(browser, file) as opened:
        finding = opened.page.locator("#finding-0-0")
        finding.locator("summary", has_text="Requests").click()
        number = finding.locator("details a").first
        row = opened.page.locator(number.get_attribute("href") or "")
        assert not row.is_visible()
        number.click()
        assert row.is_visible()
        row.locator("xpath=ancestor::tr").locator("a").first.click()
        assert opened.page.url.endswith("#finding-0-0")
        assert opened.complaints == []


@pytest.mark.full
def test_without_scripts_the_verdict_the_tables_and_the_findings_are_there(browser: Browser, file: Path) -> None:
    with Opened(browser, file, viewport=WIDE, java_script_enabled=False) as opened:
        page = opened.page
        assert "within the SLO" in page.inner_text(".verdict")
        assert page.is_visible("#headline table") and page.is_visible("#slo table")
        assert page.is_visible("text=12 requests waited long.")
        assert page.is_visible("text=Scripts are off")
        assert not page.is_visible(".chart")
        page.locator("#latencies summary").click()
        assert page.is_visible("#latencies table")
        assert opened.complaints == []


@pytest.mark.full
def test_a_chart_tells_its_figures_under_the_pointer(browser: Browser, file: Path) -> None:
    with Opened(browser, file, viewport=WIDE) as opened:
        opened.drawn()
        opened.page.locator("#load .chart .mark-rect path").nth(40).hover()
        opened.page.wait_for_selector("#vg-tooltip-element.visible")
        assert "instance" in opened.page.inner_text("#vg-tooltip-element")


@pytest.mark.full
def test_links_lead_to_the_parts(browser: Browser, file: Path) -> None:
    with Opened(browser, file, viewport=WIDE) as opened:
        opened.drawn()
        opened.page.click("nav a[href='#findings']")
        top = opened.page.locator("#findings").bounding_box()["y"]  # type: ignore[index]
        assert -1 < top < WIDE["height"]  # the browser scrolls to whole pixels


@pytest.mark.full
def test_it_prints_on_several_pages(browser: Browser, file: Path) -> None:
    with Opened(browser, file, viewport=WIDE, color_scheme="dark") as opened:
        opened.drawn()
        printed = opened.page.pdf(format="A4", print_background=True)
        assert printed.startswith(b"%PDF") and len(re.findall(rb"/Type\s*/Page\b", printed)) > 2


LINES = "() => [...document.querySelectorAll('.chart')].map(box => box.querySelectorAll('.mark-line path').length)"
AXES = "() => [...document.querySelectorAll('.chart')].map(box => box.querySelector('svg').textContent)"


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["desktop", "phone"])
def test_a_validation_draws_both_distributions_with_labelled_axes_and_its_table_fits(
    browser: Browser, tmp_path: Path, size: Any, scheme: Any
) -> None:
    ours, theirs, _ = compared.__wrapped__()
    file = tmp_path / "errors.html"
    theirs.save(tmp_path / "recorded")
    file.write_text(page(validate(ours, tmp_path / "recorded")), encoding="utf-8")
    with Opened(browser, file, viewport=size, color_scheme=scheme) as opened:
        charts = opened.drawn()
        assert len(charts) == 3 and all(chart["width"] > 200 for chart in charts)
        assert opened.page.evaluate(LINES) == [2, 2, 2]
        for name, axes in zip(("TTFT", "TPOT", "E2E"), opened.page.evaluate(AXES), strict=True):
            assert f"{name}, ms" in axes and "share of requests" in axes and "100%" in axes
        fits = "(() => { const box = document.querySelector('.wide'); return box.scrollWidth <= box.clientWidth })()"
        assert (
            opened.page.evaluate(fits)
            and opened.page.evaluate("document.scrollingElement.scrollWidth") <= size["width"]
        )
        assert opened.complaints == [] and opened.requests == [file.as_uri()]
