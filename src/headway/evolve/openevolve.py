"""Search by OpenEvolve: a language model edits a program of policies, and islands of programs are kept.

OpenEvolve's course cannot be repeated, seed or not, and its own record is not relied on: the evaluator writes every
program that came through, and the caller judges these again.
"""

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
from headway.evolve.dialogue import WritingTask
from headway.evolve.model import Model, Recorder, Replay
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
    cache: str = "cache",
) -> Json:
    """Write all that a framework needs to a folder: `openevolve-run initial_program.py evaluator.py --config
    config.yaml` works there, and SkyDiscover takes the first two. Gives the configuration."""
    texts = texts_of(base, stages)
    folder_task = prepare(folder, suite, base, program_of(texts), cache)
    config = settings(folder_task, suite, list(texts), iterations, seed, workers)
    write_text(str(folder / CONFIG), yaml_text(config))
    return config


def settings(folder_task: Task, suite: Suite, stages: Sequence[str], iterations: int, seed: int, workers: int) -> Json:
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
            "timeout": math.ceil(folder_task.deadline_s + 2 * GRACE_S),  # ours comes first
            "max_retries": 0,
            "cascade_evaluation": True,
            "cascade_thresholds": [folder_task.threshold()],
            "parallel_evaluations": workers,
        },
    }


class Client:
    """A model as OpenEvolve talks to one, and makes one in each of its processes. What goes wrong is written down,
    since OpenEvolve only logs it."""

    def __init__(self, config: Any, answerer: Model, folder: str) -> None:
        self.answerer, self.folder, self.model = answerer, folder, "model"  # OpenEvolve logs the last as the name

    async def generate(self, prompt: str, **kwargs: Any) -> str:
        return self._answer([{"role": "user", "content": prompt}])

    async def generate_with_context(self, system_message: str, messages: list[dict[str, str]], **kwargs: Any) -> str:
        return self._answer([{"role": "system", "content": system_message}, *messages])

    def _answer(self, messages: list[dict[str, str]]) -> str:
        try:
            return self.answerer(messages)
        except Exception as error:
            with (Path(self.folder) / ERRORS).open("a", encoding="utf-8") as file:
                file.write(cut(str(error), 500) + "\n")
            raise


def search(task: WritingTask) -> list[Bundle]:
    """Every program that came through, the first one included, in the order that they were judged in. A folder with a
    checkpoint is continued from there."""
    package = framework()
    if threading.current_thread() is not threading.main_thread() or asyncio._get_running_loop() is not None:
        raise HeadwayError("--engine openevolve: runs in the main thread alone, and in no event loop.")
    folder, base, dialogue = task.folder / "openevolve", task.start, task.dialogue
    iterations = dialogue.evaluations - 1
    document = prepared(
        folder,
        task.suite,
        base,
        dialogue.stages,
        iterations=iterations,
        seed=dialogue.seed,
        workers=1 if _replays(task.model) or task.runner is None else task.runner.slots,
        cache="../cache",
    )
    (folder / ERRORS).unlink(missing_ok=True)
    before = _checkpoint(folder)
    left = iterations - (0 if before is None else int(before.name.rpartition("_")[2]))
    programs: dict[str, Any] = {}
    if left > 0:
        with _restore_process(lambda count: task.progress(1 + count), iterations - left):
            config = package.config.Config.from_dict(document)
            client = partial(Client, answerer=task.model, folder=str(folder))
            config.llm.models = [package.config.LLMModelConfig(name="model", weight=1.0, init_client=client)]
            config.llm.evaluator_models = list(config.llm.models)
            with contextlib.redirect_stderr(io.StringIO()):  # what it logs goes to its folder as well
                controller = package.OpenEvolve(
                    str(folder / PROGRAM), str(folder / EVALUATOR), config=config, output_dir=str(folder)
                )
            asyncio.run(controller.run(left, checkpoint_path=None if before is None else str(before)))
            programs = dict(controller.database.programs)
    bundles = _bundles(folder, base, _descents(folder, programs), program_of(texts_of(base, dialogue.stages)))
    failures = errors(folder)
    if failures:
        task.say(f"{len(failures)} prompts got no answer; the last: {failures[-1]}")
    return bundles


def _replays(model: Model) -> bool:
    """In order, so by one process."""
    while isinstance(model, Recorder):
        model = model.model
    return isinstance(model, Replay)


class Descent(Struct, frozen=True):
    """Where a program comes from, as OpenEvolve tells it."""

    generation: int = 0
    parent: str | None = None  # its text
    changes: str = ""


def _descents(folder: Path, programs: Mapping[str, Any]) -> dict[str, Descent]:
    """By a program's text; those of earlier parts of a search as well."""
    file = folder / DESCENTS
    descents = msgspec.json.decode(file.read_bytes(), type=dict[str, Descent]) if file.is_file() else {}
    for program in programs.values():
        parent = programs.get(program.parent_id or "")
        changes = cut(" ".join(str(program.metadata.get("changes", "")).split()), 300)
        descents.setdefault(program.code, Descent(program.generation, None if parent is None else parent.code, changes))
    file.write_bytes(msgspec.json.encode(descents))
    return descents


def _bundles(folder: Path, base: Bundle, descents: Mapping[str, Descent], original: str) -> list[Bundle]:
    texts = list(dict.fromkeys((original, *candidates(folder))))
    failures = errors(folder)
    if len(texts) == 1 and failures:
        raise HeadwayError(f"the model gave no answer that could be used: {failures[-1]}")
    bundles: dict[str, Bundle] = {}
    for number, text in enumerate(texts):
        descent = descents.get(text, Descent()) if number else Descent()
        mother = None if descent.parent is None else bundles.get(descent.parent)
        bundles[text] = bundle_of(
            base,
            sources_in(text, original),
            f"openevolve {number}",
            descent.generation,
            None if mother is None else mother.id,
            [descent.changes] if descent.changes else [],
        )
    return list(bundles.values())


def errors(folder: Path) -> list[str]:
    """Why prompts got no answer, a line each."""
    file = folder / ERRORS
    return file.read_text(encoding="utf-8").splitlines() if file.is_file() else []


def _checkpoint(folder: Path) -> Path | None:
    there = list((folder / "checkpoints").glob("checkpoint_*"))
    return max(there, key=lambda checkpoint: int(checkpoint.name.rpartition("_")[2]), default=None)


class _Steps(logging.Handler):
    """Counts the iterations that OpenEvolve logs."""

    def __init__(self, progress: Callable[[int], None], count: int) -> None:
        super().__init__()
        self.progress, self.count = progress, count

    def emit(self, record: logging.LogRecord) -> None:
        if STEP.match(record.getMessage()):
            self.count += 1
            self.progress(self.count)


@contextlib.contextmanager
def _restore_process(progress: Callable[[int], None], iterations: int) -> Iterator[None]:
    """OpenEvolve takes a process for its own: its signals, its log, its chance and its path. They are put back."""
    root, steps = logging.getLogger(), logging.getLogger("openevolve.process_parallel")
    handlers, level, path = list(root.handlers), root.level, list(sys.path)
    arrays = import_module("numpy").random
    chance, array_chance = random.getstate(), arrays.get_state()
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    counter = _Steps(progress, iterations)
    steps.addHandler(counter)
    try:
        yield
    finally:
        steps.removeHandler(counter)
        for handler in [added for added in root.handlers if added not in handlers]:
            handler.close()
        root.handlers[:] = handlers
        root.setLevel(level)
        sys.path[:] = path
        random.setstate(chance)
        arrays.set_state(array_chance)
        for number, handle in signals.items():
            signal.signal(number, handle)


def framework() -> Any:
    """OpenEvolve, which has to be installed."""
    try:
        package = import_module("openevolve")
        import_module("openevolve.config")
    except ImportError:
        raise HeadwayError("--engine: openevolve is not installed; install headway[evolve].") from None
    return package
