"""Search with OpenEvolve: a language model edits programs that contain policies. The programs are grouped on islands.

An OpenEvolve search is not reproducible, even with a seed. Therefore the evaluator writes every program that completed
the train part to a file, and the caller evaluates these programs again.
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
from headway.errors import HeadwayError, worded
from headway.evolve import openevolve_evaluator as evaluator
from headway.evolve.attempts import describe_failures
from headway.evolve.briefing import briefing
from headway.evolve.dialogue import WritingTask, import_framework
from headway.evolve.feedback import harmless
from headway.evolve.model import Model, Recorder, Replay
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
    "Every policy is between two marker lines that begin with # EVOLVE-BLOCK. Change only the text between them, and "
    "keep the markers. A program with other changes is rejected."
)
STEP: Final = re.compile(r"Iteration \d+(?: error)?:")
SIMPLE_BELOW: Final = 6000  # number of characters; OpenEvolve asks the model to shorten longer programs
CHECKPOINTS: Final = 10  # number of iterations between two checkpoints


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
    """Write the files that a framework needs to a folder, and return the configuration. In this folder,
    `openevolve-run initial_program.py evaluator.py --config config.yaml` starts a search. SkyDiscover needs only the
    first two files."""
    texts = texts_of(base, stages)
    folder_task = evaluator.prepare(folder, suite, base, evaluator.program_of(texts), cache)
    about = briefing(suite, list(texts), (folder / cache).resolve())
    config = {
        "max_iterations": iterations,
        "checkpoint_interval": CHECKPOINTS,
        "random_seed": seed,
        "language": "python",
        "file_suffix": ".py",
        "diff_based_evolution": True,
        "max_code_length": MOST_CHARACTERS,
        "prompt": {
            "system_message": "\n\n".join((task(suite, list(texts)), EDIT, primer(list(texts)), about)),
            "suggest_simplification_after_chars": SIMPLE_BELOW,
        },
        "database": {
            "num_islands": 3,
            "migration_interval": 10,
            "population_size": 200,
            "archive_size": 50,
            "feature_dimensions": list(evaluator.FEATURES),
            "random_seed": seed,
        },
        "evaluator": {
            "timeout": math.ceil(folder_task.deadline_s + 2 * GRACE_S),  # longer than the deadline of the evaluator
            "max_retries": 0,
            "cascade_evaluation": True,
            "cascade_thresholds": [folder_task.threshold()],
            "parallel_evaluations": workers,
        },
    }
    write_text(str(folder / CONFIG), yaml_text(config))
    return config


class Client:
    """The client of the model, which OpenEvolve creates in each of its processes. The client adds the last programs
    that failed to the prompts, because OpenEvolve forgets them. It writes errors to a file, because OpenEvolve only
    logs them."""

    def __init__(self, config: Any, answerer: Model, folder: str) -> None:
        self.answerer, self.folder, self.model = answerer, folder, "model"  # OpenEvolve logs `model` as the name

    async def generate(self, prompt: str, **kwargs: Any) -> str:
        return self._answer([{"role": "user", "content": prompt}])

    async def generate_with_context(self, system_message: str, messages: list[dict[str, str]], **kwargs: Any) -> str:
        return self._answer([{"role": "system", "content": system_message}, *messages])

    def _answer(self, messages: list[dict[str, str]]) -> str:
        try:
            failed = describe_failures(evaluator.failures(Path(self.folder)))
            if failed:
                last = "\n".join((messages[-1]["content"], "\n# Failed Programs\n", harmless("\n".join(failed))))
                messages = [*messages[:-1], {**messages[-1], "content": last}]
            return self.answerer(messages)
        except Exception as error:
            with (Path(self.folder) / ERRORS).open("a", encoding="utf-8") as file:
                file.write(cut(str(error), 500) + "\n")
            raise


def search(task: WritingTask) -> list[Bundle]:
    """Return the bundle of every program that completed the train part, in order, including the initial program. If the
    folder has a checkpoint, resume from it."""
    package = framework()
    if threading.current_thread() is not threading.main_thread() or asyncio._get_running_loop() is not None:
        raise HeadwayError(
            f"{worded('--engine openevolve', 'openevolve')}: must run in the main thread, outside an event loop."
        )
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
            with contextlib.redirect_stderr(io.StringIO()):  # OpenEvolve writes the same log to its folder
                files = (str(folder / evaluator.PROGRAM), str(folder / evaluator.EVALUATOR))
                controller = package.OpenEvolve(*files, config=config, output_dir=str(folder))
            asyncio.run(controller.run(left, checkpoint_path=None if before is None else str(before)))
            programs = dict(controller.database.programs)
    original = evaluator.program_of(texts_of(base, dialogue.stages))
    bundles = _bundles(folder, base, _descents(folder, programs), original, task.suite.auto)
    failures = errors(folder)
    if failures:
        task.say(f"{len(failures)} prompts got no answer. The last error: {failures[-1]}")
    return bundles


def _replays(model: Model) -> bool:
    """Return whether answers come from a transcript. A transcript's answers are returned in order, so OpenEvolve must
    use a single process."""
    while isinstance(model, Recorder):
        model = model.model
    return isinstance(model, Replay)


class Descent(Struct, frozen=True):
    """The origin of a program, as OpenEvolve's database records it."""

    generation: int = 0
    parent: str | None = None  # text of the parent program
    changes: str = ""


def _descents(folder: Path, programs: Mapping[str, Any]) -> dict[str, Descent]:
    """Return the origin of each program, by program text. Include the programs that were made before the search was
    resumed."""
    file = folder / DESCENTS
    descents = msgspec.json.decode(file.read_bytes(), type=dict[str, Descent]) if file.is_file() else {}
    for program in programs.values():
        parent = programs.get(program.parent_id or "")
        changes = cut(" ".join(str(program.metadata.get("changes", "")).split()), 300)
        descents.setdefault(program.code, Descent(program.generation, None if parent is None else parent.code, changes))
    file.write_bytes(msgspec.json.encode(descents))
    return descents


def _bundles(folder: Path, base: Bundle, descents: Mapping[str, Descent], original: str, auto: bool) -> list[Bundle]:
    texts = list(dict.fromkeys((original, *evaluator.candidates(folder))))
    failures = errors(folder)
    if len(texts) == 1 and failures:
        raise HeadwayError(f"the model returned no usable answer: {failures[-1]}")
    bundles: dict[str, Bundle] = {}
    for number, text in enumerate(texts):
        descent = descents.get(text, Descent()) if number else Descent()
        parent = None if descent.parent is None else bundles.get(descent.parent)
        bundles[text] = bundle_of(
            base,
            evaluator.sources_in(text, original),
            f"openevolve {number}",
            descent.generation,
            None if parent is None else parent.id,
            [descent.changes] if descent.changes else [],
            auto=auto,
        )
    return list(bundles.values())


def errors(folder: Path) -> list[str]:
    """Return the error of each prompt that got no answer."""
    file = folder / ERRORS
    return file.read_text(encoding="utf-8").splitlines() if file.is_file() else []


def _checkpoint(folder: Path) -> Path | None:
    checkpoints = (folder / "checkpoints").glob("checkpoint_*")
    return max(checkpoints, key=lambda checkpoint: int(checkpoint.name.rpartition("_")[2]), default=None)


class _Steps(logging.Handler):
    """A log handler that counts OpenEvolve's iterations."""

    def __init__(self, progress: Callable[[int], None], count: int) -> None:
        super().__init__()
        self.progress, self.count = progress, count

    def emit(self, record: logging.LogRecord) -> None:
        if STEP.match(record.getMessage()):
            self.count += 1
            self.progress(self.count)


@contextlib.contextmanager
def _restore_process(progress: Callable[[int], None], iterations: int) -> Iterator[None]:
    """On exit, restore the state of this process that OpenEvolve changes: signal handlers, logging, random states and
    the import path."""
    root, steps = logging.getLogger(), logging.getLogger("openevolve.process_parallel")
    handlers, level, path = list(root.handlers), root.level, list(sys.path)
    arrays = import_module("numpy").random
    state, array_state = random.getstate(), arrays.get_state()
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
        random.setstate(state)
        arrays.set_state(array_state)
        for number, handle in signals.items():
            signal.signal(number, handle)


def framework() -> Any:
    return import_framework("openevolve", "config")
