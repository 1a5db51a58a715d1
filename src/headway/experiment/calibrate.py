"""`calibrate`: a hardware profile of one's own, from a file of measured steps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final

from headway.config.units import duration_ps
from headway.errors import HeadwayError
from headway.latency import calibration as steps
from headway.latency import read_gpu

HOST: Final = "500us"  # what the shipped profiles assume
NOT_TOLD: Final = "not told"  # when it was measured


def calibrate(
    file: str | Path,
    gpu: object = "h200",
    model: str | None = None,
    output: str | Path | None = None,
    host: str = HOST,
    as_of: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> steps.Calibration:
    """Fit a profile to the steps of a CSV file, and write it where `output` says. The card (a name or a mapping of its
    figures) gives the limits of what is possible; the model is whose steps they are, where no column says it."""
    card = read_gpu(gpu, "gpu")
    duration_ps(host, "host")
    if output is not None:
        check(Path(output))
    rounds = count(1)

    def turn(_number: int, _loss: float) -> None:
        if progress is not None:
            progress(next(rounds))

    fit = steps.calibrate(file, card, model, progress=turn)
    if output is not None:
        write(Path(output), fit.document(f"steps of {Path(file).name}", as_of or NOT_TOLD, host))
    return fit


def check(path: Path) -> None:
    """Refuse a file that no scenario could name, before anything is fitted."""
    if path.suffix not in (".yaml", ".yml"):
        raise HeadwayError(f"--output: a profile is a file that ends in .yaml, got {str(path)!r}.")
    if not path.parent.is_dir():
        raise HeadwayError(f"--output: the folder {str(path.parent)!r} is not there.")


def write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise HeadwayError(f"--output: {str(path)!r} cannot be written ({error.strerror}).") from None
