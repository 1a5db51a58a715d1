"""The command line. `status` runs one command; `verbs` lists the verbs and the modules that have them.

What is imported here is paid for by every command, `headway --version` included.
"""

import io
import os
import sys
from collections.abc import Sequence

from headway import __version__
from headway.errors import HeadwayError, InvariantError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and leave with its exit status: 0 good, 2 wrong usage or input, 3 one of our invariants broke."""
    sys.exit(status(list(sys.argv[1:] if arguments is None else arguments)))


def status(arguments: list[str]) -> int:
    """Run a command, print its result to stdout and its errors to stderr, and return its exit status."""
    if sys.stdout is None:
        return _complain("stdout: is closed; there is nowhere to print to.", 2)
    width = os.environ.get("COLUMNS", "")
    if width.isdecimal() and not width.strip("0"):
        del os.environ["COLUMNS"]  # some programs say 0 for a width they do not know
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="replace")  # a terminal that cannot show a sign is no reason to fail
    try:
        return _answer(arguments or ["--help"])
    except HeadwayError as error:
        return _complain(str(error), 2)
    except InvariantError as error:
        return _complain(f"an invariant of the simulator broke, please report it: {error}", 3)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _drop_stdout()  # the reader has had enough
        return 0
    except OSError as error:
        why = error.strerror or error
        if error.filename is not None:
            return _complain(f"{error.filename}: cannot be read or written ({why}).", 2)
        _drop_stdout()  # what has no name is stdout: on a full disk, for one
        return _complain(f"stdout: cannot be written ({why}).", 2)
    except Exception as error:
        import traceback

        traceback.print_exc()
        return _complain(f"this is a mistake of ours, please report it: {type(error).__name__}: {error}", 3)


def _answer(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        text, code = f"{__version__}\n", 0  # without the parser, which takes much longer to load
    else:
        from headway.cli.verbs import answer

        text, code = answer(arguments)
    sys.stdout.write(text)
    sys.stdout.flush()
    return code


def _drop_stdout() -> None:
    """Hand the interpreter a stdout that it can flush on its way out."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str, code: int) -> int:
    from headway.cli.page import say

    say(message)
    return code
