"""Arguments of the public functions: wrong types are refused by name, and messages name an argument or an option."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

import headway
from conftest import Run
from headway import HeadwayError
from headway.config.arguments import checked
from headway.errors import argument, command_line, worded
from headway.evolve import Plan, Suite, evolve

SCENARIO: dict[str, Any] = {
    "cluster": {"instances": 2, "latency": {"model": "fixed"}},
    "workload": {"rate": "20/s", "requests": 20, "prompt_tokens": 20, "output_tokens": 4},
}
UNCHECKED = {"policy"}  # a decorator


def error_of(call: Callable[[], Any]) -> str:
    with pytest.raises(HeadwayError) as error:
        call()
    return str(error.value)


@pytest.mark.parametrize("name", [name for name in headway.__all__ if name not in UNCHECKED])
def test_every_public_function_checks_its_arguments(name: str) -> None:
    function = getattr(headway, name)
    if inspect.isfunction(function):
        first = next(iter(inspect.signature(function).parameters))
        assert error_of(lambda: function(object())).startswith(f"{first}: expected ")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: headway.compare(5), "scenario: expected a path, a mapping or a Scenario, got 5."),
        (lambda: headway.compare(SCENARIO, seeds="3"), "seeds: expected a whole number, got '3'."),
        (lambda: headway.compare(SCENARIO, seeds=True), "seeds: expected a whole number, got True."),
        (lambda: headway.compare(SCENARIO, overrides=[5]), "overrides: expected text or a list of texts, got [5]."),
        (lambda: headway.compare(SCENARIO, progress="no"), "progress: expected a function or True or False, got 'no'."),
        (lambda: headway.sweep(SCENARIO, {5: [1]}), "vary: expected the path of a key, such as workload.rate, got 5."),
        (lambda: headway.sweep(SCENARIO, 5), "vary: expected text, a list of texts or a mapping, got 5."),
        (lambda: headway.plan(SCENARIO, "ttft_p99<=1s", tolerance="a"), "tolerance: expected a number, got 'a'."),
        (lambda: headway.plan(SCENARIO, find=5), "find: expected 'replicas' or 'load', got 5."),
        (lambda: headway.convert_trace("a", "b", transforms="cap"), "transforms: expected a list, got 'cap'."),
        (lambda: headway.hardware("h200", tp="1"), "tp: expected a whole number, got '1'."),
        (lambda: headway.Result.load(5), "folder: expected a path, got 5."),
        (lambda: headway.Scenario.load([1]), "source: expected a path, a mapping or a Scenario, got [1]."),
        (lambda: evolve(plan={"engine": "gp"}), "plan: expected a Plan or None, got {'engine': 'gp'}."),
        (lambda: evolve(plan=Plan(batch="1")), "batch: expected a whole number or None, got '1'."),
        (lambda: evolve(plan=Plan(engine="gpp")), "engine: there is no engine 'gpp'. Did you mean 'gp'?"),
        (lambda: Suite.load(5), "source: expected a path, a mapping or a Suite, got 5."),
    ],
)
def test_an_argument_of_a_wrong_type_is_named(call: Callable[[], Any], message: str) -> None:
    assert error_of(call) == message


def test_numbers_of_other_packages_are_numbers() -> None:
    numpy = pytest.importorskip("numpy", reason="NumPy is not installed")
    assert len(headway.compare(SCENARIO, ["random"], seeds=numpy.int64(1), workers=1, progress=False).ranked) == 1


def test_a_missing_or_unknown_argument_is_an_error_of_python() -> None:
    @checked
    def call(scenario: str, *, find: Literal["load"] = "load") -> str:
        return scenario + find

    assert call("a") == "aload"
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'scenario'"):
        call()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'found'"):
        call("a", found="load")  # type: ignore[call-arg]


def test_a_message_names_the_argument_in_python_and_the_option_on_the_command_line() -> None:
    assert (argument("max_replicas"), argument("format", "--from")) == ("max_replicas", "format")
    with command_line():
        assert (argument("max_replicas"), argument("format", "--from")) == ("--max-replicas", "--from")
        assert worded("--force", "force=True") == "--force"
    assert worded("--force", "force=True") == "force=True"


@pytest.mark.parametrize(
    ("call", "words", "python", "option"),
    [
        (
            lambda folder: headway.convert_trace(folder / "own.csv", folder / "out.jsonl", format="nothing"),
            ["trace", "convert", "own.csv", "out.jsonl", "--from", "nothing"],
            "format: no trace format is called",
            "--from: no trace format is called",
        ),
        (
            lambda folder: headway.inspect_trace(folder / "own.csv"),
            ["trace", "inspect", "own.csv"],
            'Pass columns="arrival=COLUMN,prompt=COLUMN,output=COLUMN"',
            "Pass --map arrival=COLUMN,prompt=COLUMN,output=COLUMN",
        ),
        (
            lambda folder: headway.preview(SCENARIO, requests=0),
            ["workload", "preview", "--requests", "0"],
            "requests: must be at least 1",
            "--requests: must be at least 1",
        ),
        (
            lambda folder: evolve(plan=Plan(batch=1)),
            ["evolve", "--batch", "1"],
            "batch: expected 2 candidates or more",
            "--batch: expected 2 candidates or more",
        ),
        (
            lambda folder: headway.compare(SCENARIO, ["random"], ray="nowhere"),
            ["compare", "--policies", "random", "--ray", "nowhere"],
            "ray: expected ",
            "--ray: expected ",
        ),
    ],
)
def test_an_error_is_worded_for_python_or_the_command_line(
    headway: Run, tmp_path: Path, call: Callable[[Path], Any], words: list[str], python: str, option: str
) -> None:
    (tmp_path / "own.csv").write_text("a,b,c\n1,2,3\n2,3,4\n")
    message = error_of(lambda: call(tmp_path))
    assert python in message and "--" not in message
    done = headway(*words, cwd=tmp_path)
    assert done.returncode == 2 and option in done.stderr


def test_texts_of_results_name_no_option_in_python() -> None:
    shown = repr(headway.preview({**SCENARIO, "workload": {"rate": "5/s", "requests": 500}}, requests=10))
    assert "To see more, use requests." in shown
