"""`headway kvd`: the KV-block daemon, and what a look at one wants."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from headway.cli.page import AsJson, Page, say
from headway.errors import HeadwayError
from headway.types import Json

if TYPE_CHECKING:
    from headway.gateway.kvd.kvd_client import KvdClient

kvd = App(name="kvd", help="Keep KV blocks in memory and on disk, for engines here and on other nodes.")
kvd.help_format = "plaintext"

Address = Annotated[str, Parameter(help="A daemon's address: unix:/run/kvd.sock or quic://10.0.0.8:7072.")]
Ca = Annotated[Path | None, Parameter(help="For quic: the authority's certificate, in PEM.")]
Certificate = Annotated[Path | None, Parameter(help="For quic: this node's certificate, in PEM.")]
Key = Annotated[Path | None, Parameter(help="For quic: the key of that certificate, in PEM.")]


@kvd.default
def serve(
    file: Annotated[Path | None, Parameter(help="The daemon's YAML file; options go before what it says.")] = None,
    /,
    *,
    listen: Annotated[
        list[str] | None, Parameter(negative="", help="An address; give it again for another. unix:kvd.sock if none.")
    ] = None,
    ram: Annotated[str | None, Parameter(help="Memory for blocks, as in 4GiB; 1GiB if left out.")] = None,
    disk: Annotated[Path | None, Parameter(help="A folder for what memory has no room for.")] = None,
    disk_limit: Annotated[str | None, Parameter(help="How much that folder holds, as in 100GiB.")] = None,
    ca: Ca = None,
    certificate: Certificate = None,
    key: Key = None,
) -> None:
    """Keep KV blocks until it is told to end (Ctrl-C or SIGTERM)."""
    from headway.config.documents import read_yaml
    from headway.gateway.kvd.settings import read_settings

    data: dict[str, Any] = {} if file is None else read_yaml(file)
    if not isinstance(data, dict):
        raise HeadwayError(f"{file}: a daemon's file is a mapping with 'listen' and 'ram'.")
    given: dict[str, Any] = {"listen": listen, "ram": ram}
    if (disk is None) != (disk_limit is None):
        raise HeadwayError("--disk: wants a folder and --disk-limit, both or neither.")
    if disk is not None:
        given["disk"] = {"folder": str(disk.absolute()), "limit": disk_limit}
    given["tls"] = _tls(ca, certificate, key)
    data |= {name: value for name, value in given.items() if value is not None}
    settings = read_settings(data, Path() if file is None else file.parent)
    try:
        from headway.gateway.kvd.daemon import serve as run
    except ImportError as error:
        raise HeadwayError(f"kvd: {error.name} is not installed; install headway[kvd] for the daemon.") from None
    run(settings, lambda found: say(f"keeping blocks at {', '.join(found)}; Ctrl-C or SIGTERM ends it"))


@kvd.command
def stat(
    address: Address,
    /,
    *,
    ca: Ca = None,
    certificate: Certificate = None,
    key: Key = None,
    as_json: AsJson = False,
) -> Page | Json:
    """Print what a daemon holds and has done."""
    from rich.table import Table

    async def ask(client: KvdClient) -> Json:
        return dict(await client.stats())

    found = _asked(address, _tls(ca, certificate, key), ask)
    if as_json:
        return found
    table = Table(box=None, pad_edge=False)
    for name, justify in (("part", "left"), ("figure", "left"), ("value", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for part, figures in found.items():
        for name, value in figures.items():
            table.add_row(part, name.replace("_", " "), f"{value:,}")
    return Page([table])


@kvd.command
def ping(address: Address, /, *, ca: Ca = None, certificate: Certificate = None, key: Key = None) -> Page:
    """Tell whether a daemon answers."""

    async def ask(client: KvdClient) -> Json:
        await client.ping()
        return {}

    _asked(address, _tls(ca, certificate, key), ask)
    return Page([], f"{address} answers")


@kvd.command
def certs(
    folder: Annotated[Path, Parameter(help="Where the files go; an authority that lies there signs.")],
    /,
    *,
    host: Annotated[
        list[str] | None,
        Parameter(negative="", help="A name or address of the node; give it again for another. localhost if none."),
    ] = None,
    name: Annotated[str, Parameter(help="What the node's files are called.")] = "node",
    days: Annotated[int, Parameter(help="How long the certificates hold.")] = 365,
) -> Page:
    """Make an authority, and a node's certificate of it, to try QUIC with."""
    try:
        from headway.gateway.kvd.certs import make
    except ImportError as error:
        raise HeadwayError(f"kvd: {error.name} is not installed; install headway[kvd] for certificates.") from None
    if not 1 <= days <= 36_500:
        raise HeadwayError(f"--days: must be between 1 and 36,500, got {days}.")
    files = make(folder, name, host or ["localhost", "127.0.0.1", "::1"], days)
    return Page([], f"tls: {{ca: {files.ca}, certificate: {files.certificate}, key: {files.key}}}")


def _tls(ca: Path | None, certificate: Path | None, key: Path | None) -> Json | None:
    given = {"ca": ca, "certificate": certificate, "key": key}
    if not any(given.values()):
        return None
    for name, file in given.items():
        if file is None:
            raise HeadwayError(f"--{name}: is missing; QUIC wants --ca, --certificate and --key.")
    return {name: str(file.absolute()) for name, file in given.items() if file is not None}


def _asked(address: str, tls: Json | None, ask: Any) -> Json:
    import asyncio
    import logging

    from headway.config.section import read

    try:
        from headway.gateway.kvd.channel import TlsFiles
        from headway.gateway.kvd.kvd_client import KvdClient
    except ImportError as error:
        raise HeadwayError(f"kvd: {error.name} is not installed; install headway[kvd] for the daemon.") from None
    logging.getLogger("quic").setLevel(logging.CRITICAL)

    async def run() -> Json:
        async with KvdClient(address, tls=None if tls is None else read(TlsFiles, tls, "tls")) as client:
            found: Json = await ask(client)
            return found

    return asyncio.run(run())
