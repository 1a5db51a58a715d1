"""The options of verbs that talk to etcd."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headway.cli.options import needs

if TYPE_CHECKING:
    from headway.gateway.membership.etcd_settings import EtcdSettings


@Parameter(name="*")
@dataclass(frozen=True)
class EtcdChoice:
    """How etcd is reached."""

    etcd: Annotated[str, Parameter(help="Its endpoints, separated by commas, as in 10.0.0.5:2379,10.0.0.6:2379.")]
    prefix: Annotated[str, Parameter(help="Of Headway's keys.")] = "/headway"
    etcd_user: Annotated[str | None, Parameter(help="Where it asks who one is.")] = None
    etcd_password_env: Annotated[str | None, Parameter(help="The environment variable with that user's password.")] = (
        None
    )
    etcd_ca: Annotated[Path | None, Parameter(help="Certificate of the authority that its own is signed by.")] = None
    etcd_cert: Annotated[Path | None, Parameter(help="Certificate to show it.")] = None
    etcd_key: Annotated[Path | None, Parameter(help="Private key of that certificate.")] = None

    def settings(self) -> EtcdSettings:
        from headway.config.section import read

        with needs("gateway", "etcd", " for the gateway"):
            from headway.gateway.membership.etcd_client import Etcd  # noqa: F401  (tells at once what is missing)
            from headway.gateway.membership.etcd_settings import EtcdSettings
        section = {"endpoints": self.etcd, "prefix": self.prefix}
        for name, value in asdict(self).items():
            if name.startswith("etcd_") and value is not None:
                section[name.removeprefix("etcd_")] = str(value.expanduser() if isinstance(value, Path) else value)
        return read(EtcdSettings, section, "etcd")
