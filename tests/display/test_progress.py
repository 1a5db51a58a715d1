"""Progress of the package's functions: a bar in a terminal and in a notebook, unless the caller turns it off."""

from __future__ import annotations

import io
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import redirect_stderr
from types import SimpleNamespace
from typing import Any

import pytest

import headway
from headway.display import progress
from headway.display.progress import Bar, CountProgress, watch

SCENARIO: dict[str, Any] = {
    "cluster": {"instances": 2, "latency": {"model": "fixed"}},
    "workload": {"rate": "20/s", "requests": 20, "prompt_tokens": 64, "output_tokens": 4},
}
LONG: dict[str, Any] = {"workload": {**SCENARIO["workload"], "requests": 5000}}
CALLS: dict[str, tuple[str, Callable[..., Any]]] = {
    "simulate": ("requests", lambda **more: headway.simulate(SCENARIO, **more)),
    "compare": ("policies", lambda **more: headway.compare(SCENARIO, "random,round-robin", workers=1, **more)),
    "controls": ("policies", lambda **more: headway.controls(SCENARIO, workers=1, **more)),
    "sweep": ("runs", lambda **more: headway.sweep(SCENARIO, "workload.rate=10,20", workers=1, **more)),
    "plan": ("runs", lambda **more: headway.plan(SCENARIO, "ttft_p99<=1s", seeds=1, points=0, workers=1, **more)),
    # It reports nothing meanwhile, so only the timer draws; it takes many times the timer's millisecond.
    "preview": ("drawing", lambda **more: headway.preview(SCENARIO | LONG, requests=5000, **more)),
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw at the first report, and do not wait between two drawings."""
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    monkeypatch.setattr(progress, "FRAME_S", 0.0)
    monkeypatch.setenv("HEADWAY_PROGRESS", "on")


@pytest.fixture
def terminal(at_once: None, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


class Notebook:
    """Stands for the kernel of a notebook, and records what a cell shows."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []
        self.drawn = threading.Event()
        self.kernel = object()

    def display(self, content: dict[str, str], *, raw: bool, display_id: bool) -> Notebook:
        assert raw and display_id
        self.update(content, raw=raw)
        return self

    def update(self, content: dict[str, str], *, raw: bool) -> None:
        self.shown.append(content)
        self.drawn.set()


@pytest.fixture
def notebook(at_once: None, monkeypatch: pytest.MonkeyPatch) -> Notebook:
    kernel = Notebook()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: kernel))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "IPython.display", kernel)  # type: ignore[arg-type]
    return kernel


@pytest.mark.parametrize("name", CALLS)
def test_a_function_shows_one_bar_in_a_terminal(terminal: Terminal, name: str) -> None:
    unit, call = CALLS[name]
    with redirect_stderr(terminal):
        call()
    assert unit in terminal.getvalue()
    if unit != "requests":
        assert "/20 requests" not in terminal.getvalue()  # the simulations inside have no bars of their own


@pytest.mark.parametrize("name", CALLS)
def test_progress_can_be_turned_off(terminal: Terminal, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with redirect_stderr(terminal):
        CALLS[name][1](progress=False)
        monkeypatch.setenv("HEADWAY_PROGRESS", "off")
        CALLS[name][1]()
    assert terminal.getvalue() == ""


def test_a_program_without_a_terminal_prints_nothing(at_once: None, capfd: pytest.CaptureFixture[str]) -> None:
    headway.simulate(SCENARIO)
    assert capfd.readouterr() == ("", "")


def test_a_notebook_shows_a_bar_in_its_cell_and_removes_it_at_the_end(notebook: Notebook) -> None:
    with watch(True, lambda: Bar(None, "runs")) as report:
        report(3, 12)
        assert notebook.drawn.wait(10)  # a thread draws, also if no progress is reported
        notebook.drawn.clear()
        assert notebook.drawn.wait(10)
    html = [content["text/html"] for content in notebook.shown]
    assert html[-1] == "" and any(
        text.startswith('<progress value="3" max="12"></progress> 3/12 runs') for text in html
    )
    assert not any(thread.name == "progress" for thread in threading.enumerate())


def test_a_bar_of_unknown_length_has_no_end(notebook: Notebook) -> None:
    screen = progress.NotebookScreen()
    screen.draw("<b>5</b> runs", 5, None, 61.0)
    assert notebook.shown[0]["text/html"] == "<progress></progress> &lt;b&gt;5&lt;/b&gt; runs, 0:01:01"


def test_short_work_shows_nothing(monkeypatch: pytest.MonkeyPatch, terminal: Terminal) -> None:
    monkeypatch.setattr(progress, "PATIENCE_S", 600.0)
    with redirect_stderr(terminal):
        headway.simulate(SCENARIO)
    assert terminal.getvalue() == ""


def test_a_function_of_the_caller_takes_the_place_of_the_bar(terminal: Terminal) -> None:
    calls: list[tuple[int, int]] = []
    with redirect_stderr(terminal):
        headway.compare(SCENARIO, "random,round-robin", workers=1, progress=lambda *count: calls.append(count))
    assert calls == [(1, 2), (2, 2)]
    assert terminal.getvalue() == ""


def test_a_bar_counts_calls_without_numbers(terminal: Terminal) -> None:
    with redirect_stderr(terminal), watch(True, lambda: CountProgress(2, "runs")) as report:
        report()
        report()
    assert "2/2 runs" in terminal.getvalue()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers")
def test_a_preparation_counts_in_its_own_unit(terminal: Terminal) -> None:
    with redirect_stderr(terminal), Bar(None, "requests") as bar:
        bar.stage("rows checked", 5000)
        assert "5,000 rows checked" in terminal.getvalue()
        bar.update(7)
        assert "7 requests" in terminal.getvalue()


def test_the_timer_of_the_callers_program_stays_in_force(terminal: Terminal) -> None:
    def ring(*_: object) -> None:
        raise AssertionError("the timer must not ring during the test")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with redirect_stderr(terminal), Bar(None, "runs"):
            assert signal.getsignal(signal.SIGALRM) is ring
        assert signal.getsignal(signal.SIGALRM) is ring
    finally:
        signal.signal(signal.SIGALRM, before)


def test_an_interrupt_says_how_far_the_work_came(at_once: None) -> None:
    with pytest.raises(KeyboardInterrupt) as error, Bar(9, "runs") as bar:
        bar.update(4)
        raise KeyboardInterrupt
    assert error.value.__notes__ == ["4/9 runs. Nothing was written."]
