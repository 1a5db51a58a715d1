"""The error of the expected output lengths: the summary's section `estimates`."""

from collections import defaultdict
from math import fsum

from headway.results.recorder import COMPLETED, Recorder
from headway.types import Json


def estimates(recorder: Recorder, warmup: int) -> Json:
    """Return the section `estimates` of the summary if an estimator ran, otherwise an empty dict."""
    if not recorder.expected:
        return {}
    names = {code: name for name, code in recorder.names["slo_class"].items()}
    pairs: dict[str, list[tuple[int, int]]] = defaultdict(list)  # class -> (expected, true) tokens of each request
    for row, expected in sorted(recorder.expected.items()):
        if row >= warmup and recorder.outcome[row] == COMPLETED and recorder.output_tokens[row]:
            pairs[names[recorder.slo_class[row]]].append((expected, recorder.output_tokens[row]))
    every = [pair for name in sorted(pairs) for pair in pairs[name]]
    return {"estimates": {**errors(every), "classes": {name: errors(pairs[name]) for name in sorted(pairs)}}}


def errors(pairs: list[tuple[int, int]]) -> Json:
    """Return the errors of these estimates. `bias` and `error` are relative to the mean length; `mape` is the mean of
    each request's own relative error."""
    true = sum([length for _, length in pairs])
    return {
        "requests": len(pairs),
        "bias": sum([expected - length for expected, length in pairs]) / true if true else None,
        "error": sum([abs(expected - length) for expected, length in pairs]) / true if true else None,
        "mape": fsum([abs(expected - length) / length for expected, length in pairs]) / len(pairs) if pairs else None,
    }
