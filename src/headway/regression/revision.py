"""Files as they are in a revision of a git repository, in a temporary folder."""

import contextlib
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Final

from headway.config.wording import cut, shown
from headway.errors import HeadwayError, argument

GIT: Final = "git"


@contextlib.contextmanager
def file_at(file: Path, revision: str) -> Iterator[Path]:
    """Yield the path of a file as it is in a revision of its repository. The other files of the repository are beside
    it, so that relative paths in the file lead to the same revision."""
    where = argument("git")
    if not file.is_file():
        raise HeadwayError(f"{where}: {cut(str(file))} is not a file, so it has no revisions.")
    if not revision or revision.startswith("-"):
        raise HeadwayError(f"{where}: {shown(revision)} is not a revision; name a branch, a tag or a commit.")
    folder = file.resolve().parent
    top = Path(_git(folder, "rev-parse", "--show-toplevel", wrong=f"{where}: {cut(str(file))} is in no git repository"))
    name = file.resolve().relative_to(top).as_posix()
    commit = _git(
        folder, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}",
        wrong=f"{where}: the repository has no revision {shown(revision)}",
    )  # fmt: skip
    _git(
        folder, "cat-file", "-e", f"{commit}:{name}",
        wrong=f"{where}: {name} does not exist in {shown(revision)}, so there is no base",
    )  # fmt: skip
    with TemporaryDirectory(prefix="headway-") as place, TemporaryFile() as packed:
        _export(top, commit, packed)
        with tarfile.open(fileobj=packed) as archive:
            archive.extractall(place, filter="data")
        yield Path(place) / name


def _git(folder: Path, *words: str, wrong: str) -> str:
    """Run git and return its answer. If it fails, raise an error that begins with `wrong`."""
    try:
        done = subprocess.run([GIT, *words], cwd=folder, capture_output=True, text=True, check=False)
    except OSError:
        raise HeadwayError(f"{argument('git')}: the program git is not installed.") from None
    if done.returncode:
        raise HeadwayError(f"{wrong}.")
    return done.stdout.strip()


def _export(top: Path, commit: str, target: IO[bytes]) -> None:
    """Write all files of a commit into a tar file."""
    done = subprocess.run([GIT, "archive", "--format=tar", commit], cwd=top, stdout=target, stderr=subprocess.PIPE)
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip()
        raise HeadwayError(f"{argument('git')}: the revision cannot be exported: {cut(why)}.")
    target.seek(0)
