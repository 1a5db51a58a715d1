"""The folder of a search.

    search.json         describes the search; a different search is rejected
    batches/0000.json   the candidates of a batch and their evaluations, in order
    cpu.json            the CPU seconds of each batch; the only file that differs between machines and runs
    cache/              figures of single simulation runs
    looks.json          the candidates that were compared on the held-out part
    best.yaml           the best candidate so far on the train part; after the search, the winner
    result.json         the conclusion

With the same seed, a searcher makes the same proposals, so the files need not store the state of the searcher. A
resumed search asks the searcher for the proposals again and passes it the stored evaluations. Batches are written
atomically, so an interruption loses at most one batch.
"""

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from headway import __version__
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.evolve.cache import replace_file
from headway.evolve.evaluation import Evaluation
from headway.evolve.suite import HELD_OUT, Suite
from headway.policies.bundle import Bundle
from headway.types import Json

FORMAT: Final = 1
SEARCH: Final = "search.json"
BATCH: Final = "batches/{:04}.json"
LOOKS: Final = "looks.json"
CPU: Final = "cpu.json"
BEST: Final = "best.yaml"
RESULT: Final = "result.json"
REMEDY: Final = "Restore it, or choose another folder."


class Judged(NamedTuple):
    bundle: Bundle
    evaluation: Evaluation


class Journal:
    """The folder of one search. If `folder` is None, the journal stores nothing."""

    def __init__(self, folder: Path | None, search: Json) -> None:
        self.folder = folder
        if folder is None:
            return
        expected = {"format": FORMAT, "headway": __version__, **search}
        file = folder / SEARCH
        if file.is_file():
            _check_same(folder, _read(file), expected)
            return
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise HeadwayError(f"{folder}: exists and is not the folder of a search. Choose another folder.")
        self._write(SEARCH, expected)

    def batches(self) -> list[list[Judged]]:
        return [] if self.folder is None else read_batches(self.folder)

    def keep(self, number: int, batch: Sequence[Judged]) -> None:
        rows = [{"bundle": bundle.document(), "evaluation": evaluation} for bundle, evaluation in batch]
        self._write(BATCH.format(number), rows)

    def keep_best(self, best: Bundle) -> None:
        if self.folder is not None:
            best.write(self.folder / BEST)

    def cpu_s(self) -> list[float]:
        return [] if self.folder is None else read_cpu_s(self.folder)

    def keep_cpu_s(self, seconds: Sequence[float]) -> None:
        self._write(CPU, seconds)

    def look(self, candidate: str) -> int:
        """Record a look at the held-out part with this winner, and return the number of looks so far. A second look
        with the same winner shows nothing new, so it does not count."""
        file = None if self.folder is None else self.folder / LOOKS
        looks: Any = _read(file) if file is not None and file.is_file() else []
        if not isinstance(looks, list):
            raise HeadwayError(f"{file}: is not a list of candidates; the file was changed. {REMEDY}")
        if candidate not in looks:
            looks = [*looks, candidate]
            self._write(LOOKS, looks)
        return len(looks)

    def conclude(self, result: Json, best: Bundle) -> None:
        if self.folder is not None:
            self._write(RESULT, result)
            self.keep_best(best)

    def _write(self, name: str, document: object) -> None:
        if self.folder is None:
            return
        text = msgspec.json.format(msgspec.json.encode(document), indent=1)
        replace_file(self.folder / name, text + b"\n")


def is_search(folder: Path) -> bool:
    return (folder / SEARCH).is_file()


def read_search(folder: Path) -> tuple[Json, Json | None]:
    """Return the description of the search in a folder, and its conclusion; None while the search runs."""
    result = folder / RESULT
    documents = [_read(folder / SEARCH), _read(result) if result.is_file() else None]
    if not isinstance(documents[0], dict) or not isinstance(documents[1], dict | None):
        raise HeadwayError(f"{folder}: does not describe a search; a file was changed. {REMEDY}")
    return documents[0], documents[1]


def read_batches(folder: Path) -> list[list[Judged]]:
    """Return the complete batches of a search, in order."""
    batches: list[list[Judged]] = []
    while (file := folder / BATCH.format(len(batches))).is_file():
        data = _read(file)
        if not isinstance(data, list) or not data:
            raise HeadwayError(f"{file}: is not a batch of a search; the file was changed. {REMEDY}")
        try:
            batches.append(
                [Judged(Bundle.read(row["bundle"]), msgspec.convert(row["evaluation"], Evaluation)) for row in data]
            )
        except (msgspec.ValidationError, KeyError, TypeError) as error:
            raise HeadwayError(f"{file}: is not a batch of a search ({error}). {REMEDY}") from None
    return batches


def read_cpu_s(folder: Path) -> list[float]:
    """Return the CPU seconds of each batch. They differ between machines and runs."""
    file = folder / CPU
    seconds: Any = _read(file) if file.is_file() else []
    if not isinstance(seconds, list) or not all(isinstance(each, int | float) for each in seconds):
        raise HeadwayError(f"{file}: is not a list of seconds; the file was changed. {REMEDY}")
    return seconds


def _read(file: Path) -> Any:
    try:
        return msgspec.json.decode(file.read_bytes())
    except OSError as error:
        raise HeadwayError(f"{file}: cannot be read ({error.strerror or error}).") from None
    except msgspec.DecodeError:
        raise HeadwayError(f"{file}: is not JSON; the file was changed. {REMEDY}") from None


def _check_same(folder: Path, stored: Any, expected: Json) -> None:
    if not isinstance(stored, dict):
        raise HeadwayError(f"{folder / SEARCH}: does not describe a search; the file was changed. {REMEDY}")
    for key in dict.fromkeys((*expected, *stored)):
        if stored.get(key) != expected.get(key):
            difference = f"its {key} is {shown(stored.get(key))}, not {shown(expected.get(key))}"
            raise HeadwayError(f"{folder}: holds another search ({difference}). Choose another folder.")


def digests(suite: Suite) -> Json:
    """Return the digests of a suite for search.json: of the cases and objectives that the search uses, and of the
    held-out cases, so that a resumed search cannot be judged by others."""
    return {"cases": _digest(suite.for_search()), "held_out": _digest(suite.parts.get(HELD_OUT, ()))}


def _digest(value: object) -> str:
    return blake2b(msgspec.json.encode(value, order="sorted"), digest_size=8).hexdigest()
