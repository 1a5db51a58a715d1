"""`calibrate`: fits a hardware profile to a file of measured steps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final

from headway.config.arguments import checked
from headway.config.documents import write_text
from headway.config.units import duration_ps
from headway.display.progress import Bar, watch
from headway.errors import HeadwayError, argument
from headway.latency import calibration as steps
from headway.latency import read_gpu

NOT_TOLD: Final = "not told"  # `as_of` of a profile without a date


@checked
def calibrate(
    file: str | Path,
    gpu: object = "h200",
    model: str | None = None,
    output: str | Path | None = None,
    host: str | None = None,
    as_of: str | None = None,
    progress: Callable[[int], None] | bool = True,
) -> steps.Calibration:
    """Fit a profile to the steps of a CSV file, and write it to `output`. The `gpu` (a name or a mapping of figures)
    sets the limits of the fit. `model` is the model of all steps; without it, the file needs a column `shape`.
    `host` is the engine's own time per step; without it, the profile says that this time is assumed."""
    card = read_gpu(gpu, "gpu")
    if host is not None:
        duration_ps(host, "host")
    if output is not None:
        check(Path(output))
    rounds = count(1)
    with watch(progress, lambda: Bar(None, "rounds of the fit")) as report:
        turn = None if report is None else lambda _number, _loss: report(next(rounds))
        fit = steps.calibrate(file, card, model, progress=turn)
    if output is not None:
        write_text(output, fit.document(f"steps of {Path(file).name}", as_of or NOT_TOLD, host))
    return fit


def check(path: Path) -> None:
    """Raise an error before the fit if a profile cannot be written to this path."""
    if path.suffix not in (".yaml", ".yml"):
        raise HeadwayError(f"{argument('output')}: the file name of a profile must end in .yaml, got {str(path)!r}.")
    if not path.parent.is_dir():
        raise HeadwayError(f"{argument('output')}: the folder {str(path.parent)!r} does not exist.")
