"""Search by OpenEvolve: a language model edits a program of policies, and islands of programs are kept.

OpenEvolve's course cannot be repeated, seed or not, and its own record is not relied on: the evaluator writes every
program that came through, and these are judged again by whoever asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import math
import random
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from headway.config.documents import write_text, yaml_text
from headway.config.wording import cut
from headway.errors import HeadwayError
from headway.evolve.model import Model
from headway.evolve.openevolve_evaluator import (
    EVALUATOR,
    FEATURES,
    PROGRAM,
    Task,
    candidates,
    prepare,
    program_of,
    sources_in,
)
from headway.evolve.primer import primer, task
from headway.evolve.suite import Suite
from headway.evolve.texts import bundle_of, texts_of
from headway.evolve.worker import GRACE_S
from headway.policies.bundle import Bundle
from headway.policies.code.language import MOST_CHARACTERS
from headway.types import Json

CONFIG: Final = "config.yaml"
ERRORS: Final = "model-errors.txt"
DESCENTS: Final = "descents.json"
EDIT: Final = (
    "Every policy stands between two marker lines that begin with # EVOLVE-BLOCK. Change only what is between them, "
    "and keep the markers; a program that is different elsewhere is refused."
)
STEP: Final = re.compile(r"Iteration \d+(?: error)?:")
SIMPLE_BELOW: Final = 6000  # characters; OpenEvolve asks for a shorter program from there on
CHECKPOINTS: Final = 10  # iterations from one to the next


def prepared(
    folder: Path,
    suite: Suite,
    base: Bundle,
    stages: Sequence[str] = ("routing",),
    *,
    iterations: int = 50,
    seed: int = 0,
    workers: int = 1,
    deadline_s: float | None = None,
    cache: str = "cache",
) -> Json:
    """Write all that a framework needs to a folder: `openevolve-run initial_program.py evaluator.py --config
    config.yaml` works there, and SkyDiscover takes the first two. Gives the configuration."""
    texts = texts_of(base, stages)
    made = prepare(folder, suite, base, program_of(texts), deadline_s, cache)
    found = settings(made, suite, list(texts), iterations, seed, workers)
    write_text(str(folder / CONFIG), yaml_text(found))
    return found


def settings(made: Task, suite: Suite, stages: Sequence[str], iterations: int, seed: int, workers: int) -> Json:
    """OpenEvolve's configuration, but for the model."""
    return {
        "max_iterations": iterations,
        "checkpoint_interval": CHECKPOINTS,
        "random_seed": seed,
        "language": "python",
        "file_suffix": ".py",
        "diff_based_evolution": True,
        "max_code_length": MOST_CHARACTERS,
        "prompt": {
            "system_message": "\n\n".join((task(suite, stages), EDIT, primer(stages))),
            "suggest_simplification_after_chars": SIMPLE_BELOW,
        },
        "database": {
            "num_islands": 3,
            "migration_interval": 10,
            "population_size": 200,
            "archive_size": 50,
            "feature_dimensions": list(FEATURES),
            "random_seed": seed,
        },
        "evaluator": {
            "timeout": math.ceil(made.deadline_s + 2 * GRACE_S),  # ours comes first
            "max_retries": 0,
            "cascade_evaluation": True,
            "cascade_thresholds": [made.threshold()],
            "parallel_evaluations": workers,
        },
    }


class Client:
    """A model as OpenEvolve talks to one. What goes wrong is written down, since OpenEvolve only logs it."""

    def __init__(self, model: Model, folder: str, name: str) -> None:
        self.answerer, self.folder, self.model = model, folder, name  # OpenEvolve logs what is called `model`

    async def generate(self, prompt: str, **kwargs: Any) -> str:
        return self._asked([{"role": "user", "content": prompt}])

    async def generate_with_context(self, system_message: str, messages: list[dict[str, str]], **kwargs: Any) -> str:
        return self._asked([{"role": "system", "content": system_message}, *messages])

    def _asked(self, messages: list[dict[str, str]]) -> str:
        try:
            return self.answerer(messages)
        except Exception as error:
            with (Path(self.folder) / ERRORS).open("a", encoding="utf-8") as file:
                file.write(cut(str(error), 500) + "\n")
            raise


def client(config: Any, model: Model, folder: str, name: str) -> Client:
    """What OpenEvolve makes its clients with, in each of its processes."""
    return Client(model, folder, name)


def search(
    folder: Path,
    suite: Suite,
    base: Bundle,
    stages: Sequence[str],
    model: Model,
    evaluations: int,
    *,
    seed: int = 0,
    workers: int = 1,
    deadline_s: float | None = None,
    cache: str = "cache",
    progress: Callable[[int], None] | None = None,
) -> list[Bundle]:
    """Every program that came through, the first one included, in the order that they were judged in. A folder with a
    checkpoint is gone on with from there."""
    package = framework()
    if threading.current_thread() is not threading.main_thread() or asyncio._get_running_loop() is not None:
        raise HeadwayError("--engine openevolve: runs in the main thread alone, and in no event loop.")
    found = prepared(
        folder,
        suite,
        base,
        stages,
        iterations=evaluations - 1,
        seed=seed,
        workers=workers,
        deadline_s=deadline_s,
        cache=cache,
    )
    (folder / ERRORS).unlink(missing_ok=True)
    before = _checkpoint(folder)
    left = evaluations - 1 - (0 if before is None else int(before.name.rpartition("_")[2]))
    programs: dict[str, Any] = {}
    if left > 0:
        with _contained(progress, evaluations - 1 - left):
            config = _config(package, found, partial(client, model=model, folder=str(folder), name="model"))
            with contextlib.redirect_stderr(io.StringIO()):  # what it logs goes to its folder as well
                controller = package.OpenEvolve(
                    str(folder / PROGRAM), str(folder / EVALUATOR), config=config, output_dir=str(folder)
                )
            asyncio.run(controller.run(left, checkpoint_path=None if before is None else str(before)))
            programs = dict(controller.database.programs)
    return _bundles(folder, base, _descents(folder, programs), program_of(texts_of(base, stages)))


class Descent(Struct, frozen=True):
    """Where a program comes from, as OpenEvolve tells it."""

    generation: int = 0
    parent: str | None = None  # its text
    changes: str = ""


def _descents(folder: Path, programs: Mapping[str, Any]) -> dict[str, Descent]:
    """By a program's text; those of earlier parts of a search as well."""
    file = folder / DESCENTS
    found = msgspec.json.decode(file.read_bytes(), type=dict[str, Descent]) if file.is_file() else {}
    for one in programs.values():
        parent = programs.get(one.parent_id or "")
        changes = cut(" ".join(str(one.metadata.get("changes", "")).split()), 300)
        found.setdefault(one.code, Descent(one.generation, None if parent is None else parent.code, changes))
    file.write_bytes(msgspec.json.encode(found))
    return found


def _bundles(folder: Path, base: Bundle, descents: Mapping[str, Descent], original: str) -> list[Bundle]:
    texts = list(dict.fromkeys((original, *candidates(folder))))
    failures = errors(folder)
    if len(texts) == 1 and failures:
        raise HeadwayError(f"the model gave no answer that could be used: {failures[-1]}")
    made: dict[str, Bundle] = {}
    for number, text in enumerate(texts):
        one = descents.get(text, Descent()) if number else Descent()
        mother = None if one.parent is None else made.get(one.parent)
        made[text] = bundle_of(
            base,
            sources_in(text, original),
            f"openevolve {number}",
            one.generation,
            None if mother is None else mother.id,
            [one.changes] if one.changes else [],
        )
    return list(made.values())


def errors(folder: Path) -> list[str]:
    """Why prompts got no answer, a line each."""
    file = folder / ERRORS
    return file.read_text(encoding="utf-8").splitlines() if file.is_file() else []


def _config(package: Any, found: Json, make: Callable[..., Client]) -> Any:
    config = package.config.Config.from_dict(found)
    config.llm.models = [package.config.LLMModelConfig(name="model", weight=1.0, init_client=make)]
    config.llm.evaluator_models = list(config.llm.models)
    return config


def _checkpoint(folder: Path) -> Path | None:
    there = list((folder / "checkpoints").glob("checkpoint_*"))
    return max(there, key=lambda one: int(one.name.rpartition("_")[2]), default=None)


class _Steps(logging.Handler):
    """Counts the iterations that OpenEvolve logs."""

    def __init__(self, progress: Callable[[int], None], done: int) -> None:
        super().__init__()
        self.progress, self.done = progress, done

    def emit(self, record: logging.LogRecord) -> None:
        if STEP.match(record.getMessage()):
            self.done += 1
            self.progress(self.done)


@contextlib.contextmanager
def _contained(progress: Callable[[int], None] | None, done: int) -> Iterator[None]:
    """OpenEvolve takes a process for its own: its signals, its log, its chance and its path. They are put back."""
    root, steps = logging.getLogger(), logging.getLogger("openevolve.process_parallel")
    handlers, level, path = list(root.handlers), root.level, list(sys.path)
    arrays = import_module("numpy").random
    chance, drawn = random.getstate(), arrays.get_state()
    heard = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    counter = None if progress is None else _Steps(progress, done)
    if counter is not None:
        steps.addHandler(counter)
    try:
        yield
    finally:
        if counter is not None:
            steps.removeHandler(counter)
        for handler in [one for one in root.handlers if one not in handlers]:
            handler.close()
        root.handlers[:] = handlers
        root.setLevel(level)
        sys.path[:] = path
        random.setstate(chance)
        arrays.set_state(drawn)
        for number, handle in heard.items():
            signal.signal(number, handle)


def framework() -> Any:
    """OpenEvolve, which has to be installed."""
    try:
        package = import_module("openevolve")
        import_module("openevolve.config")
    except ImportError:
        raise HeadwayError("--engine: openevolve is not installed; install headway[evolve].") from None
    return package
