"""`headway kvd`: the KV-block daemon and commands that query it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from headway.cli.options import flag, needs
from headway.cli.page import AsJson, Page, say
from headway.errors import HeadwayError
from headway.types import Json

if TYPE_CHECKING:
    from headway.gateway.kvd.kvd_client import KvdClient

kvd = App(name="kvd", help="Run a daemon that stores KV blocks for engines.")
kvd.help_format = "plaintext"

Address = Annotated[str, Parameter(help="Address of the daemon: unix:/run/kvd.sock or quic://10.0.0.8:7072.")]


@Parameter(name="*")
@dataclass(frozen=True)
class Tls:
    """Certificate files for QUIC."""

    ca: Annotated[Path | None, Parameter(help="For QUIC: CA certificate (PEM).")] = None
    certificate: Annotated[Path | None, Parameter(help="For QUIC: certificate of this node (PEM).")] = None
    key: Annotated[Path | None, Parameter(help="For QUIC: private key of that certificate (PEM).")] = None

    def files(self) -> Json | None:
        """Return the absolute paths of the certificate files by name. If the user names no file, return None."""
        files = asdict(self)
        if not any(files.values()):
            return None
        for name, file in files.items():
            if file is None:
                raise HeadwayError(f"--{name}: missing. QUIC needs --ca, --certificate and --key.")
        return {name: str(file.absolute()) for name, file in files.items()}


NO_TLS = Tls()


@kvd.default
def serve(
    file: Annotated[
        Path | None, Parameter(help="The daemon's YAML file. Command-line options override the file.")
    ] = None,
    /,
    *,
    listen: Annotated[list[str] | None, flag("Address to listen on; repeat for more. Default: unix:kvd.sock.")] = None,
    ram: Annotated[str | None, Parameter(help="Memory for blocks, such as 4GiB. Default: 1GiB.")] = None,
    disk: Annotated[Path | None, Parameter(help="Folder for blocks that do not fit into memory.")] = None,
    disk_limit: Annotated[str | None, Parameter(help="Size limit of that folder, such as 100GiB.")] = None,
    tls: Tls = NO_TLS,
) -> None:
    """Store KV blocks for engines until Ctrl-C or SIGTERM."""
    from headway.config.documents import read_yaml
    from headway.gateway.kvd.settings import Settings

    data: dict[str, Any] = {} if file is None else read_yaml(file)
    if not isinstance(data, dict):
        raise HeadwayError(f"{file}: expected a mapping with keys such as 'listen' and 'ram'.")
    options: dict[str, Any] = {"listen": listen, "ram": ram, "tls": tls.files()}
    if (disk is None) != (disk_limit is None):
        raise HeadwayError("--disk: use --disk and --disk-limit together.")
    if disk is not None:
        options["disk"] = {"folder": str(disk.absolute()), "limit": disk_limit}
    data |= {name: value for name, value in options.items() if value is not None}
    settings = Settings.load(data, Path() if file is None else file.parent)
    with needs("kvd", "kvd"):
        from headway.gateway.kvd.daemon import serve as run
        from headway.http.server_log import log_to_stderr
    with log_to_stderr():
        run(settings, lambda addresses: say(f"listening at {', '.join(addresses)} (stop with Ctrl-C or SIGTERM)"))


@kvd.command
def stat(address: Address, /, *, tls: Tls = NO_TLS, as_json: AsJson = False) -> Page | Json:
    """Print the contents and counters of a daemon."""
    from rich.table import Table

    parts: Json = _ask(address, tls, lambda client: client.stats())
    if as_json:
        return parts
    table = Table("part", "figure", box=None, pad_edge=False)
    table.add_column("value", justify="right")
    for part, figures in parts.items():
        for name, value in figures.items():
            table.add_row(part, name.replace("_", " "), f"{value:,}")
    return Page([table])


@kvd.command
def ping(address: Address, /, *, tls: Tls = NO_TLS) -> Page:
    """Check that a daemon answers."""
    _ask(address, tls, lambda client: client.ping())
    return Page([], f"{address} answers")


@kvd.command
def certs(
    folder: Annotated[
        Path, Parameter(help="Output folder. If it already contains a CA, that CA signs the new certificate.")
    ],
    /,
    *,
    host: Annotated[list[str] | None, flag("Name or address of the node; repeat for more. Default: localhost.")] = None,
    name: Annotated[
        str, Parameter(help="Name of the node; the files of its certificate and key have this name.")
    ] = "node",
    days: Annotated[int, Parameter(help="Days until the certificates expire.")] = 365,
) -> Page:
    """Make a CA and a node certificate, to try QUIC."""
    with needs("kvd", "kvd"):
        from headway.gateway.kvd.certs import make
    if not 1 <= days <= 36_500:
        raise HeadwayError(f"--days: must be between 1 and 36,500, got {days}.")
    files = make(folder, name, host or ["localhost", "127.0.0.1", "::1"], days)
    return Page([], f"tls: {{ca: {files.ca}, certificate: {files.certificate}, key: {files.key}}}")


def _ask(address: str, tls: Tls, ask: Callable[[KvdClient], Awaitable[Any]]) -> Any:
    import asyncio
    import logging

    from headway.config.section import read

    files = tls.files()
    with needs("kvd", "kvd"):
        from headway.gateway.kvd.channel import TlsFiles
        from headway.gateway.kvd.kvd_client import KvdClient
    logging.getLogger("quic").setLevel(logging.CRITICAL)

    async def run() -> Any:
        async with KvdClient(address, tls=None if files is None else read(TlsFiles, files, "tls")) as client:
            return await ask(client)

    return asyncio.run(run())
