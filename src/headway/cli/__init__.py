"""The command line: runs one verb and returns its exit status. The module `verbs` has the table of verbs.

Keep the imports of this file few: every command pays for them, even `headway --version`.
"""

import io
import os
import sys
from collections.abc import Sequence

from headway import __version__
from headway.errors import HeadwayError, InvariantError, command_line


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its status, such as 0 for success, 2 for wrong usage or input, 3 for a bug."""
    sys.exit(status(list(sys.argv[1:] if arguments is None else arguments)))


def status(arguments: list[str]) -> int:
    """Run a command, print its result to stdout and its errors to stderr, and return its exit status."""
    if sys.stdout is None:
        return _complain("stdout is closed; there is nowhere to print to.", 2)
    width = os.environ.get("COLUMNS", "")
    if width.isdecimal() and not width.strip("0"):
        del os.environ["COLUMNS"]  # some programs set COLUMNS to 0 if they do not know the width
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="replace")  # a character that the terminal cannot show must not fail the command
    try:
        with command_line():
            return _answer(arguments or ["--help"])
    except HeadwayError as error:
        return _complain(str(error), 2)
    except InvariantError as error:
        return _complain(f"a simulator invariant broke; please report this bug: {error}", 3)
    except KeyboardInterrupt as interrupt:
        return _complain("; ".join(["interrupted", *getattr(interrupt, "__notes__", ())]), 130)
    except BrokenPipeError:
        _drop_stdout()  # the reader closed the pipe
        return 0
    except OSError as error:
        why = error.strerror or error
        if error.filename is not None:
            return _complain(f"{error.filename}: cannot be read or written ({why}).", 2)
        # An error without a file name comes from writing to stdout, for example because the disk is full.
        _drop_stdout()
        return _complain(f"stdout: cannot be written ({why}).", 2)
    except Exception as error:
        import traceback

        traceback.print_exc()
        return _complain(f"this is a bug in Headway; please report it: {type(error).__name__}: {error}", 3)


def _answer(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        text, code = f"{__version__}\n", 0  # answer here, because importing the parser is slow
    else:
        from headway.cli.verbs import answer

        text, code = answer(arguments)
    sys.stdout.write(text)
    sys.stdout.flush()
    return code


def _drop_stdout() -> None:
    """Redirect stdout to the null device, so that the interpreter can flush it at exit without an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str, code: int) -> int:
    from headway.cli.page import say

    say(message)
    return code
