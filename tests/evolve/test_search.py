"""The loop of a search: independent of the workers, resumable, and blind to the held-out part."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from small import document, suite

import headway.evolve.search as search_module
from headway.errors import HeadwayError
from headway.evolve import Bundle, Cache, Suite, evaluate
from headway.evolve.bench import Bench
from headway.evolve.cache import Record
from headway.evolve.evolution import Plan, evolve
from headway.evolve.final import Conclusion
from headway.evolve.journal import CPU, Journal, read_batches
from headway.evolve.search import Budget, Search
from installed import need

need("optuna", "evolve")
ENGINES = ("numeric", "gp")  # two suffice for the loop, which all engines share
EITHER = [pytest.param("numeric", marks=pytest.mark.full), "gp"]
FEW = ["lmetric", "least-loaded"]


def few() -> Suite:
    """Return a suite with one case in each part and 20 requests in each case, for tests of the loop."""
    prefixes = {**document()["workloads"]["prefixes"], "requests": 20, "output_tokens": 8}
    return suite(
        workloads={"prefixes": prefixes},
        train=[{"workload": "prefixes", "seeds": [1]}],
        validation=[{"workload": "prefixes", "seeds": [11]}],
        held_out=[{"workload": "prefixes", "seeds": [101, 102]}],
    )


def plan(engine: str, seed: int = 3) -> Plan:
    return Plan(engine, seed=seed, batch=5)


def searched(engine: str, folder: Path, evaluations: int = 10, workers: int = 1, **rest: Any) -> Conclusion:
    rest = {"controls": False, "builtins": FEW, "workers": workers, "output": folder} | rest
    return evolve(few(), plan(engine), evaluations=evaluations, **rest)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a search, except its CPU times, which no two runs share."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != CPU]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


@pytest.mark.full
@pytest.mark.parametrize("engine", EITHER)
def test_a_search_writes_the_same_bytes_with_one_worker_and_with_three(engine: str, tmp_path: Path) -> None:
    one = searched(engine, tmp_path / "one", workers=1)
    three = searched(engine, tmp_path / "three", workers=3)
    assert contents(tmp_path / "one") == contents(tmp_path / "three")
    assert one.document() == three.document()
    assert {"search.json", "batches/0000.json", "batches/0001.json", "best.yaml", "result.json"} <= contents(
        tmp_path / "one"
    ).keys()


class Interrupted(Exception):
    pass


class Interrupting:
    """Interrupts a search after some candidates."""

    def __init__(self, after: int) -> None:
        self.after = after

    def __call__(self, done: int, total: int, best: float | None) -> None:
        if done >= self.after:
            raise Interrupted

    def final(self, done: int, total: int) -> None: ...


@pytest.mark.full
@pytest.mark.parametrize("engine", EITHER)
def test_a_search_that_was_interrupted_comes_to_what_it_would_have_come_to(engine: str, tmp_path: Path) -> None:
    searched(engine, tmp_path / "whole", 12)
    with pytest.raises(Interrupted):
        searched(engine, tmp_path / "broken", 12, progress=Interrupting(7))
    assert not (tmp_path / "broken" / "result.json").exists()
    searched(engine, tmp_path / "broken", 12)
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_a_search_that_is_made_longer_comes_to_what_a_long_one_had_come_to(engine: str, tmp_path: Path) -> None:
    for evaluations in (6, 8, 12):
        result = searched(engine, tmp_path / "steps", evaluations)
        assert result.candidates == evaluations
    searched(engine, tmp_path / "once", 12)
    steps, once = contents(tmp_path / "steps"), contents(tmp_path / "once")
    batches = [name for name in once if name.startswith("batches/")]
    assert batches and all(steps[name] == once[name] for name in [*batches, "best.yaml"])
    results = [json.loads(files["result.json"]) for files in (steps, once)]
    looks = [result.pop("looks") for result in results]
    assert results[0] == results[1] and looks[0] >= looks[1] == 1


def test_what_is_written_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched("gp", tmp_path)

    def never(*given: Any, **rest: Any) -> Any:
        raise AssertionError("a candidate was judged again")

    monkeypatch.setattr(search_module, "evaluate_many", never)
    searched("gp", tmp_path)


def test_a_folder_of_another_search_is_refused(tmp_path: Path) -> None:
    searched("gp", tmp_path / "a", 5)
    with pytest.raises(HeadwayError, match=r"holds another search .*seed is 3, not 4"):
        evolve(few(), plan("gp", seed=4), evaluations=10, output=tmp_path / "a")
    with pytest.raises(HeadwayError, match="its cases is"):
        evolve(suite(), plan("gp"), evaluations=10, output=tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.txt").write_text("mine")
    with pytest.raises(HeadwayError, match=r"is not the folder of a search\. Choose another folder"):
        searched("gp", tmp_path / "b", 10)


def test_a_search_is_not_resumed_with_other_held_out_cases(tmp_path: Path) -> None:
    searched("gp", tmp_path, 5)
    others = few().parts | {"held_out": few().parts["held_out"][:1]}
    with pytest.raises(HeadwayError, match=r"holds another search .its held_out is"):
        evolve(replace(few(), parts=others), plan("gp"), evaluations=5, output=tmp_path)


def test_looks_at_the_held_out_part_are_counted_once_for_each_winner(tmp_path: Path) -> None:
    journal = Journal(tmp_path, {})
    assert [journal.look(winner) for winner in ("a", "a", "b", "a")] == [1, 1, 2, 2]
    assert Journal(tmp_path, {}).look("c") == 3
    assert Journal(None, {}).look("a") == 1


def test_a_batch_that_somebody_changed_is_refused(tmp_path: Path) -> None:
    searched("gp", tmp_path)
    first = tmp_path / "batches" / "0000.json"
    (tmp_path / "batches" / "0001.json").write_bytes(first.read_bytes())
    with pytest.raises(HeadwayError, match="its batches do not match this search"):
        searched("gp", tmp_path, 15)
    first.write_text("[{}]")
    with pytest.raises(HeadwayError, match="is not a batch of a search"):
        searched("gp", tmp_path, 15)


@pytest.mark.parametrize("file", ["search.json", "batches/0000.json"])
@pytest.mark.parametrize("text", ["null", "[]", "7", "{"])
def test_a_file_of_a_search_that_somebody_emptied_is_told_of(file: str, text: str, tmp_path: Path) -> None:
    search = Journal(tmp_path / "kept", {})
    search.keep(0, [])
    (tmp_path / "kept" / file).write_text(text)
    with pytest.raises(HeadwayError, match="the file was changed"):
        Journal(tmp_path / "kept", {}).batches()


@pytest.mark.parametrize("engine", EITHER)
def test_no_held_out_case_is_run_before_the_winner_is_chosen(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    plain = Bench.records

    def seen(self: Bench, wanted: Any, left_s: float | None = None) -> list[Record]:
        order.extend(parts[one.case.label] for one in wanted)
        return plain(self, wanted, left_s)

    made = few()
    parts = {case.label: part for part, cases in made.parts.items() for case in cases}
    monkeypatch.setattr(Bench, "records", seen)
    searched(engine, tmp_path)
    first = {part: order.index(part) for part in ("train", "validation", "held_out")}
    last = {part: len(order) - order[::-1].index(part) for part in first}
    assert last["train"] <= first["validation"] and last["validation"] <= first["held_out"]


def test_a_searcher_and_its_judge_are_handed_a_suite_without_held_out_cases() -> None:
    made = few()
    result = Search(plan("gp").searcher(made), made, 10)
    assert set(result.suite.parts) == {"train", "validation"}


class Repeating:
    """Proposes the same candidate every time."""

    def __init__(self) -> None:
        self.told = 0

    def ask(self, count: int) -> list[Bundle]:
        return [Bundle.of(f"again {place}", routing="least-loaded") for place in range(count)]

    def tell(self, judged: Any) -> None:
        self.told += len(judged)
        assert len({id(evaluation) for _, evaluation in judged}) == 1


class Unheeding(Repeating):
    def tell(self, judged: Any) -> None: ...


def test_a_candidate_that_comes_again_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []
    plain: Callable[..., Any] = search_module.evaluate_many

    def counted(bundles: Any, *given: Any, **rest: Any) -> Any:
        judged.extend(one.id for one in bundles)
        return plain(bundles, *given, **rest)

    monkeypatch.setattr(search_module, "evaluate_many", counted)
    searcher = Repeating()
    assert len(Search(searcher, few(), 5).run(12)) == 12
    assert len(judged) == 1 and searcher.told == 10


def test_one_that_comes_again_after_a_break_is_told_of_as_without_one(tmp_path: Path) -> None:
    for name, steps in (("once", (5,)), ("twice", (2, 5))):
        for evaluations in steps:
            Search(Unheeding(), few(), 5, journal=Journal(tmp_path / name, {})).run(evaluations)
    batch = "batches/0000.json"
    assert (tmp_path / "once" / batch).read_bytes() == (tmp_path / "twice" / batch).read_bytes()


def test_bad_candidates_do_not_end_a_search() -> None:
    class Bad:
        def ask(self, count: int) -> list[Bundle]:
            sources = ["def score(request, instance, cluster):\n    while True:\n        pass\n", "import os\n", "1 +"]
            return [Bundle.of("bad", routing={"name": "code", "source": source}) for source in sources]

        def tell(self, judged: Any) -> None: ...

    result = Search(Bad(), few(), 3).run(3)
    assert [one.evaluation.ok for one in result] == [False] * 3
    assert all(one.evaluation.fitness["primary"] == -10 for one in result)


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    evolve(few(), plan("gp"), evaluations=5, builtins=FEW, workers=1)
    assert not list(tmp_path.iterdir())
    assert isinstance(Search(Repeating(), few(), 5, journal=Journal(None, {})).cache, Cache)


@pytest.mark.full
def test_numbers_that_are_searched_beat_the_template_on_a_real_suite(tmp_path: Path) -> None:
    made = Suite.load(document(train=[{"workload": "prefixes", "seeds": [1, 2]}], held_out=[], validation=[]))
    result = evolve(made, Plan("numeric", template="weighted-affinity-routing", seed=1), evaluations=40, workers=1)
    default = Search(Repeating(), made, 1)
    assert result.selection.chosen_on == "train" and result.contestants == []
    assert result.selection.winner.evaluation.fitness["primary"] > _default(default.suite)


def _default(made: Suite) -> float:
    return evaluate(Bundle.of(routing="weighted-affinity-routing"), made, told=False).fitness["primary"]


def test_a_search_with_a_budget_of_cpu_time_ends_after_the_batch_that_spends_it_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 1000, 10))  # each reading is 10 s after the one before, so a batch takes 10 s
    monkeypatch.setattr(search_module.worker, "cpu_s", lambda: next(clock))
    first = Search(Unheeding(), few(), 5, journal=Journal(tmp_path, {})).run(Budget(100, 15.0))
    assert len(first) == 10
    assert Journal(tmp_path, {}).cpu_s() == [10, 10]
    again = Search(Unheeding(), few(), 5, journal=Journal(tmp_path, {}))
    assert len(again.run(Budget(100, 15.0))) == 10 and len(again.judged) == 10
    assert len(Search(Unheeding(), few(), 5, journal=Journal(tmp_path, {})).run(Budget(100, 35.0))) == 20
    assert len(Search(Unheeding(), few(), 5, journal=Journal(tmp_path, {})).run(Budget(12, 99.0))) == 12


def test_a_batch_that_is_completed_later_has_the_cpu_time_of_both_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(search_module.worker, "cpu_s", lambda: next(clock))
    for evaluations in (7, 12):
        Search(Unheeding(), few(), 5, journal=Journal(tmp_path, {})).run(evaluations)
    assert Journal(tmp_path, {}).cpu_s() == [10, 20, 10]


def test_the_cpu_time_of_workers_counts() -> None:
    before = search_module.worker.cpu_s()
    assert evaluate(Bundle.of(routing="least-loaded"), suite(), cache=Cache(), told=False).ok
    assert search_module.worker.cpu_s() > before


@pytest.mark.parametrize("minutes", [0, -1.0, float("nan"), float("inf")])
def test_a_budget_of_cpu_time_is_a_positive_number(minutes: float) -> None:
    with pytest.raises(HeadwayError, match="cpu_minutes"):
        evolve(few(), plan("gp"), cpu_minutes=minutes)


def test_the_best_so_far_is_written_while_the_search_runs(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        searched("gp", tmp_path, 15, progress=Interrupting(11))
    rows = [pair for batch in read_batches(tmp_path) for pair in batch]
    best = max(rows, key=lambda pair: pair.evaluation.fitness["primary"])
    assert Bundle.read(tmp_path / "best.yaml").id == best.bundle.id and not (tmp_path / "result.json").exists()
