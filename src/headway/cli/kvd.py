"""`headway kvd`: the KV-block daemon, and what a look at one wants."""

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

kvd = App(name="kvd", help="Keep KV blocks in memory and on disk, for engines here and on other nodes.")
kvd.help_format = "plaintext"

Address = Annotated[str, Parameter(help="A daemon's address: unix:/run/kvd.sock or quic://10.0.0.8:7072.")]


@Parameter(name="*")
@dataclass(frozen=True)
class Tls:
    """The files of a QUIC connection."""

    ca: Annotated[Path | None, Parameter(help="For quic: the authority's certificate, in PEM.")] = None
    certificate: Annotated[Path | None, Parameter(help="For quic: this node's certificate, in PEM.")] = None
    key: Annotated[Path | None, Parameter(help="For quic: the key of that certificate, in PEM.")] = None

    def files(self) -> Json | None:
        """Their absolute paths by name; None where no file is named."""
        files = asdict(self)
        if not any(files.values()):
            return None
        for name, file in files.items():
            if file is None:
                raise HeadwayError(f"--{name}: is missing; QUIC wants --ca, --certificate and --key.")
        return {name: str(file.absolute()) for name, file in files.items()}


NO_TLS = Tls()


@kvd.default
def serve(
    file: Annotated[Path | None, Parameter(help="The daemon's YAML file; options go before what it says.")] = None,
    /,
    *,
    listen: Annotated[list[str] | None, flag("An address; give it again for another. unix:kvd.sock if none.")] = None,
    ram: Annotated[str | None, Parameter(help="Memory for blocks, as in 4GiB; 1GiB if left out.")] = None,
    disk: Annotated[Path | None, Parameter(help="A folder for what memory has no room for.")] = None,
    disk_limit: Annotated[str | None, Parameter(help="How much that folder holds, as in 100GiB.")] = None,
    tls: Tls = NO_TLS,
) -> None:
    """Keep KV blocks until it is told to end (Ctrl-C or SIGTERM)."""
    from headway.config.documents import read_yaml
    from headway.gateway.kvd.settings import read_settings

    data: dict[str, Any] = {} if file is None else read_yaml(file)
    if not isinstance(data, dict):
        raise HeadwayError(f"{file}: a daemon's file is a mapping with 'listen' and 'ram'.")
    options: dict[str, Any] = {"listen": listen, "ram": ram, "tls": tls.files()}
    if (disk is None) != (disk_limit is None):
        raise HeadwayError("--disk: wants a folder and --disk-limit, both or neither.")
    if disk is not None:
        options["disk"] = {"folder": str(disk.absolute()), "limit": disk_limit}
    data |= {name: value for name, value in options.items() if value is not None}
    settings = read_settings(data, Path() if file is None else file.parent)
    with needs("kvd", "kvd", " for the daemon"):
        from headway.gateway.kvd.daemon import serve as run
    run(settings, lambda addresses: say(f"keeping blocks at {', '.join(addresses)}; Ctrl-C or SIGTERM ends it"))


@kvd.command
def stat(address: Address, /, *, tls: Tls = NO_TLS, as_json: AsJson = False) -> Page | Json:
    """Print what a daemon holds and has done."""
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
    """Tell whether a daemon answers."""
    _ask(address, tls, lambda client: client.ping())
    return Page([], f"{address} answers")


@kvd.command
def certs(
    folder: Annotated[Path, Parameter(help="Where the files go; an authority that lies there signs.")],
    /,
    *,
    host: Annotated[
        list[str] | None, flag("A name or address of the node; give it again for another. localhost if none.")
    ] = None,
    name: Annotated[str, Parameter(help="What the node's files are called.")] = "node",
    days: Annotated[int, Parameter(help="How long the certificates hold.")] = 365,
) -> Page:
    """Make an authority, and a node's certificate of it, to try QUIC with."""
    with needs("kvd", "kvd", " for certificates"):
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
    with needs("kvd", "kvd", " for the daemon"):
        from headway.gateway.kvd.channel import TlsFiles
        from headway.gateway.kvd.kvd_client import KvdClient
    logging.getLogger("quic").setLevel(logging.CRITICAL)

    async def run() -> Any:
        async with KvdClient(address, tls=None if files is None else read(TlsFiles, files, "tls")) as client:
            return await ask(client)

    return asyncio.run(run())
