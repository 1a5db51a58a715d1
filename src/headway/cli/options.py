"""Options that several verbs share: which scenario a verb is about and how it is changed, where runs are done and
written, which key is sent, and how etcd is reached."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from headway.errors import HeadwayError
from headway.types import Json

if TYPE_CHECKING:
    from headway.gateway.membership.etcd_settings import EtcdSettings
    from headway.scenario.scenario import Scenario


def flag(help: str, *names: str) -> Parameter:
    """A switch or a list that has no `--no-` or `--empty-` form."""
    return Parameter(name=names or None, negative="", help=help)


def output_to(help: str) -> Parameter:
    return Parameter(name=("--output", "-o"), help=help)


Trace = Literal["minimal", "decisions", "full"]
ScenarioFile = Annotated[
    str | None, Parameter(help="A YAML file or a preset's name; the embedded default workload if left out.")
]
RunFolder = Annotated[Path, Parameter(help="A run folder, as `headway run -o` writes it.")]
RunOutput = Annotated[Path | None, output_to("Write the run's files to this folder.")]
StudyTrace = Annotated[Trace, Parameter(help="What is written of these runs beside the requests.")]
Workers = Annotated[int | None, Parameter(help="Processes to use; one a core if left out.")]
RayCluster = Annotated[
    str | None,
    Parameter(help='Run on a Ray cluster instead: "auto", host:port or ray://host:port, or "local" to start one here.'),
]
KeyVariable = Annotated[str | None, Parameter(help="An environment variable with the bearer to send.")]


@Parameter(name="*")
@dataclass(frozen=True)
class Choice:
    """How a scenario is changed before it is run."""

    changes: Annotated[
        list[str] | None, flag("Change a key of the scenario, as in workload.rate=60/s; repeat for more.", "--set")
    ] = None
    routing_policy: Annotated[str | None, Parameter(help="A routing policy's name, or path/to/file.py:Class.")] = None
    routing_scorers: Annotated[
        str | None, Parameter(help='Scorers of the policy "weighted", as in "prefix-affinity:3,queue-depth:2".')
    ] = None
    policy_file: Annotated[
        Path | None,
        Parameter(
            name=("--policy", "--policy-config"),
            help="A YAML file of policies: a bundle of all stages, or routing-policy and routing-scorers.",
        ),
    ] = None

    def load(self, scenario: str | None) -> Scenario:
        from headway.scenario.scenario import validate

        return validate(self.data(scenario))

    def data(self, scenario: str | None) -> Json:
        """The scenario's plain mapping, changed but not yet validated."""
        from headway.scenario import overrides
        from headway.scenario.scenario import DEFAULT, load_data

        data = load_data(DEFAULT if scenario is None else scenario)
        data = overrides.choose_policies(data, self.routing_policy, self.routing_scorers, self.policy_file)
        return overrides.apply(data, self.changes or ())

    def routing(self) -> dict[str, str]:
        """The options that name a routing policy, as far as they are set."""
        options = {
            "--routing-policy": self.routing_policy,
            "--routing-scorers": self.routing_scorers,
            "--policy": self.policy_file,
        }
        return {option: str(value) for option, value in options.items() if value is not None}


AS_IT_IS = Choice()


def read_key(variable: str | None, option: str = "--key-env") -> str | None:
    """The secret in an environment variable; None where no variable is named."""
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise HeadwayError(f"{option}: the environment variable {variable} is not set.")
    return key


@contextmanager
def needs(extra: str, verb: str, purpose: str = "") -> Iterator[None]:
    """Imports of packages that an extra brings: where one is missing, the error says which extra to install."""
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package == "headway":  # a fault of ours
            raise
        raise HeadwayError(f"{verb}: {package} is not installed; install headway[{extra}]{purpose}.") from None


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
            from headway.gateway.membership.etcd_client import Etcd  # noqa: F401  (fails at once if a package is missing)
            from headway.gateway.membership.etcd_settings import EtcdSettings
        section = {"endpoints": self.etcd, "prefix": self.prefix}
        for name, value in asdict(self).items():
            if name.startswith("etcd_") and value is not None:
                section[name.removeprefix("etcd_")] = str(value.expanduser() if isinstance(value, Path) else value)
        return read(EtcdSettings, section, "etcd")
