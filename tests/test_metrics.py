"""What is counted is what the wire said: `/metrics`, the totals and the reply headers agree, and stay bounded."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import re
import shutil
import subprocess
import sys
import tracemalloc
from asyncio.subprocess import PIPE, STDOUT
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from proxy.compaction.outcome import Reason, Untouched
from proxy.gateway.watched import Arrived, Conversed, Passed, Stay
from proxy.ledger import transcript
from proxy.ledger.transcript import Transcript
from proxy.visibility.tokens import Counter as TokenCounter
from proxy.visibility.totals import Totals
from proxy.wire import chat, responses
from proxy.wire.messages import Usage
from tests.conftest import StartProcess
from tests.house.client import Client, Seen, ask, request
from tests.house.looking import Watched, total
from tests.house.provider import Break, Provider, Reply, Wait, completion, events, json_reply, sse_reply
from tests.house.running import ROOT
from tests.talk import body, cited, says, searched, user
from tests.test_inspector import resident
from tests.test_watching import FIRST, KEY, SECOND, TABLE, chat_usage

Start = Callable[..., Awaitable[Watched]]

GRAFANA = ROOT / "config" / "grafana"
PROMTOOL = shutil.which("promtool") or next(map(str, ROOT.glob(".venv/promtool/usr/bin/promtool")), None)
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not on this machine: `make promtool` gets it where apt-get can"
)


@pytest.fixture
async def start(provider: Provider) -> AsyncIterator[Start]:
    running: list[Watched] = []

    async def start(**sections: Any) -> Watched:
        running.append(Watched(provider.url, **{"evidence": [TABLE], **sections}))
        return await running[-1].start()

    yield start
    for watched in running:
        await watched.stop()


# They agree.


def header(seen: Seen) -> tuple[str, dict[str, str]]:
    """What a reply's Evidence-Proxy says: its outcome and its parameters."""
    outcome, *pairs = seen.evidence.split("; ")
    return outcome, dict(pair.split("=") for pair in pairs)


class Script:
    """Requests of many kinds, one after the other, and what each was answered."""

    def __init__(self, watched: Watched, provider: Provider, seed: int) -> None:
        self._watched = watched
        self._provider = provider
        self._random = random.Random(seed)
        self.seen: list[tuple[bytes, Seen]] = []
        self.usage: list[Usage] = []
        self.conversations: list[list[Any]] = []

    async def run(self, count: int) -> None:
        kinds = [self.question] * 12 + [self.off, self.plain, self.garbage, self.fails, self.passes, self.response]
        while len(self.seen) < count:
            await self._random.choice(kinds)()

    async def _ask(self, raw: bytes, reply: Any, **how: Any) -> Seen:
        self._provider.reply(reply)
        seen = await ask(self._watched.url, raw, **{"headers": KEY, **how})
        self.seen.append((raw, seen))
        return seen

    async def question(self) -> None:
        """A conversation goes on by a question: searched twice, something cited, answered."""
        if not self.conversations or self._random.random() < 0.2:
            self.conversations.append([])
        messages = self._random.choice(self.conversations)
        number = len(messages)
        words = " ".join(self._random.choices(["steam", "valve", "日本語", "pressure", "<b>"], k=60))
        found = json.dumps([{"id": f"c{number}", "content": words}, {"id": f"d{number}", "content": words * 9}])
        messages += [user(f"question {number}?"), *searched(found, f"s{number}")]
        await self._turn(messages, completion(None, [(f"c{number}", "cite", {"ids": [f"c{number}"]})]))
        messages += cited([f"c{number}"], call_id=f"c{number}")
        await self._turn(messages, completion(f"answer {number}"))
        messages.append(says(f"answer {number}"))

    async def _turn(self, messages: list[Any], whole: dict[str, Any]) -> None:
        stream = self._random.random() < 0.5
        raw = body(*messages, model="gpt-4o", stream=stream)
        used = Usage(self._random.randrange(5000), self._random.randrange(1000), self._random.randrange(300))
        told = {"usage": chat_usage(used.input or 0, used.cached or 0, used.output or 0)}
        self.usage.append(used)
        if stream:
            *chunks, done = events(whole)
            last = b"data: " + json.dumps({"id": "u", "choices": [], **told}).encode() + b"\n\n"
            await self._ask(raw, sse_reply([*chunks, last, done]))
        else:
            await self._ask(raw, json_reply({**whole, **told}))

    async def response(self) -> None:
        items = {"input": "hello", "model": "gpt-4o", "store": False}
        answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
        whole = {"id": "r", "status": "completed", "output": [answer], "usage": {"input_tokens": 7, "output_tokens": 2}}
        self.usage.append(Usage(7, None, 2))
        await self._ask(json.dumps(items).encode(), json_reply(whole), target="/v1/responses")

    async def off(self) -> None:
        await self._ask(body(user("title?")), self._silent(), headers=[*KEY, ("Evidence-Compaction", "off")])

    async def plain(self) -> None:
        await self._ask(body(user("hi"), model="gpt-4"), self._silent())

    async def garbage(self) -> None:
        await self._ask(b"[1, 2", json_reply({"error": {"message": "what?"}}, status=400, reason="Bad Request"))

    async def fails(self) -> None:
        await self._ask(body(user("hi")), json_reply({"error": {}}, status=429, reason="Too Many Requests"))

    async def passes(self) -> None:
        await self._ask(b"", json_reply({"data": []}), method="GET", target="/v1/models")

    def _silent(self) -> Reply:
        whole = completion("hi")
        del whole["usage"]
        return json_reply(whole)


@pytest.mark.parametrize("mode", ["on", "observe"])
async def test_metrics_totals_and_headers_agree_after_500_requests(provider: Provider, start: Start, mode: str) -> None:
    watched = await start(
        compaction={"mode": mode}, prices=[{"model": "gpt-4o", "input": 2.0, "cached_input": 1.0, "output": 8.0}]
    )
    script = Script(watched, provider, seed=8)
    await script.run(500)
    samples = await watched.scrape()
    totals = watched.lookout.tally.totals()

    told = [(raw, *header(seen)) for raw, seen in script.seen if seen.evidence]
    changed = "compacted" if mode == "on" else "observed"
    outcomes = Counter(
        (changed, "none" if mode == "on" else "observe") if "before" in figures else (outcome, figures["reason"])
        for _, outcome, figures in told
    )
    assert outcomes[changed, "none" if mode == "on" else "observe"] > 100
    assert len(outcomes) >= 5

    # Requests, by outcome and reason.
    for (outcome, reason), count in outcomes.items():
        assert total(samples, "evidence_proxy_conversation_requests_total", outcome=outcome, reason=reason) == count
    assert total(samples, "evidence_proxy_conversation_requests_total") == len(told)
    assert totals.outcomes == outcomes
    assert total(samples, "evidence_proxy_http_requests_total") == totals.requests == len(script.seen)
    assert samples["evidence_proxy_requests_in_flight"][frozenset()] == 0
    assert total(samples, "evidence_proxy_added_latency_seconds_count") == len(told)

    # Bytes, chunks and receipts: those of the headers, and those that the provider got.
    figures = [found for _, _, found in told if "before" in found]
    for stage in ("before", "after"):
        expected = sum(int(found[stage]) for found in figures)
        assert total(samples, f"evidence_proxy_conversation_{stage}_bytes_total", outcome=changed) == expected
    others = sum(len(raw) for raw, _, found in told if "before" not in found)
    assert total(samples, "evidence_proxy_conversation_after_bytes_total", outcome="untouched") == others
    change = totals.bytes if mode == "on" else totals.observed_bytes
    assert change.after - (others if mode == "on" else 0) == sum(int(found["after"]) for found in figures)
    arrived = sum(len(received.body) for received in provider.requests)
    assert arrived == (totals.bytes.after if mode == "on" else totals.bytes.after + totals.observed_bytes.before)
    for name, parameter in (("capsule_chunks", "capsule"), ("receipts", "receipts"), ("kept_returns", "kept")):
        expected = sum(int(found.get(parameter, 0)) for found in figures)
        assert total(samples, f"evidence_proxy_{name}_total", outcome=changed) == expected

    # Tokens: counted again, out of what was sent and what arrived.
    counter = TokenCounter()

    def tokens(raw: bytes) -> int:
        return counter.of((responses if b'"input"' in raw else chat).cut(raw)).total

    readable = [i for i, (raw, seen) in enumerate(script.seen) if header_of_a_read_body(seen)]
    before = sum(tokens(script.seen[i][0]) for i in readable)
    assert total(samples, "evidence_proxy_conversation_before_tokens_total") == before
    assert totals.counted == len(readable)
    assert totals.tokens.before + totals.observed_tokens.before == before
    if mode == "on":
        after = sum(tokens(provider.requests[i].body) for i in readable)
        assert total(samples, "evidence_proxy_conversation_after_tokens_total") == totals.tokens.after == after
        assert after < before
    else:
        assert totals.observed_tokens.after < totals.observed_tokens.before

    # The provider's own usage, and what it costs.
    read = sum(used.input or 0 for used in script.usage)
    kept = sum(used.cached or 0 for used in script.usage)
    wrote = sum(used.output or 0 for used in script.usage)
    assert (totals.reported, totals.input, totals.cached, totals.output) == (len(script.usage), read, kept, wrote)
    assert total(samples, "evidence_proxy_provider_input_tokens_total", model="gpt-4o") == read
    assert total(samples, "evidence_proxy_provider_cached_input_tokens_total") == kept
    assert total(samples, "evidence_proxy_provider_output_tokens_total") == wrote
    assert totals.money is not None
    capped = sum(min(used.cached or 0, used.input or 0) for used in script.usage)
    assert totals.money.spent == pytest.approx(((read - capped) * 2.0 + capped * 1.0 + wrote * 8.0) / 1e6)
    assert totals.money.spent_without_cache == pytest.approx((read * 2.0 + wrote * 8.0) / 1e6)
    saved = totals.tokens.before - totals.tokens.after
    assert totals.money.saved_without_cache == pytest.approx(saved * 2.0 / 1e6)
    assert totals.money.saved_with_cache == pytest.approx(saved * 1.0 / 1e6)
    assert totals.money.unpriced > 0  # of the models that the table does not name

    # And what the inspector shows is these totals.
    await the_inspector_agrees(watched, totals)

    settled = total(samples, "evidence_proxy_questions_settled_total")
    assert settled == total(samples, "evidence_proxy_store_rows_added_total", table="records") > 100


async def the_inspector_agrees(watched: Watched, totals: Totals) -> None:
    state = json.loads((await watched.show("/inspector/state")).body)
    assert state["requests"] == sum(totals.outcomes.values())
    assert (state["bytes"]["before"], state["bytes"]["after"]) == (totals.bytes.before, totals.bytes.after)
    assert state["usage"] == {
        "requests": totals.reported,
        "input": totals.input,
        "cached": totals.cached,
        "output": totals.output,
    }
    if totals.observed_bytes.before:
        shown, meant = state["observed"]["tokens"], totals.observed_tokens
    else:
        shown, meant = state["tokens"], totals.tokens
    assert (shown["before"], shown["after"], shown["guessed"]) == (meant.before, meant.after, totals.guessed)
    assert shown["estimated"] is (totals.guessed > 0 or totals.pictures.before + totals.observed_pictures.before > 0)
    money, meant_money = state["money"], totals.money
    assert meant_money is not None
    low, high = money["unchanged_with_cache"]
    assert low == money["spent"] + money["saved_with_cache"] == meant_money.spent + meant_money.saved_with_cache
    assert high == money["spent"] + money["saved_without_cache"]
    assert money["unchanged_without_cache"] == meant_money.spent_without_cache + meant_money.saved_without_cache
    assert (money["estimated"], money["unpriced"]) == (meant_money.estimated, meant_money.unpriced)


def header_of_a_read_body(seen: Seen) -> bool:
    return bool(seen.evidence) and not seen.evidence.endswith(("reason=off", "reason=not-json"))


async def test_a_burst_is_counted_and_looked_at_whole(provider: Provider, start: Start) -> None:
    watched = await start()
    provider.always(lambda _: json_reply({**completion("hi"), "usage": chat_usage(5, 3, 2)}))
    bodies = [body(user(f"question {n}"), *searched(f"[c{n}] " + "one " * 50), model="gpt-4o") for n in range(320)]

    for at in range(0, len(bodies), 32):
        seen = await asyncio.gather(*(ask(watched.url, raw, headers=KEY) for raw in bodies[at : at + 32]))
        assert {one.status for one in seen} == {200}
    samples, totals = await watched.scrape(), watched.lookout.tally.totals()
    rows = json.loads((await watched.show(f"/inspector/requests?most={len(bodies)}")).body)["requests"]

    tokens = sum(TokenCounter().of(chat.cut(raw)).total for raw in bodies)
    assert total(samples, "evidence_proxy_conversation_before_tokens_total") == totals.tokens.after == tokens
    assert total(samples, "evidence_proxy_tokens_uncounted_total") == 0
    assert total(samples, "evidence_proxy_requests_not_looked_at_total") == 0
    assert total(samples, "evidence_proxy_conversation_before_bytes_total") == sum(map(len, bodies))
    assert sorted(row["before"] for row in rows) == sorted(map(len, bodies))
    assert sum(row["tokens"]["before"] for row in rows) == tokens
    assert all(row["detail"] and row["conversation"] and row["usage"]["input"] == 5 for row in rows)


# What is shown, and to whom.


async def test_a_started_proxy_shows_its_metrics_without_a_token(
    provider: Provider, start_process: StartProcess
) -> None:
    running = await start_process(
        '[server]\nadmin_host = "0.0.0.0"\nadmin_token_env = "T"\n[upstream]\nbase_url = "{upstream}"\n',
        {"T": "a-token-of-these-tests"},
    )
    provider.reply(json_reply(completion("hi")))
    secret = "hunter2"
    await ask(running.url, body(user(secret)), f"/v1/chat/completions?{secret}", headers=[("api-key", secret)])
    port = (await running.line("admin-listening"))["address"].rpartition(":")[2]

    seen = await ask(f"http://127.0.0.1:{port}", method="GET", target="/metrics", host="proxy.internal")

    assert (seen.status, seen.value("content-type")) == (200, b"text/plain; version=0.0.4; charset=utf-8")
    assert b'evidence_proxy_conversation_requests_total{api="chat",outcome="untouched",reason="no-evidence"} 1.0' in (
        seen.body
    )
    assert b"hunter2" not in seen.body


async def test_requests_that_do_not_end_well_are_counted_by_how_they_ended(provider: Provider, start: Start) -> None:
    watched = await start(compaction={"strict": True})
    gate = Wait()
    provider.reply(sse_reply([*events(completion("x"))[:1], Break()]))
    client = await Client.connect(watched.url)
    await client.send(request(body=body(user("hi")), headers=KEY))
    await client.head()
    provider.reply(sse_reply([*events(completion("x"))[:1], gate]))
    other = await Client.connect(watched.url)
    await other.send(request(body=body(user("hi")), headers=KEY))
    await other.head()
    await gate.reached.wait()
    assert total(await watched.scrape(), "evidence_proxy_requests_in_flight") == 1
    other.vanish()
    await provider.requests[1].gone.wait()
    refused = await ask(watched.url, body(*SECOND), headers=KEY)
    client.close()

    assert refused.status == 422
    samples = await watched.scrape()
    assert total(samples, "evidence_proxy_http_requests_total", end="upstream-broke", status="200") == 1
    assert total(samples, "evidence_proxy_http_requests_total", end="client-gone") == 1
    assert total(samples, "evidence_proxy_conversation_requests_total", outcome="refused", reason="no-record") == 1


async def test_tags_that_do_not_fit_are_counted_by_why(provider: Provider, start: Start) -> None:
    watched = await start()
    provider.reply(json_reply(completion("hi")))
    forged = "[[evidence:v1:AAAAAAAAAAAAAAAAAAAAAA]]"
    before = sum((await watched.scrape())["evidence_proxy_tag_failures_total"].values())

    await ask(watched.url, body(user("q"), *searched(forged)), headers=KEY)

    reasons = (await watched.scrape())["evidence_proxy_tag_failures_total"]
    assert {dict(labels)["reason"] for labels in reasons} == {
        *("truncated", "signature", "malformed", "version", "picture")
    }
    assert sum(reasons.values()) >= before


# Bounded, whatever comes.


def passed(number: int, read: Conversed) -> Passed:
    """A request as unlike the others as clients and providers can make it."""
    arrived = Arrived(f"id-{number}", number, number, "POST", f"/{number}/chat/completions", "chat")
    used = Usage(number, number, number)
    told = replace(read, model=f"model-{number}", usage=used, tenant=number.to_bytes(32, "big"))
    return Passed(
        arrived=arrived,
        status=number % 1200,
        end="complete",
        took=number / 1000,
        asked=number % 1200,
        outcome="untouched; reason=no-evidence",
        added=number / 1e6,
        waited=number / 1e3,
        provider_id=f"req-{number}",
        stays=(Stay("wire", 0, number),),
        conversed=told,
    )


async def pass_by(watched: Watched, numbers: range) -> None:
    """Let all that watches hear of so many requests, and wait until it has done with them."""
    raw = body(*FIRST)
    read = Conversed(raw, raw, Untouched(Reason.NO_EVIDENCE))
    for number in numbers:
        one = passed(number, replace(read, reads=partial(transcript_of, number)))
        watched.lookout.watchers.arrived(one.arrived)
        watched.lookout.watchers.passed(one)
        if number % 200 == 199:
            await watched.lookout.idle()
    await watched.lookout.idle()
    gc.collect()


async def series_of(watched: Watched) -> int:
    return sum(map(len, (await watched.scrape()).values()))


def transcript_of(number: int) -> Transcript:
    return transcript.read(chat.cut(body(user(f"question {number} " + "word " * 20))))


async def test_what_watches_stays_bounded(start: Start) -> None:
    watched = await start()
    await pass_by(watched, range(1000))  # what is bounded by numbers of models, statuses and the like fills up
    series = await series_of(watched)
    tracemalloc.start()
    try:
        await pass_by(watched, range(1000, 2000))
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    # What still fills up is the inspector's list and the memory of counted texts: see the next.
    assert grown < 16_000_000
    assert await series_of(watched) == series < 4_000


@pytest.mark.proofs
async def test_what_watches_holds_no_more_once_all_its_memories_are_full(start: Start) -> None:
    """Past 50,000 counted texts and 5,000 listed requests; each request here has a text, and a tenant, of its own."""
    watched = await start(inspector={"content": True})
    await pass_by(watched, range(60_000))
    series, blocks, full = await series_of(watched), sys.getallocatedblocks(), resident()
    await pass_by(watched, range(60_000, 100_000))
    objects, grown = sys.getallocatedblocks() - blocks, resident() - full
    assert watched.lookout.tally.totals().counted == 100_000  # nothing was left out
    assert watched.lookout.inspector.state()["kept"] == 5000
    # One object left behind by each request would be 40,000. Resident memory has the allocator's own noise besides.
    assert objects < 1_000
    assert grown < 0.1 * full
    assert await series_of(watched) == series < 4_000


# What is written about it is true.


def documented() -> dict[str, tuple[str, set[str]]]:
    page = (ROOT / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(evidence_proxy_\w+)` \| (\w+) \|([^|]*)\|", page, re.MULTILINE)
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


async def counted(watched: Watched, provider: Provider) -> dict[str, tuple[str, set[str]]]:
    """Every metric of ours with its type and labels, as a scrape shows it after some traffic."""
    await Script(watched, provider, seed=1).run(60)
    samples = await watched.scrape()
    found: dict[str, tuple[str, set[str]]] = {}
    for family in watched.lookout.metrics.families():
        if not family.name.startswith("evidence_proxy_"):
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        series = samples.get(f"{name}_count" if family.type == "histogram" else name, {})
        found[name] = (family.type, {label for labels in series for label, _ in labels})
    return found


async def test_the_page_on_metrics_names_each_with_its_type_and_labels(provider: Provider, start: Start) -> None:
    real, page = await counted(await start(), provider), documented()
    assert page.keys() == real.keys()
    for name, (kind, labels) in real.items():
        assert page[name][0] == kind, name
        if labels:  # what the policy counts has no series before it did anything
            assert page[name][1] == labels, name


def rows_under(heading: str) -> set[str]:
    page = (ROOT / "docs" / "metrics.md").read_text()
    section = page[page.index(f"## {heading}\n") :].partition("\n## ")[0]
    return set(re.findall(r"^\| `([\w-]+)` \|", section, re.MULTILINE))


def test_the_page_on_metrics_says_what_to_do_about_each_reason() -> None:
    assert rows_under("Reasons, and what to do") == {"none", *(reason.value for reason in Reason)}


def test_the_page_on_metrics_knows_every_way_in_which_a_request_ends() -> None:
    written = (ROOT / "proxy" / "gateway" / "app.py").read_text()
    ends = {text for line in re.findall(r"\.end = (.*)", written) for text in re.findall(r'"([\w-]+)"', line)}
    assert rows_under("How requests end") == ends


def queries() -> dict[str, str]:
    """Every query of the dashboard and the alert rules, by where it stands."""
    dashboard = json.loads((GRAFANA / "evidence-proxy.json").read_text())
    found = {
        f"{panel['title']}, {target['legendFormat']}": target["expr"]
        for panel in dashboard["panels"]
        for target in panel["targets"]
    }
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            found[variable["name"]] = variable["query"]["query"]
    rules = (GRAFANA / "alerts.yml").read_text()
    for name, rest in re.findall(r"- alert: (\w+)\n(.*?)(?=\n      - alert|\Z)", rules, re.DOTALL):
        found[name] = re.split(r"\n +(?:for|labels):", rest.partition("expr:")[2])[0]
    return found


async def test_dashboard_and_alerts_ask_for_metrics_and_labels_that_are_there(provider: Provider, start: Start) -> None:
    real = await counted(await start(), provider)
    page = documented()
    asked = queries()
    assert len(asked) > 40
    names: set[str] = set()
    for place, query in asked.items():
        for series, matchers in re.findall(r"(evidence_proxy_\w+?)(?=\b(?!\w))(?:\{([^}]*)\})?", query):
            base = re.sub(r"_(bucket|sum|count)$", "", series)
            name = series if series in real else base
            assert name in real, (place, series)
            assert (series == name) or real[name][0] == "histogram", (place, series)
            names.add(name)
            labels = page[name][1] | {"instance", "job", "le"}
            for label in re.findall(r"(\w+)\s*[=!]", matchers):
                assert label in labels, (place, series, label)
        for by in re.findall(r"by \(([^)]*)\)", query):
            known = {"instance", "le"}.union(*(page[name][1] for name in names))
            assert {label.strip() for label in by.split(",")} <= known, (place, by)
    assert len(names) > 25


def test_matchers_of_dashboard_and_alerts_name_values_that_exist() -> None:
    values = {
        "outcome": rows_under("Outcomes"),
        "reason": rows_under("Reasons, and what to do") | {"truncated", "signature", "malformed", "version", "picture"},
        "end": rows_under("How requests end"),
        "api": {"chat", "responses", "none"},
    }
    for place, query in queries().items():
        for label, wanted in re.findall(r'(\w+)(?:=|!=|=~|!~)"([^"$]*)"', query):
            if label in values:
                assert set(wanted.split("|")) <= values[label], (place, label, wanted)


@needs_promtool
async def test_promtool_finds_nothing_to_say_about_the_metrics(provider: Provider, start: Start) -> None:
    watched = await start()
    await Script(watched, provider, seed=2).run(60)
    shown = (await watched.show("/metrics")).body
    assert PROMTOOL is not None
    check = (PROMTOOL, "check", "metrics")
    checking = await asyncio.create_subprocess_exec(*check, stdin=PIPE, stdout=PIPE, stderr=STDOUT)
    told, _ = await checking.communicate(shown)
    assert (checking.returncode, told) == (0, b"")


@needs_promtool
def test_promtool_finds_nothing_to_say_about_the_alert_rules(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    rules = GRAFANA / "alerts.yml"
    checked = subprocess.run([PROMTOOL, "check", "rules", rules], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr

    # They fire when they should, and not otherwise.
    names = re.findall(r"- alert: (\w+)", rules.read_text())
    cases = json.loads((Path(__file__).parent / "alerts.json").read_text())
    assert sorted({case["alert"] for case in cases}) == sorted(names)
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": series, "values": values} for series, values in case["series"].items()],
            "alert_rule_test": [
                {
                    "eval_time": case["at"],
                    "alertname": case["alert"],
                    "exp_alerts": [{"exp_labels": labels} for labels in case["fires"]],
                }
            ],
        }
        for case in cases
    ]
    # Annotations are prose, and are compared, too, unless they are left out of the rules.
    plain = re.sub(r"\n +annotations:\n(?: +(?:summary|description): [^\n]*\n?)+", "\n", rules.read_text())
    (tmp_path / "alerts.yml").write_text(plain)
    (tmp_path / "tests.yml").write_text(json.dumps({"rule_files": ["alerts.yml"], "tests": tests}))
    fired = subprocess.run([PROMTOOL, "test", "rules", tmp_path / "tests.yml"], capture_output=True, text=True)
    assert fired.returncode == 0, fired.stdout + fired.stderr
