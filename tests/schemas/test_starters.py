"""`headway init` writes files that run at once, and `headway schema` prints what an editor needs."""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft7Validator

from conftest import Run
from headway import HeadwayError, schema, schema_file, write_starter
from headway.cli import status
from headway.gateway.config import Config
from headway.policies.bundle import STAGES

LINE = re.compile(r"# yaml-language-server: \$schema=(\S+)\n")


def check_schema(file: Path, name: str) -> None:
    """Check that the first line names the schema, and that the file matches it."""
    text = file.read_text(encoding="utf-8")
    match = LINE.match(text)
    assert match is not None and Path(match[1]) == schema_file(name)
    assert Draft7Validator(schema(name)).is_valid(yaml.safe_load(text))
    assert text.count("#") > 4, "it has comments"


def test_a_scenario_runs_at_once(headway: Run, tmp_path: Path) -> None:
    done = headway("init", "scenario", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "headway run scenario.yaml\n"), done.stderr
    assert done.stderr == "headway: wrote scenario.yaml\n"
    check_schema(tmp_path / "scenario.yaml", "scenario")
    ran = headway("run", "scenario.yaml", "--json", cwd=tmp_path)
    assert ran.returncode == 0 and json.loads(ran.stdout)["requests"]["arrived"] == 300


def test_options_of_a_scenario_are_in_the_file(headway: Run, tmp_path: Path) -> None:
    options = [
        "--rate",
        "90/min",
        "--instances",
        "2",
        "--gpu",
        "h100",
        "--model",
        "mistral-7b",
        "--routing",
        "lmetric",
    ]
    assert headway("init", "scenario", "mine.yaml", *options, cwd=tmp_path).returncode == 0
    document = yaml.safe_load((tmp_path / "mine.yaml").read_text(encoding="utf-8"))
    assert document["workload"]["rate"] == "90/min"
    assert document["cluster"] == {"instances": 2, "model": "mistral-7b", "gpu": "h100"}
    assert document["policies"] == {"routing": "lmetric"}


def test_a_scenario_of_a_trace_runs_at_once(headway: Run, tmp_path: Path, root: Path) -> None:
    (tmp_path / "native.jsonl").write_bytes((root / "examples" / "08_native.headway.jsonl").read_bytes())
    assert headway("init", "scenario", "--trace", "native.jsonl", cwd=tmp_path).returncode == 0
    check_schema(tmp_path / "scenario.yaml", "scenario")
    ran = headway("run", "scenario.yaml", "--json", cwd=tmp_path)
    assert ran.returncode == 0 and json.loads(ran.stdout)["requests"]["arrived"] == 9
    missing = headway("init", "scenario", "--trace", "nowhere.csv", "--force", cwd=tmp_path)
    assert missing.returncode == 2 and "nowhere.csv: there is no such trace." in missing.stderr


def test_a_scenario_of_a_table_has_the_mapping_of_its_columns(headway: Run, tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("ts_ms,input tokens,out_tok,extra\n0,100,5,a\n250,90,6,b\n")
    done = headway("init", "scenario", "--trace", "own.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    check_schema(tmp_path / "scenario.yaml", "scenario")
    document = yaml.safe_load((tmp_path / "scenario.yaml").read_text(encoding="utf-8"))
    assert document["workload"]["trace"]["columns"] == "arrival=ts_ms:ms,prompt=input tokens,output=out_tok"
    ran = headway("run", "scenario.yaml", "--json", cwd=tmp_path)
    assert ran.returncode == 0 and json.loads(ran.stdout)["requests"]["arrived"] == 2
    inspect = next(line for line in (tmp_path / "scenario.yaml").read_text().splitlines() if "trace inspect" in line)
    words = shlex.split(inspect.partition("headway ")[2])
    assert headway(*words, "--json", cwd=tmp_path).returncode == 0


def test_a_scenario_of_a_table_with_unusual_columns_says_what_is_missing(headway: Run, tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("when,ptoks,out_tok\n0,100,5\n0.25,90,6\n")
    done = headway("init", "scenario", "--trace", "own.csv", cwd=tmp_path)
    assert done.returncode == 2 and not (tmp_path / "scenario.yaml").exists()
    assert "No column has a usual name of arrival and prompt; the columns are when, ptoks, out_tok." in done.stderr
    assert "--map arrival=COLUMN,prompt=COLUMN,output=out_tok" in done.stderr
    mapping = "arrival=when:s,prompt=ptoks,output=out_tok"
    assert headway("init", "scenario", "--trace", "own.csv", "--map", mapping, cwd=tmp_path).returncode == 0
    ran = headway("run", "scenario.yaml", "--json", cwd=tmp_path)
    assert ran.returncode == 0 and json.loads(ran.stdout)["requests"]["arrived"] == 2


def test_a_gateway_is_valid_at_once(headway: Run, tmp_path: Path) -> None:
    done = headway(
        "init", "gateway", "--engine", "http://10.0.0.7:8000", "--engine", "http://10.0.0.8:8000", cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (0, "headway serve gateway.yaml\n")
    check_schema(tmp_path / "gateway.yaml", "gateway")
    config = Config.load(tmp_path / "gateway.yaml")
    assert [member.url for member in config.backends.values()] == ["http://10.0.0.7:8000", "http://10.0.0.8:8000"]
    assert headway("init", "gateway", "--force", cwd=tmp_path).returncode == 0
    assert Config.load(tmp_path / "gateway.yaml").backends["engine-1"].url == "http://127.0.0.1:9101"


@pytest.mark.full
def test_a_suite_can_be_searched_at_once(headway: Run, tmp_path: Path) -> None:
    done = headway("init", "suite", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "headway evolve suite.yaml\n")
    check_schema(tmp_path / "suite.yaml", "suite")
    ran = headway("evolve", "suite.yaml", "--evaluations", "2", "--builtins", "lmetric", "--json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("stage", STAGES)
def test_a_policy_passes_its_check_and_runs(headway: Run, tmp_path: Path, stage: str) -> None:
    done = headway("init", "policy", "--stage", stage, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "headway policy check policy.yaml\n"), done.stderr
    check_schema(tmp_path / "policy.yaml", "bundle")
    assert headway("policy", "check", "policy.yaml", cwd=tmp_path).returncode == 0
    assert headway("init", "policy", "rule.py", "--stage", stage, cwd=tmp_path).returncode == 0
    assert headway("policy", "check", "rule.py", cwd=tmp_path).returncode == 0
    small = ["--set", "workload.requests=20"]
    assert headway("run", "--policy", "policy.yaml", *small, cwd=tmp_path).returncode == 0


def test_a_file_is_overwritten_only_with_force(headway: Run, tmp_path: Path) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text("mine")
    done = headway("init", "suite", cwd=tmp_path)
    assert done.returncode == 2 and file.read_text() == "mine"
    assert done.stderr == ("headway: suite.yaml: already exists. Choose another name, or overwrite it with --force.\n")
    assert headway("init", "suite", "--force", cwd=tmp_path).returncode == 0
    assert file.read_text() != "mine"


def test_a_wrong_value_writes_nothing(headway: Run, tmp_path: Path) -> None:
    done = headway("init", "scenario", "--rate", "fast", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith("headway: workload.rate: 'fast' is not a rate;")
    assert headway("init", "policy", "policy.txt", cwd=tmp_path).returncode == 2
    assert not list(tmp_path.iterdir())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_asked_for_the_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", Terminal("12/s\n2\n\n\n\nlmetric\n"))
    assert status(["init", "scenario"]) == 0
    assert "Rate of new sessions [4/s]: Number of instances [4]: " in capsys.readouterr().err
    document = yaml.safe_load(Path("scenario.yaml").read_text(encoding="utf-8"))
    assert document["workload"]["rate"] == "12/s" and document["cluster"]["instances"] == 2
    assert document["cluster"]["gpu"] == "h200" and document["policies"]["routing"] == "lmetric"
    assert status(["init", "scenario", "--instances", "3", "--force"]) == 0
    assert capsys.readouterr().err == "headway: wrote scenario.yaml\n", "options answer the questions"


def test_python_writes_a_starter(tmp_path: Path) -> None:
    file = write_starter("gateway", tmp_path / "g.yaml", engines=["http://a:1"], routing="lmetric")
    assert Config.load(file).policies["routing"] == "lmetric"
    with pytest.raises(HeadwayError, match=r"there is no option 'engine'\. Did you mean 'engines'\?"):
        write_starter("gateway", tmp_path / "h.yaml", engine="http://a:1")
    with pytest.raises(HeadwayError, match=r"there is no starter for 'gatway'\. Did you mean 'gateway'\?"):
        write_starter("gatway")
