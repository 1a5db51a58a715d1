"""Options that several verbs share: scenario and changes, workers, output folders, API keys, etcd."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from headway.cli.page import say
from headway.errors import HeadwayError, missing_extra
from headway.types import Json

if TYPE_CHECKING:
    from headway.gateway.membership.etcd_settings import EtcdSettings
    from headway.scenario.scenario import Scenario


def flag(help: str, *names: str) -> Parameter:
    """Return the declaration of an option that is a switch or a list, without the negative form `--no-NAME` or
    `--empty-NAME`."""
    return Parameter(name=names or None, negative="", help=help)


def output_to(help: str) -> Parameter:
    return Parameter(name=("--output", "-o"), help=help)


Trace = Literal["minimal", "decisions", "full"]
ScenarioFile = Annotated[
    str | None,
    Parameter(
        help="A YAML file, a preset's name, a trace, or a file of BLIS or RouteSim. Default: the embedded scenario."
    ),
]
RunFolder = Annotated[Path, Parameter(help="A run folder, written by `headway run -o`.")]
RunOutput = Annotated[Path | None, output_to("Write the run to this folder.")]
StudyTrace = Annotated[Trace, Parameter(help="What each run records in addition to its requests.")]
Workers = Annotated[int | None, Parameter(help="Number of processes. Default: one per core.")]
RayCluster = Annotated[
    str | None,
    Parameter(help='Run on a Ray cluster: "auto", host:port or ray://host:port; "local" starts one on this machine.'),
]
PolicyTimeout = Annotated[str | None, Parameter(help="Time limit for one call of your own policy. Default: 30s.")]
KeyVariable = Annotated[str | None, Parameter(help="Environment variable that holds the bearer token to send.")]


@Parameter(name="*")
@dataclass(frozen=True)
class Choice:
    """Options that change a scenario before it is simulated."""

    changes: Annotated[
        list[str] | None, flag("Set a key of the scenario, such as workload.rate=60/s; repeat for more.", "--set")
    ] = None
    routing_policy: Annotated[str | None, Parameter(help="Name of a routing policy, or path/to/file.py:Class.")] = None
    routing_scorers: Annotated[
        str | None, Parameter(help='Scorers of the policy "weighted", such as "prefix-affinity:3,queue-depth:2".')
    ] = None
    policy_file: Annotated[
        Path | None,
        Parameter(
            name=("--policy", "--policy-config"),
            help="A YAML file of policies: a bundle (also of BLIS), or routing-policy and routing-scorers.",
        ),
    ] = None

    policy_timeout: PolicyTimeout = None

    def load(self, scenario: str | None) -> Scenario:
        from headway.scenario.scenario import validate

        return validate(self.data(scenario))

    def data(self, scenario: str | None) -> Json:
        """Return the scenario as a plain mapping, with the changes applied but not yet validated."""
        from headway.interop.foreign import foreign_scenario, with_foreign_policies
        from headway.scenario import overrides
        from headway.scenario.scenario import DEFAULT, load_data

        allow_policies(self.policy_timeout)
        policy_file = self.policy_file
        if scenario is not None and (translation := foreign_scenario(Path(scenario))) is not None:
            say(*translation.notes)
            data = load_data({"name": Path(scenario).stem, **translation.document})
        else:
            data = load_data(DEFAULT if scenario is None else scenario)
        if policy_file is not None and (translation := with_foreign_policies(data, policy_file)) is not None:
            say(*translation.notes)
            data, policy_file = translation.document, None
        data = overrides.choose_policies(data, self.routing_policy, self.routing_scorers, policy_file)
        return overrides.apply(data, self.changes or ())

    def routing(self) -> dict[str, str]:
        """Return the options that the user has set to choose a routing policy, as a mapping of option names to
        values."""
        options = {
            "--routing-policy": self.routing_policy,
            "--routing-scorers": self.routing_scorers,
            "--policy": self.policy_file,
        }
        return {option: str(value) for option, value in options.items() if value is not None}


AS_IT_IS = Choice()


def allow_policies(timeout: str | None) -> None:
    """Set how long one call of a user's policy may take, in this process and its workers."""
    if timeout is not None:
        from headway.config.units import positive_seconds
        from headway.experiment.policy_guard import TIMEOUT

        positive_seconds(timeout, "--policy-timeout")
        os.environ[TIMEOUT] = timeout


def read_key(variable: str | None, option: str = "--key-env") -> str | None:
    """Return the secret in an environment variable. If `variable` is None, return None."""
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise HeadwayError(f"{option}: the environment variable {variable} is not set.")
    return key


@contextmanager
def needs(extra: str, verb: str) -> Iterator[None]:
    """Guard imports of packages that an extra installs. If one is missing, raise an error that names the extra."""
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package == "headway":  # a missing module of Headway itself is a bug, not a missing package
            raise
        raise missing_extra(verb, package, extra) from None


@Parameter(name="*")
@dataclass(frozen=True)
class EtcdChoice:
    """How to reach etcd."""

    etcd: Annotated[str, Parameter(help="Endpoints of etcd, separated by commas, such as 10.0.0.5:2379,10.0.0.6:2379.")]
    prefix: Annotated[str, Parameter(help="Prefix of Headway's keys in etcd.")] = "/headway"
    etcd_user: Annotated[str | None, Parameter(help="User name at etcd, if it requires one.")] = None
    etcd_password_env: Annotated[
        str | None, Parameter(help="Environment variable that holds the password at etcd.")
    ] = None
    etcd_ca: Annotated[Path | None, Parameter(help="CA certificate that signed etcd's certificate.")] = None
    etcd_cert: Annotated[Path | None, Parameter(help="Client certificate for etcd.")] = None
    etcd_key: Annotated[Path | None, Parameter(help="Private key of the client certificate.")] = None

    def settings(self) -> EtcdSettings:
        from headway.config.section import read

        with needs("gateway", "etcd"):
            from headway.gateway.membership.etcd_client import Etcd  # noqa: F401  (fails early without its package)
            from headway.gateway.membership.etcd_settings import EtcdSettings
        section = {"endpoints": self.etcd, "prefix": self.prefix}
        for name, value in asdict(self).items():
            if name.startswith("etcd_") and value is not None:
                section[name.removeprefix("etcd_")] = str(value.expanduser() if isinstance(value, Path) else value)
        return read(EtcdSettings, section, "etcd")
