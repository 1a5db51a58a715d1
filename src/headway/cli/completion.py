"""`headway completion`: shell completion of verbs, options and their values."""

from typing import Literal

from headway.cli.page import Page


def completion(shell: Literal["bash", "zsh", "fish"], /) -> Page:
    """Print a completion script for bash, zsh or fish.

    Bash: headway completion bash > ~/.local/share/bash-completion/completions/headway

    Zsh: headway completion zsh > "${fpath[1]}/_headway"

    Fish: headway completion fish > ~/.config/fish/completions/headway.fish

    Parameters
    ----------
    shell:
        The shell that reads the script.
    """
    from headway.cli.verbs import app

    return Page([], app.generate_completion(shell=shell).rstrip("\n"))
