"""README and docs/ hold what they say: YAML loads, commands and Python run, and what stands in backticks exists.

A name in backticks is looked up in one vocabulary: modules, classes, functions, fields and parameters of the package,
policies, keys of the scenario and of the summary, files of a run folder. What is neither there nor among a few foreign
words is taken for a mistake.
"""

from __future__ import annotations

import ast
import dis
import inspect
import pkgutil
import re
import shlex
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, get_args

import pytest
import yaml
from cyclopts import App

import headway as package
from command_line import run_script
from conftest import ROOT, Run
from headway.cli import verbs
from headway.config.keys import write
from headway.evolve.suite import Suite
from headway.experiment.compare import PER
from headway.experiment.controls import CONTROLS
from headway.experiment.run import about
from headway.experiment.validate import KINDS as VALIDATED
from headway.latency import MODELS
from headway.latency.gpus import gpus, interconnects
from headway.latency.links import links
from headway.latency.shapes import models
from headway.latency.tables import COLUMNS as STEPS
from headway.policies import registry
from headway.policies.code import language, stage_of
from headway.results import store, study
from headway.results.groups import fairness, sessions
from headway.results.recorded import COLUMNS as RECORDED
from headway.results.recorded import OPTIONAL as RECORDED_TOO
from headway.results.recorder import Recorder
from headway.results.sample import Sample
from headway.results.store import TRACES
from headway.results.table import COLUMNS
from headway.scenario.overrides import policy_file
from headway.scenario.scenario import Scenario
from headway.types import OUTCOMES, Belief
from headway.views.cluster import KEPT
from headway.workload.traces import FORMATS
from short_examples import link_examples

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OUTPUTS = [file.read_text(encoding="utf-8") for file in sorted((ROOT / "examples").glob("*.out"))]
SOURCE = ROOT / "src" / "headway"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
NAME = re.compile(r"@?\.?([A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*)(?:\.\*|\[\])?(?:\(.*\))?")
# What the pages call an object of a class.
VARIABLES = {"Result": "result", "ClusterView": "cluster", "InstanceView": "view", "Context": "context"}
FOREIGN = {"PYTHONHASHSEED", "hash", "null", "random", "from", "auto", "FewestTokens", "SpareMemory", "k_max", "graph"}
TINY: dict[str, Any] = {
    "workload": {"requests": 5, "rate": "10/s", "prompt_tokens": 64, "output_tokens": 8},
    "cluster": {"instances": 2, "latency": {"model": "fixed"}, "adapters": {"slots": 2, "load_time": "50ms"}},
    "policies": {"flow": "bands"},
    "routers": 2,
}


class Block(NamedTuple):
    page: str
    line: int
    language: str
    text: str


def name_of(page: Path) -> str:
    """The page's path, as seen from `docs`."""
    return str(page.relative_to(ROOT if page.parent == ROOT else ROOT / "docs"))


@cache
def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            found.append(Block(name_of(page), text.count("\n", 0, match.start()) + 1, match[1], match[2]))
    return found


def commands() -> list[tuple[str, list[str]]]:
    """Every line of a block that begins with `headway` or `make`, joined where it goes on, without its comment."""
    found = []
    for block in blocks():
        if block.language:
            continue
        for line in block.text.replace("\\\n", " ").splitlines():
            if line.startswith(("headway ", "make ")):
                found.append((f"{block.page}:{block.line}", shlex.split(line, comments=True)))
    return found


def inline() -> list[tuple[str, str]]:
    """What stands in backticks outside of blocks, once a page."""
    found: dict[tuple[str, str], None] = {}
    for page in PAGES:
        for text in INLINE.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
            found[(name_of(page), text)] = None
    return list(found)


def case(*values: Any, id: str, full: bool) -> Any:
    """One case of a test; those above a second of CPU belong to `make test-full`."""
    return pytest.param(*values, id=id, marks=[pytest.mark.full] if full else [])


POLICIES = [block for block in blocks() if block.language == "policy"]
YAML = [block for block in blocks() if block.language == "yaml"]
SHOWN = commands()
# Each once, though several pages may show it.
HEADWAY = list({tuple(words): (place, words) for place, words in SHOWN if words[0] == "headway"}.values())


def test_there_is_something_to_check() -> None:
    assert YAML and HEADWAY
    assert {name_of(page) for page in PAGES} >= {"README.md", "start/first-run.md", "model.md", "write-a-policy.md"}


@pytest.mark.parametrize(
    "block", [case(one, id=f"{one.page}:{one.line}", full="aiconfigurator" in one.text) for one in YAML]
)
def test_yaml_loads_as_a_scenario_or_as_a_part_of_one(block: Block, tmp_path: Path) -> None:
    data = yaml.safe_load(block.text)
    if not {"routing-policy", "routing-scorers", "format"}.isdisjoint(data):
        file = tmp_path / "policy.yaml"
        file.write_text(block.text)
        policy_file(file)
        return
    if "objectives" in data:
        Suite.load(data)
        return
    Scenario.load(TINY | data)


@pytest.mark.parametrize("block", POLICIES, ids=[f"{block.page}:{block.line}" for block in POLICIES])
def test_a_policy_that_is_shown_runs(block: Block) -> None:
    stage = stage_of(block.text)
    assert stage is not None
    pools = {"min_replicas": 1, "max_replicas": 4} if stage == "scaling" else {}
    scenario = TINY | {"cluster": {"instances": 2, **pools}} | ({"scaling": {}, "routers": 1} if pools else {})
    result = package.simulate(scenario, **{stage: {"name": "code", "source": block.text}})
    assert result.summary()["requests"]["completed"] == 5


def test_the_page_of_the_policy_language_has_all_of_it() -> None:
    page = (ROOT / "docs" / "policy-language.md").read_text(encoding="utf-8")
    shown = {name for text in INLINE.findall(FENCE.sub("", page)) for name in re.findall(r"\w+", text)}
    fields = {name for record in language.FIELDS.values() for name in record}
    stages = (*language.ENTRANCES.values(), *language.HOOKS.values())
    functions = {name for stage in stages for name in stage}
    wanted = fields | functions | {*language.FUNCTIONS, *language.METHODS, language.PARAMETER}
    assert wanted <= shown, wanted - shown
    limits = (
        f"{language.MOST_CHARACTERS:,} characters and {language.MOST_NODES:,} nodes of syntax; {language.STEPS:,} steps"
    )
    assert limits in " ".join(page.split()) and f"{language.MEMORY_KEYS:,} of them" in page


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that commands name: the examples, and those a reader is meant to have written."""
    folder = tmp_path_factory.mktemp("reader")
    link_examples(folder)
    profile = {"name": "weighted", "scorers": {"prefix-affinity": 3, "queue-depth": 2}}
    (folder / "s.yaml").write_text(yaml.safe_dump(TINY | {"policies": {"routing": profile}}))
    (folder / "policy.yaml").write_text("routing-policy: weighted\nrouting-scorers: 'prefix-affinity:3,queue-depth:2'")
    router = (ROOT / "examples" / "policies" / "my_router.py").read_text(encoding="utf-8")
    (folder / "rule.py").write_text(POLICIES[0].text)
    (folder / "best.yaml").write_text(next(block.text for block in YAML if "format: 1" in block.text))
    (folder / "my_policy.py").write_text(router.replace("FewestTokens", "MyPolicy"))
    (folder / "my_policies.py").write_text(_wrapped(_python("write-a-policy.md")))
    for name in ("first", "second"):
        package.simulate(TINY, trace="decisions").save(folder / "runs" / name)
    package.compare(TINY, "round-robin,random", output=folder / "runs" / "policies", workers=1)
    (folder / "steps.csv").write_text(_steps())
    (folder / "my.csv").write_bytes((ROOT / "examples" / "08_own_table.csv").read_bytes())
    table = {"arrival": "ts_ms:ms", "prompt": "in_tok", "output": "out_tok"}
    package.convert_trace(folder / "my.csv", folder / "mine.headway.jsonl.gz", columns=table)
    (folder / "engine.csv").write_text(
        f"{','.join(RECORDED)}\n" + "".join(f"{at},{at + 1},{at + 2},64,8\n" for at in range(5))
    )
    return folder


def _steps() -> str:
    """Step times as `headway calibrate` reads them."""
    asked = package.latency("h200", "llama-3.1-8b")
    lines = [",".join(("shape", *STEPS))]
    for batch in (0, 1, 4, 8, 16, 32, 64, 96, 128, 256):
        for new in (0, 128, 512, 1024, 2048) if batch else (128, 512, 1024, 2048):
            ms = asked.step_ms([700] * batch, [(new, 0)] if new else [])
            lines.append(f"llama-3.1-8b,{batch},{700 * batch},{int(new > 0)},{new},0,{ms}")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        case(
            place,
            words,
            id=f"{place} {' '.join(words)}",
            full="--ray" in words or words[1] in ("calibrate", "check", "evolve"),
        )
        for place, words in HEADWAY
    ],
)
def test_a_command_that_is_shown_runs(where: str, words: list[str], place: Path, headway: Run) -> None:
    arguments = ["examples/05_trace.jsonl" if word == "FILE" else word for word in words[1:]]
    if arguments[0] in ("run", "compare", "check", "sweep", "plan"):
        traces = {"examples/05_trace.yaml", "mine.headway.jsonl.gz", "routesim.yaml", "examples/interop/routesim.toml"}
        key = "workload.trace.limit" if traces & set(arguments) else "workload.requests"
        arguments += ["--set", f"{key}=5"]
    done = headway(*arguments, cwd=place)
    verdicts = (0, 1, 4) if arguments[0] == "check" else (0,)
    assert done.returncode in verdicts, f"{where}: {done.stderr}"


def test_an_output_that_is_shown_is_that_of_an_example() -> None:
    shown = [block for block in blocks() if block.language == "output"]
    assert shown
    for block in shown:
        assert any(block.text.rstrip("\n") in output for output in OUTPUTS), f"{block.page}:{block.line}"


def test_a_make_target_that_is_shown_exists() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for where, words in SHOWN:
        if words[0] == "make":
            assert words[1] in targets, f"{where}: make {words[1]}"


def _python(page: str) -> str:
    return "\n".join(block.text for block in blocks() if block.page == page and block.language == "python")


@pytest.mark.parametrize(
    "page",
    [
        case(page, id=name_of(page), full=page.stem in ("README", "python", "evolving", "hardware", "comparing"))
        for page in PAGES
        if _python(name_of(page))
    ],
)
def test_the_python_of_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path, place: Path) -> None:
    code = _python(name_of(page))
    if find_spec("pandas") is None:
        code = "\n".join(line for line in code.splitlines() if "to_pandas" not in line)
    if find_spec("altair") is None:
        code = "\n".join(line for line in code.splitlines() if ".plot(" not in line)
    tests = re.findall(r"^def (test_\w+)", code, re.MULTILINE)
    file = tmp_path / "page.py"
    file.write_text("\n".join([code, *(f"{test}()" for test in tests)]), encoding="utf-8")
    run_script(file, place)


def _wrapped(code: str) -> str:
    """Definitions and imports as they are; what is done on the way goes into `main`."""
    kept, done = [], ["    pass"]
    for part in ast.parse(code).body:
        if isinstance(part, ast.Import | ast.ImportFrom | ast.ClassDef | ast.FunctionDef):
            kept.append(ast.unparse(part))
        else:
            done.append("    " + ast.unparse(part).replace("\n", "\n    "))
    return "\n".join([*kept, "def main():", *done, ""])


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Every name there is, and every dotted path: `Class.attribute`, `module.name`, keys of summary and scenario."""
    words = FOREIGN | set(COLUMNS) | set(KEPT) | set(OUTCOMES) | set(FORMATS) | set(MODELS) | set(STEPS)
    words |= set(get_args(Belief)) | set(VALIDATED)
    words |= {"shape", "mode", "composition", "arrival_time", "given"} | {
        name for pair in (RECORDED | RECORDED_TOO).items() for name in (pair[0], *pair[1])
    }
    words |= set(gpus().entries) | set(models().entries) | set(interconnects().entries)
    words |= set(links().entries) | set(links().aliases)
    words |= {*language.FUNCTIONS, *language.METHODS, language.PARAMETER, "key", "lambda", "while", "break", "continue"}
    words |= {name for record in language.FIELDS.values() for name in record} | {"if", "for", "one", "a", "b", "NAME"}
    words |= {name for stage in (*language.ENTRANCES.values(), *language.HOOKS.values()) for name in stage}
    words |= {one.name for entry in registry.entries() for one in entry.parameters}
    words |= {name for entry in registry.entries() for name in (entry.name, entry.stage)}
    for info in pkgutil.walk_packages([str(SOURCE)], "headway."):
        words |= _names(import_module(info.name))
    words |= {f"headway.{name}" for name in package.__all__}
    result = package.simulate(TINY)
    folder = tmp_path_factory.mktemp("run") / "run"
    result.save(folder)
    words |= {file.name for file in folder.iterdir()}
    words |= _paths(package.simulate({**TINY, "policies": {"estimator": "constant"}}).summary())
    scenario = Scenario.load(TINY)
    words |= _paths({"sessions": sessions(Recorder(), 0)}) | {control.name for control in CONTROLS}
    words |= _paths({"fairness": fairness(Recorder(), Sample([], [], [], [], [], [], {}, None), 0)})
    words |= {f"per_{whom}" for whom in PER} | {"given"}  # the load of a plan
    words |= {study.STUDY} | _paths(package.compare(TINY, "random,round-robin", seeds=2, workers=1).summary())
    tiered = {**TINY, "cluster": {"instances": 2, "kv": {"tiers": {"cpu": {"blocks": 9}, "storage": {"blocks": 9}}}}}
    words |= _paths(package.simulate(tiered).summary()) | _paths(Scenario.load(tiered).resolved())
    halves = {"prefill": {"instances": 1}, "decode": {"instances": 1}}
    split = {**TINY, "cluster": {"architecture": "disaggregated", **halves}}
    words |= _paths(package.simulate(split).summary()) | _paths(Scenario.load(split).resolved())
    drafted = {**TINY, "cluster": {"speculation": {"tokens": 2, "acceptance": 0.5}}}
    words |= _paths(package.simulate(drafted).summary()) | _paths(Scenario.load(drafted).resolved())
    both = {**split, "policies": {"decider": "never", "estimator": "constant"}}
    words |= _paths(Scenario.load(both).resolved())
    living = {**TINY, "cluster": {"instances": 1, "min_replicas": 1, "max_replicas": 2}, "scaling": {}, "routers": 1}
    words |= _paths(package.simulate(living).summary()) | _paths(Scenario.load(living).resolved())
    words |= {file for file, _ in store.LISTS.values()} | {store.DECISIONS, store.ADMISSION, "reload"} | set(TRACES)
    return words | _paths(result.summary()) | _paths({"run": about(scenario)}) | _paths(scenario.resolved())


def _names(module: ModuleType) -> set[str]:
    """A module, what it defines, and the fields and parameters of that."""
    short = module.__name__.rpartition(".")[2]
    words = {short, module.__name__, *getattr(module, "__all__", ())}
    for name, value in vars(module).items():
        if getattr(value, "__module__", module.__name__) != module.__name__:
            continue  # imported
        words |= {name, f"{short}.{name}"}
        if inspect.isfunction(value):
            words |= set(inspect.signature(value).parameters)
        elif inspect.isclass(value):
            for field in _fields(value):
                words |= {field, f"{name}.{field}", f"{VARIABLES.get(name, name)}.{field}"}
            for member in vars(value).values():
                if inspect.isfunction(member):
                    words |= set(inspect.signature(member).parameters)
    return words


def _fields(cls: type) -> set[str]:
    own = [base for base in cls.__mro__ if base.__module__.startswith("headway")]
    names = {name for base in own for name in (*vars(base), *inspect.get_annotations(base), *_set_in_init(base))}
    fields = set(getattr(cls, "__struct_fields__", ()))
    return names | fields | {name.removesuffix("_ps").removesuffix("_s") for name in fields}  # keys have no such ends


def _set_in_init(cls: type) -> tuple[str, ...]:
    """The attributes that `__init__` gives an object of a class."""
    init = vars(cls).get("__init__")
    steps = dis.get_instructions(init) if inspect.isfunction(init) else ()
    return tuple(step.argval for step in steps if step.opname == "STORE_ATTR")


def _paths(document: Any, before: str = "") -> set[str]:
    """The keys of a document, each alone and with those above it."""
    if isinstance(document, list):
        return {path for value in document for path in _paths(value, before)}
    if not isinstance(document, dict):
        return set()
    found = {str(key) for key in document} | {f"{before}{key}" for key in document}
    return found.union(*(_paths(value, f"{before}{key}.") for key, value in document.items()))


def exists(text: str) -> bool:
    """Whether a file or folder of that name is there, seen from the root, the package or the documents."""
    return any((folder / text).exists() for folder in (ROOT, SOURCE, ROOT / "docs"))


def unknown(text: str, vocabulary: set[str]) -> str | None:
    """The part of a text in backticks that names nothing; None if all is well."""
    if text in vocabulary or exists(text):
        return None
    if re.search(r"\.(py|md|sh|yaml|jsonl?|out)$", text) or text.endswith("/"):
        return text  # a file that is not there
    if setting := re.fullmatch(r"([\w.-]+): .+", text):
        text = setting[1]
    if match := NAME.fullmatch(text):
        return None if match[1] in vocabulary else match[1]
    if text[:1].isalpha() and re.fullmatch(r"[\w./-]+:\w+", text):
        return None if text.rpartition(":")[2] in vocabulary else text  # a policy in a file
    words = re.findall(r"[A-Za-z_]\w+", text)
    return next((word for word in words if word not in vocabulary), None)


def test_what_stands_in_backticks_exists(vocabulary: set[str]) -> None:
    wrong = []
    for page, text in inline():
        if text.startswith(("headway ", "--", "pip ", "make ", "nvidia-smi ")):
            continue
        if (word := unknown(text, vocabulary)) is not None:
            wrong.append(f"{page}: `{text}` ({word})")
    assert not wrong, "these name nothing in the package: " + "; ".join(wrong)


def test_a_name_that_is_not_there_is_noticed(vocabulary: set[str]) -> None:
    for text in ("observed_by", "Scenario.resolve()", "sim/weather.py", "leep: false", "latency.ttft.p98", "weather/"):
        assert unknown(text, vocabulary) is not None, text


def commands_of(app: App) -> dict[str, App]:
    return {name: command for name, command in app.resolved_commands().items() if not name.startswith("-")}


def options_of(app: App) -> set[str]:
    """The options of a verb, and those of the verbs below it."""
    found = set().union(*(options_of(command) for command in commands_of(app).values()), app.help_flags)
    if app.default_command is not None:
        found = found.union(*((*one.names, *one.negatives) for one in app.assemble_argument_collection()))
    return found


def test_verbs_and_options_in_the_text_are_real() -> None:
    options = {verb: options_of(command) for verb, command in commands_of(verbs.app).items()}
    every = set().union(*options.values(), verbs.app.version_flags)
    for page, text in inline():
        if not text.startswith(("headway ", "--")):
            continue
        verb = text.split()[1] if text.startswith("headway ") else None
        if verb is not None and not verb.startswith("--"):
            assert verb in options, f"{page}: `{text}`"
        known = options.get(verb or "", every)
        for option in re.findall(r"(?<!\S)--?[a-z][\w-]*", text):
            assert option in known, f"{page}: `{text}` has no {option}"


def test_links_between_the_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{name_of(page)}: {target}"


def test_the_constants_of_the_model_page_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "model.md").read_text(encoding="utf-8")
    shown: dict[str, dict[str, str]] = {}
    model = ""
    row = re.compile(r"^\| (?:`([a-z]+)` )?\| `(\w+)` \| ([\d.,]+(?: \ws)?|auto|null|vllm) \|", re.MULTILINE)
    for name, key, value in row.findall(page):
        model = name or model
        shown.setdefault(model, {})[key] = value.replace(",", "").replace(" ", "").replace("µ", "u")
    for name, kind in MODELS.items():
        defaults = write(kind.keys(), whole=True)
        assert shown[name] == {key: "null" if value is None else str(value) for key, value in defaults.items()}, name
    blocks = f"{Scenario.load(TINY).cluster.kv_blocks():,} blocks of 16 tokens for llama-3.1-8b on one H100"
    assert blocks in " ".join(page.split())
