"""The status page as people open it: in a real browser, behind its key, updating by itself."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("aiohttp", reason="the extra `gateway` is not installed")

from asking import ADMIN, KEY, admin, chat, component


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("TEST_ADMIN_KEY", KEY)


class Opened:
    """The page of a gateway, with whatever went wrong in it and whom it asked."""

    def __init__(self, browser: Any, live: Any, **options: Any) -> None:
        self.root = f"http://127.0.0.1:{component(live, 'Admin').port}/"
        self.context = browser.new_context(http_credentials={"username": "x", "password": KEY}, **options)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda said: self.complaints.append(said.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(self.root)

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def cells(self, table: str) -> list[list[str]]:
        rows = self.page.locator(f"#{table} tbody tr").all()
        return [[cell.inner_text() for cell in row.locator("td").all()] for row in rows]

    def until(self, holds: str, argument: object = None) -> None:
        self.page.wait_for_function(holds, arg=argument, timeout=120_000)


SHOWS = "text => document.body.innerText.includes(text)"
ROWS = "([table, count]) => document.querySelectorAll(`#${table} tbody tr`).length === count"


@pytest.mark.full
def test_it_shows_the_engines_and_follows_them_by_itself(live, browser):
    gateway = live(3, admin=ADMIN, policies={"routing": "kv-aware"})
    with Opened(browser, gateway) as opened:
        opened.until(ROWS, ["backends", 3])
        assert [row[0] for row in opened.cells("backends")] == ["e0", "e1", "e2"]
        assert opened.cells("decisions") == []
        for number in range(5):
            chat(gateway, f"number {number} " * 60, stream=True)
        opened.until(ROWS, ["decisions", 5])
        assert {row[3] for row in opened.cells("decisions")} == {"near-tie, by hash"}
        assert [row[0] for row in opened.cells("decisions")] == ["4", "3", "2", "1", "0"]
        opened.until("() => document.querySelector('#latency tbody tr td:last-child').textContent === '5'")
        assert all(float(cell) > 0 for cell in opened.cells("latency")[0][1:4])
        admin(gateway, "/backends/e1/cordon", "POST")
        opened.until(SHOWS, "cordoned")
        assert opened.cells("backends")[1][1] == "cordoned"
        admin(gateway, "/policies", "PUT", {"routing": "round-robin"})
        opened.until(SHOWS, "routing: round-robin")
        assert opened.page.locator("#version").inner_text() == "1"
        assert opened.complaints == []
        assert all(url.startswith(opened.root) for url in opened.requests)


@pytest.mark.full
def test_names_from_outside_are_text_and_never_markup(live, browser):
    gateway = live(1, admin=ADMIN)
    chat(gateway, model="<img src=x onerror=alert(1)>")
    with Opened(browser, gateway) as opened:
        opened.until(SHOWS, "<img src=x onerror=alert(1)>")
        assert opened.page.locator("main img").count() == 0 and opened.complaints == []


@pytest.mark.full
def test_it_says_so_when_the_gateway_is_gone(live, browser):
    gateway = live(1, admin=ADMIN)
    with Opened(browser, gateway) as opened:
        opened.until(ROWS, ["backends", 1])
        gateway.call(component(gateway, "Admin").stop())
        opened.until(SHOWS, "The gateway does not answer")


@pytest.mark.full
@pytest.mark.parametrize(
    "options", [{"viewport": {"width": 390, "height": 844}}, {"color_scheme": "dark"}], ids=["phone", "dark"]
)
def test_it_fits_a_telephone_and_the_dark(live, browser, options):
    gateway = live(2, admin=ADMIN)
    chat(gateway)
    with Opened(browser, gateway, **options) as opened:
        opened.until(ROWS, ["backends", 2])
        wide = opened.page.evaluate("() => document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0 and opened.complaints == []
        back = opened.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        assert (back == "rgb(20, 23, 28)") == ("color_scheme" in options)


@pytest.mark.full
def test_it_shows_what_is_tried_and_what_failed(live, browser):
    failing = {
        "name": "code",
        "source": "def score(request, instance, cluster):\n    return 1 / (0 * instance.index)\n",
    }
    canary = {"policies": {"routing": failing}, "share": 1.0}
    gateway = live(2, admin=ADMIN, canary=canary, shadow={"turns": {"routing": "round-robin"}})
    with Opened(browser, gateway) as opened:
        opened.until(ROWS, ["shadows", 1])
        for _ in range(6):
            assert chat(gateway, stream=True).status == 200
        opened.until(SHOWS, "Stopped: its policies failed 5 times")
        opened.until("() => document.querySelector('#shadows tbody td:nth-child(3)').textContent === '6'")
        assert opened.cells("shadows")[0][:2] == ["turns", "asked"]
        assert [row[0] for row in opened.cells("canary")] == ["live", "canary"]
        assert "Policies failed 5 times" in opened.page.locator("#failures").inner_text()
        assert opened.complaints == []
