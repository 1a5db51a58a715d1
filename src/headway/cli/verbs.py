"""The verbs of the command line. Each calls a function of the public API and returns what is to be printed."""

from __future__ import annotations

import contextlib
import sys

from cyclopts import App, CycloptsError
from rich.console import Console

from headway import __version__
from headway.cli.page import Verdict, text_of
from headway.errors import HeadwayError

# Each as a module of this package and its function or App, imported when the verb runs or its help is shown. Messages
# list the verbs in this order.
VERBS = (
    "trace:trace",
    "run:run",
    "plan:plan",
    "policy:policy",
    "explain:explain",
    "report:report",
    "sweep:sweep",
    "evolve:evolve",
    "summarize:summarize",
    "timeline:timeline",
    "hardware:hardware",
    "calibrate:calibrate",
    "validate:validate",
    "serve:serve",
    "deploy:deploy",
    "epp:epp",
    "interop:export",
    "interop:import_",
    "emulate:emulate",
    "load:load",
    "twin:twin",
    "conformance:conformance",
    "kvd:kvd",
    "agent:agent",
    "fleet:fleet",
    "replay:replay",
    "key:key",
    "workload:workload",
    "compare:compare",
    "controls:controls",
    "policies:policies",
)

app = App(
    name="headway",
    version=__version__,
    help="A laboratory for LLM-inference routing: simulate a serving cluster exactly, compare its routing policies.",
    help_format="plaintext",
    suppress_keyboard_interrupt=False,
)
for verb in VERBS:
    app.command(f"headway.cli.{verb}")


def answer(arguments: list[str]) -> tuple[str, int]:
    """Run a verb, and return what to print on stdout and the exit status. Standard output is for that alone: what
    anybody else prints meanwhile, such as a policy of the user's own, goes to standard error."""
    console = Console(highlight=False, file=sys.stdout)
    if arguments[0] in app.help_flags:
        app.resolved_commands()  # the overview shows the first line of every verb that is loaded
    try:
        with contextlib.redirect_stdout(sys.stderr):
            shown = app(
                arguments, console=console, exit_on_error=False, print_error=False, result_action="return_value"
            )
    except CycloptsError as error:
        raise HeadwayError(" ".join(str(error).split()) + " (headway --help tells more.)") from None
    code = shown.status if isinstance(shown, Verdict) else 0
    shown = shown.shown if isinstance(shown, Verdict) else shown
    return "" if shown is None else text_of(shown, console), code  # the help prints itself
