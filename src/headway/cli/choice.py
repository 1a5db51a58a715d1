"""Which scenario a verb is about, and how it is changed before it is run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headway.types import Json

if TYPE_CHECKING:
    from headway.scenario.scenario import Scenario


ScenarioFile = Annotated[
    str | None, Parameter(help="A YAML file or a preset's name; the embedded default workload if left out.")
]


@Parameter(name="*")
@dataclass(frozen=True)
class Choice:
    """How a scenario is changed before it is run."""

    changes: Annotated[
        list[str] | None,
        Parameter(
            name="--set", negative="", help="Change a key of the scenario, as in workload.rate=60/s; repeat for more."
        ),
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
        """The options that name a routing policy, as far as they are given."""
        found = {
            "--routing-policy": self.routing_policy,
            "--routing-scorers": self.routing_scorers,
            "--policy": self.policy_file,
        }
        return {option: str(value) for option, value in found.items() if value is not None}


AS_IT_IS = Choice()


# Where the runs of a verb are done.

Workers = Annotated[int | None, Parameter(help="Processes to use; one a core if left out.")]
RayCluster = Annotated[
    str | None,
    Parameter(help='Run on a Ray cluster instead: "auto", host:port or ray://host:port, or "local" to start one here.'),
]
