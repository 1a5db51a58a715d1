"""Models behind an endpoint, and transcripts of their answers."""

from __future__ import annotations

import json
import pickle
import shlex
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from small import document
from stub_models import Counting, heavier

from conftest import ROOT, Run
from headway.cli.evolve import Talk
from headway.errors import HeadwayError
from headway.evolve import model as model_module
from headway.evolve.dialogue import model_of
from headway.evolve.model import KEY, Conversation, Endpoint, Recorder, Replay, code_in
from short_examples import link_examples

SECRET = "sk-very-secret"


class Server(ThreadingHTTPServer):
    """Returns prepared answers, one for each request: a status and a body."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[tuple[int, Any]] = []
        self.model: Any = None  # answers instead, if set
        self.retry_after = "0"
        self.asked: list[tuple[str, dict[str, str], Any]] = []

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, dict(self.headers), json.loads(body)))
        prompt = json.loads(body)["messages"]
        model = self.server.model
        status, answer = (200, said(model(prompt))) if model else self.server.answers.pop(0)
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        if status == 429:
            self.send_header("Retry-After", self.server.retry_after)
        if status == 302:
            self.send_header("Location", f"{self.server.base}/elsewhere")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *given: Any) -> None: ...


def said(text: str) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def endpoint(server: Server) -> Endpoint:
    return Endpoint("tiny", server.base, pauses_s=(0.0, 0.0), settings={"temperature": 0.5})


def test_an_endpoint_is_asked_as_openai_is(server: Server) -> None:
    server.answers = [(200, said("42")), (200, said("43"))]
    model = endpoint(server)
    assert model("What is it?") == "42"
    assert model([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "And?"}]) == "43"
    path, headers, body = server.asked[0]
    assert path == "/v1/chat/completions" and headers["Authorization"] == f"Bearer {SECRET}"
    assert body == {"model": "tiny", "messages": [{"role": "user", "content": "What is it?"}], "temperature": 0.5}
    assert [one["role"] for one in server.asked[1][2]["messages"]] == ["system", "user"]
    assert SECRET not in str(vars(model))


def test_without_a_key_none_is_sent(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    server.answers = [(200, said("yes"))]
    endpoint(server)("?")
    assert "Authorization" not in server.asked[0][1]


def test_a_busy_server_is_asked_again_and_a_refusal_is_not(server: Server) -> None:
    server.answers = [(503, {}), (429, {}), (200, said("at last"))]
    assert endpoint(server)("?") == "at last"
    server.answers = [(500, {}), (500, {}), (500, {"error": "no"})]
    with pytest.raises(HeadwayError, match=r"answered 500: .*no.* \(3 tries\)"):
        endpoint(server)("?")
    server.answers = [(400, {"error": "too long"})]
    with pytest.raises(HeadwayError, match=r"answered 400: .*too long"):
        endpoint(server)("?")
    assert not server.answers


def test_tokens_and_retries_are_counted_and_replayed(server: Server, tmp_path: Path) -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050}
    server.answers = [(429, {}), (200, {**said("one"), "usage": usage}), (200, {**said("two"), "usage": "free"})]
    recorder = Recorder(endpoint(server), tmp_path / "t.jsonl")
    assert [recorder("a"), recorder("b")] == ["one", "two"]
    counted = Conversation.of(tmp_path / "t.jsonl")
    assert counted == Conversation(prompts=2, prompt_tokens=1000, completion_tokens=50, retries=1)
    assert counted.describe((2.0, 10.0)) == (
        "The model answered 2 prompts: 1,000 prompt tokens and 50 tokens of answers, 1 retries, 0.0025 USD."
    )
    again = pickle.loads(pickle.dumps(Recorder(Replay(tmp_path / "t.jsonl"), tmp_path / "again.jsonl")))
    assert again([{"role": "user", "content": "a"}]) == "one" and again("b") == "two"
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "t.jsonl").read_bytes()


def test_an_endpoint_can_ask_for_a_longer_pause(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(model_module.time, "sleep", slept.append)
    server.retry_after = "7"
    server.answers = [(429, {}), (200, said("at last"))]
    assert endpoint(server)("?") == "at last"
    server.retry_after = "99999"
    server.answers = [(429, {}), (200, said("at last"))]
    endpoint(server)("?")
    server.retry_after = "Wed, 21 Oct 2026 07:28:00 GMT"
    server.answers = [(429, {}), (200, said("at last"))]
    endpoint(server)("?")
    assert slept == [7.0, 60.0, 0.0]


def test_an_error_never_shows_the_key(server: Server) -> None:
    server.answers = [(401, {"error": f"Incorrect API key provided: {SECRET}"})]
    with pytest.raises(HeadwayError, match="Check the key in OPENAI_API_KEY") as caught:
        endpoint(server)("?")
    assert SECRET not in str(caught.value)


def test_a_redirection_is_not_followed(server: Server) -> None:
    server.answers = [(302, b"")]
    with pytest.raises(HeadwayError, match="answered 302"):
        endpoint(server)("?")
    assert len(server.asked) == 1


@pytest.mark.parametrize("body", [b"<html>", {"choices": []}, said(""), {"choices": [{"message": {"content": None}}]}])
def test_what_is_no_completion_is_an_error(server: Server, body: Any) -> None:
    server.answers = [(200, body)]
    with pytest.raises(HeadwayError, match=r"is not a chat completion|returned an empty answer"):
        endpoint(server)("?")


def test_an_address_that_is_none_is_refused() -> None:
    for base in ("localhost:8000", "ftp://there/v1", ""):
        with pytest.raises(HeadwayError, match="api_base: expected a URL"):
            Endpoint("tiny", base)
    with pytest.raises(HeadwayError, match="the URL contains a password") as caught:
        Endpoint("tiny", "http://me:hunter2@there/v1")
    assert "hunter2" not in str(caught.value)


def test_a_transcript_gives_what_was_said(tmp_path: Path) -> None:
    answers = iter(["eins", "zwei\u2028zweieinhalb", "drei"])
    recorder = Recorder(lambda prompt: next(answers), tmp_path / "t.jsonl")
    asked: list[Any] = ["a", [{"role": "user", "content": "b"}], "a"]
    first = [recorder(prompt) for prompt in asked]
    again = Replay(tmp_path / "t.jsonl")
    assert [again(prompt) for prompt in asked] == first == ["eins", "zwei\u2028zweieinhalb", "drei"]


def test_a_prompt_that_is_not_in_the_transcript_is_an_error(tmp_path: Path) -> None:
    Recorder(lambda prompt: "yes", tmp_path / "t.jsonl")("known")
    replay = Replay(tmp_path / "t.jsonl")
    with pytest.raises(HeadwayError, match=r"t\.jsonl: the transcript has no answer.* to prompt 1.*'unknown'"):
        replay("unknown")
    assert replay("known") == "yes"
    with pytest.raises(HeadwayError, match="no further answer, to prompt 3"):
        replay("known")


def test_in_order_a_transcript_does_not_look_at_prompts(tmp_path: Path) -> None:
    answers = iter("xy")
    recorder = Recorder(lambda prompt: next(answers), tmp_path / "t.jsonl")
    recorder("a")
    recorder("b")
    replay = Replay(tmp_path / "t.jsonl", in_order=True)
    assert [replay("c"), replay("d")] == ["x", "y"]
    with pytest.raises(HeadwayError, match="the transcript has only 2 answers"):
        replay("e")


def test_a_recording_is_not_overwritten_but_can_be_gone_on_with(tmp_path: Path) -> None:
    Recorder(heavier, tmp_path / "t.jsonl")("W")
    with pytest.raises(HeadwayError, match="exists already"):
        Recorder(heavier, tmp_path / "t.jsonl")
    model = Counting(heavier)
    on = Recorder(model, tmp_path / "t.jsonl", go_on=True)
    assert on("W") == heavier("W") and model.asked == 0
    on("V")
    assert model.asked == 1 and len((tmp_path / "t.jsonl").read_text().splitlines()) == 2


def test_a_broken_transcript_is_told_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"messages": [], "answer": "a"}\n{"messages"\n')
    with pytest.raises(HeadwayError, match="line 2 is not JSON"):
        Replay(tmp_path / "t.jsonl")
    (tmp_path / "t.jsonl").write_text('{"prompt": "a"}\n')
    with pytest.raises(HeadwayError, match="line 1 is not a prompt with an answer"):
        Replay(tmp_path / "t.jsonl")
    with pytest.raises(HeadwayError, match="cannot be read"):
        Replay(tmp_path / "none.jsonl")


def test_the_code_of_an_answer_is_its_last_block() -> None:
    assert code_in("First\n```\na = 1\n```\nthen\n```python\nb = 2\n```\nend") == "b = 2\n"
    assert code_in("b = 2") == "b = 2\n"
    assert code_in("```python\nb = 2") == "b = 2\n"


def test_a_model_is_named_by_all_that_it_takes(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=r"gepa: name is missing"):
        model_of("gepa", None, "http://127.0.0.1:1/v1")
    with pytest.raises(HeadwayError, match=r"api_base is missing"):
        model_of("openevolve", "tiny", None)
    Recorder(heavier, tmp_path / "t.jsonl")("W")
    with pytest.raises(HeadwayError, match="replay: a replay needs no model"):
        model_of("gepa", "tiny", None, replay=tmp_path / "t.jsonl")
    strict, loose = (model_of(engine, None, None, replay=tmp_path / "t.jsonl") for engine in ("gepa", "openevolve"))
    assert isinstance(strict, Replay) and isinstance(loose, Replay)
    assert (strict.in_order, loose.in_order) == (False, True)


# --- the command line -------------------------------------------------------------------------------------------------


@pytest.fixture
def suite_file(tmp_path: Path) -> Path:
    one = {"train": [{"workload": "prefixes", "seeds": [1]}], "validation": []}
    rest = {"held_out": [{"workload": "prefixes", "seeds": [101, 102]}], "cascade": None}
    file = tmp_path / "suite.yaml"
    file.write_text(yaml.safe_dump(document(**one, **rest)))
    return file


def test_a_search_with_an_endpoint_is_replayed_from_its_recording(
    server: Server, headway: Run, suite_file: Path, tmp_path: Path
) -> None:
    pytest.importorskip("gepa")
    server.model = heavier
    (tmp_path / "rule.py").write_text("def score(request, instance, cluster):\n    return -instance.index\n")
    common = ["evolve", str(suite_file), "--engine", "gepa", "--template", "rule.py", "--evaluations", "4"]
    common += ["--builtins", "lmetric", "--workers", "1", "--json"]
    asked = ["--model", "tiny", "--api-base", server.base, "--record", "t.jsonl", "-o", "found"]
    live = headway(*common, *asked, cwd=tmp_path)
    assert live.returncode == 0, live.stderr
    assert server.asked and "4 candidates × 1 cases = 4 simulations on train" in live.stderr
    assert json.loads(live.stdout)["candidates"] > 1
    again = headway(*common, "--replay", "t.jsonl", cwd=tmp_path, OPENAI_API_KEY="")
    assert (again.returncode, again.stdout) == (0, live.stdout)
    written = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert SECRET not in live.stdout + live.stderr and SECRET.encode() not in written


@pytest.mark.full
def test_the_commands_of_the_docs_work_with_an_endpoint(server: Server, headway: Run, tmp_path: Path) -> None:
    pytest.importorskip("gepa")
    page = (ROOT / "docs" / "evolving.md").read_text(encoding="utf-8")
    block = page.partition("```sh\n")[2].partition("```")[0]
    lines = [shlex.split(line, comments=True) for line in block.replace("\\\n", " ").splitlines()]
    shown = [words[1:] for words in lines if words[0] == "headway"]
    assert {words[words.index("--engine") + 1] for words in shown} == {"gepa", "openevolve"}
    link_examples(tmp_path)
    server.model = heavier
    for words in shown:
        mine = [server.base if word.startswith("http") else word for word in words]
        completed = headway(*mine, "--evaluations", "1", "--builtins", "lmetric", "--workers", "1", cwd=tmp_path)
        assert completed.returncode == 0, completed.stderr


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--engine", "gepa"], "--engine gepa: --model is missing"),
        (["--engine", "gepa", "--model", "m"], "--api-base is missing"),
        (["--engine", "gepa", "--model", "m", "--api-base", "there"], "--api-base: expected a URL"),
        (["--engine", "gp", "--model", "m"], "--engine gp: uses no language model"),
        (["--engine", "gepa", "--token-prices", "1"], "--token-prices: expected two prices such as 0.15,0.60"),
        (["--engine", "gepa", "--model-timeout", "5"], "--model-timeout: '5' is not a duration"),
        (["--engine", "gepa", "--model-settings", "7"], "--model-settings: expected a mapping"),
        (["--engine", "gepa", "--replay", "nowhere.jsonl"], "nowhere.jsonl: cannot be read"),
        (["--engine", "openevolve", "--batch", "3"], "--batch: openevolve has no batches"),
    ],
)
def test_mistakes_are_sentences(headway: Run, options: list[str], why: str) -> None:
    completed = headway("evolve", *options)
    assert completed.returncode == 2 and not completed.stdout
    assert why in " ".join(completed.stderr.split()) and "Traceback" not in completed.stderr


def test_the_variable_of_the_key_is_named_once() -> None:
    assert Talk().api_key_env == KEY
