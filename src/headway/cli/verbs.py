"""The verbs of the command line. Each verb calls a function of the public API and returns the output to print."""

import contextlib
import sys

from cyclopts import App, CycloptsError, Group
from rich.console import Console

from headway import __version__
from headway.cli.page import Verdict, text_of
from headway.errors import HeadwayError

# The verbs by group, in the order of `headway --help`. Each has its module in this package, and its function or App.
# A module is imported when its verb runs or when help is shown.
GROUPS = {
    "Start": ("starters:init", "starters:schema"),
    "Simulate": (
        "run:run",
        "experiments:compare",
        "checking:check",
        "experiments:sweep",
        "experiments:plan",
        "experiments:controls",
        "run:workload",
    ),
    "Look": (
        "run_folders:report",
        "run_folders:summarize",
        "run_folders:explain",
        "run_folders:timeline",
        "run_folders:validate",
        "catalogues:policies",
    ),
    "Evolve": ("evolve:evolve", "bench:bench", "catalogues:policy"),
    "Serve": ("serving:serve", "serving:epp", "deploy:deploy", "live_engines:load", "live_engines:twin"),
    "Operate": (
        "fleet:fleet",
        "agent:agent",
        "kvd:kvd",
        "doctor:doctor",
        "serving:key",
        "serving:replay",
        "live_engines:emulate",
        "live_engines:conformance",
        "completion:completion",
    ),
    "Data": (
        "trace:trace",
        "catalogues:hardware",
        "catalogues:calibrate",
        "interop:export",
        "interop:import_",
    ),
}

app = App(
    name="headway",
    version=__version__,
    help="Simulate LLM serving clusters, search for better routing policies, and serve live traffic with them.",
    help_format="plaintext",
    help_epilogue="headway VERB --help describes one verb and its options.",
    suppress_keyboard_interrupt=False,
)
app["--help"].group = app["--version"].group = Group("Options", sort_key=len(GROUPS))
for place, (heading, verbs) in enumerate(GROUPS.items()):
    group = Group(heading, sort_key=place)
    for line, verb in enumerate(verbs):
        app.command(f"headway.cli.{verb}", group=group, sort_key=line)


def answer(arguments: list[str]) -> tuple[str, int]:
    """Run a verb. Return the text for stdout and the exit status. While the verb runs, anything that a user's policy
    prints goes to stderr."""
    console = Console(highlight=False, file=sys.stdout)
    if arguments[0] in app.help_flags:
        app.resolved_commands()  # the overview shows the first line of each verb's docstring
    try:
        with contextlib.redirect_stdout(sys.stderr):
            reply = app(
                arguments, console=console, exit_on_error=False, print_error=False, result_action="return_value"
            )
    except CycloptsError as error:
        raise HeadwayError(" ".join(str(error).split()) + " See headway --help.") from None
    page, code = reply if isinstance(reply, Verdict) else (reply, 0)
    return "" if page is None else text_of(page, console), code  # None: no output, or help that cyclopts printed
