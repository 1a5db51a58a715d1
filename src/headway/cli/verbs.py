"""The verbs of the command line. Each calls a function of the public API and returns what is to be printed."""

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
    "experiments:plan",
    "catalogues:policy",
    "run_folders:explain",
    "run_folders:report",
    "experiments:sweep",
    "evolve:evolve",
    "run_folders:summarize",
    "run_folders:timeline",
    "catalogues:hardware",
    "catalogues:calibrate",
    "run_folders:validate",
    "serving:serve",
    "deploy:deploy",
    "serving:epp",
    "interop:export",
    "interop:import_",
    "live_engines:emulate",
    "live_engines:load",
    "live_engines:twin",
    "live_engines:conformance",
    "kvd:kvd",
    "agent:agent",
    "fleet:fleet",
    "serving:replay",
    "serving:key",
    "run:workload",
    "experiments:compare",
    "experiments:controls",
    "catalogues:policies",
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
    """Run a verb, and return what to print on stdout and the exit status. Stdout is for that alone: what a policy of
    the user prints meanwhile goes to stderr."""
    console = Console(highlight=False, file=sys.stdout)
    if arguments[0] in app.help_flags:
        app.resolved_commands()  # the overview shows the first line of every verb that is loaded
    try:
        with contextlib.redirect_stdout(sys.stderr):
            reply = app(
                arguments, console=console, exit_on_error=False, print_error=False, result_action="return_value"
            )
    except CycloptsError as error:
        raise HeadwayError(" ".join(str(error).split()) + " (headway --help tells more.)") from None
    page, code = reply if isinstance(reply, Verdict) else (reply, 0)
    return "" if page is None else text_of(page, console), code  # the help prints itself
