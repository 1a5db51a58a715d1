"""`headway export` and `headway import`: files of other projects."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from headway.cli.options import output_to
from headway.cli.page import Page, say
from headway.cli.trace_files import Files
from headway.errors import HeadwayError
from headway.types import Json

if TYPE_CHECKING:
    from headway.interop import Translation

export = App(name="export", help="Write policies or workloads in another project's format.", help_format="plaintext")
import_ = App(name="import", help="Read policies or workloads of another project.", help_format="plaintext")

Out = Annotated[Path | None, output_to("Write to this file instead of printing.")]


@export.command(name="llm-d")
def export_llmd(
    source: Annotated[
        str, Parameter(help="A scenario, bundle, gateway file or policy file, or scorers such as queue-depth:2.")
    ],
    /,
    *,
    output: Out = None,
) -> Page | None:
    """Write a weighted profile as llm-d's EndpointPickerConfig; print on stderr what llm-d does differently."""
    from headway.interop.llmd import export_profile, routing_of

    return _give(export_profile(routing_of(source)), output)


@import_.command(name="llm-d")
def import_llmd(
    file: Annotated[Path, Parameter(help="An EndpointPickerConfig.")],
    /,
    *,
    profile: Annotated[str | None, Parameter(help="The scheduling profile to read, if there are several.")] = None,
    output: Out = None,
) -> Page | None:
    """Read llm-d's EndpointPickerConfig as a routing policy; print on stderr what Headway does differently."""
    from headway.config.documents import read_yaml
    from headway.interop.llmd import import_config

    return _give(import_config(read_yaml(file), file.name, profile), output)


@export.command(name="blis")
def export_blis(
    source: Annotated[Path, Parameter(help="A trace in any format, or a scenario whose workload to write.")],
    /,
    *,
    output: Out = None,
) -> Page | Json | None:
    """Write a scenario's workload as a BLIS workload specification, or a trace as BLIS TraceV2."""
    from headway.interop.blis_export import export_workload
    from headway.interop.blis_import import is_trace

    if is_trace(source):
        if output is None:
            raise HeadwayError("--output: a TraceV2 is two files, X.yaml and X.csv. Name them with -o X.")
        return Files(format="blis").rewrite(source, output)
    from headway.scenario.scenario import Scenario

    scenario = Scenario.load(source)
    return _give(export_workload(scenario.workload, scenario.seed.workload), output)


@import_.command(name="blis")
def import_blis(
    file: Annotated[
        Path, Parameter(help="A BLIS workload specification, a policy bundle, or either file of a TraceV2.")
    ],
    /,
    *,
    policy_config: Annotated[
        Path | None, Parameter(help="A BLIS policy bundle; its policies become those of the scenario.")
    ] = None,
    output: Out = None,
) -> Page | Json | None:
    """Read a BLIS workload as a scenario, a BLIS policy bundle as a bundle, or a BLIS TraceV2 as a trace."""
    from headway.interop.blis_import import is_trace
    from headway.interop.blis_policies import import_file

    if is_trace(file):
        if policy_config is not None:
            raise HeadwayError("--policy-config: a trace has no policies. Remove the option.")
        if output is None:
            raise HeadwayError("--output: missing. Name the trace to write, as in -o trace.jsonl.")
        return Files(read_format="blis", format="headway").rewrite(file, output)
    return _give(import_file(file, policy_config), output)


@import_.command(name="routesim")
def import_routesim(
    file: Annotated[Path, Parameter(help="A RouteSim configuration (.toml).")],
    /,
    *,
    algorithm: Annotated[str, Parameter(help="RouteSim's routing algorithm, such as prefix_aware.")] = "round_robin",
    trace: Annotated[
        Path | None, Parameter(help="Trace to replay, instead of the trace that the configuration names.")
    ] = None,
    output: Out = None,
) -> Page | None:
    """Read a RouteSim configuration as a scenario; print on stderr what Headway does differently."""
    from headway.interop.routesim_import import import_config

    folder = Path() if output is None else output.parent
    return _give(import_config(file, algorithm, trace, folder), output)


def _give(translation: Translation, output: Path | None) -> Page | None:
    say(*translation.notes)
    if output is None:
        return Page([], translation.text.rstrip("\n"))
    output.write_text(translation.text, encoding="utf-8")
    say(f"wrote {output}")
    return None
