"""The inspector's page in a real browser: it shows what the wire had, while it happens, and nothing on it comes alive.

Needs Chromium, Node, and what `make clients` installs; where these are missing the tests are skipped and say why.
Screenshots go to build/screenshots.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from proxy.demo.agent import Agent, watched_client
from proxy.demo.handbook import Handbook
from proxy.demo.provider import ScriptedProvider
from proxy.demo.script import QUESTIONS
from proxy.gateway.admin import Admin
from proxy.settings import ServerSettings
from proxy.visibility.inspector import routes
from tests.house.browser import Browser, missing
from tests.house.looking import Watched
from tests.house.provider import Provider
from tests.house.running import ProxyProcess, scratch
from tests.rewrites import cut
from tests.talk import calls, cited, returns, says, searched, user
from tests.test_inspector import FOUND, KB, NEXT, TALK, USED, Watch, answered, hear, watch, whole

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

__all__ = ["watch", "whole"]  # fixtures

CONFIG = """\
[server]
port = 0
admin_port = 0

[upstream]
base_url = "{upstream}"

[inspector]
content = true

[[evidence]]
name = "handbook"
format = "auto"
tools = ["search"]
cite = "cite"
"""
#: What stands out of the card that it is in.
BEYOND_THEIR_CARD = """[...document.querySelectorAll('.card *')]
  .filter((one) => !one.closest('.scroll, pre, .unseen, svg'))
  .filter((one) => one.getBoundingClientRect().right > one.closest('.card').getBoundingClientRect().right + 1)
  .map((one) => one.outerHTML.slice(0, 200))"""
ROWS = 'document.querySelectorAll("tbody tr").length'


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    running = await Browser().start()
    await running.open()
    yield running
    await running.stop()


async def serious_faults(browser: Browser) -> list[Any]:
    return [fault for fault in await browser.faults() if fault["impact"] in ("serious", "critical")]


async def nothing_came_alive(browser: Browser) -> None:
    assert await browser.seen() == {"errors": [], "elsewhere": [], "dialogs": 0}


def texts(raw: bytes) -> list[str]:
    """What a message of a chat completion says, part by part, and what it calls."""
    message = json.loads(raw)
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
    said = [part["text"] for part in parts if part["type"] == "text"]
    return said + [call["function"]["arguments"] for call in message.get("tool_calls") or ()]


# The demo conversation, live.


async def test_a_conversation_appears_while_it_is_held_and_the_page_says_what_the_wire_said(browser: Browser) -> None:
    provider = ScriptedProvider()
    folder = scratch()
    async with provider.listening() as upstream:
        proxy = await ProxyProcess(CONFIG.replace("{upstream}", upstream), folder).start()
        try:
            admin = (await proxy.line("admin-listening"))["address"]
            await browser.goto(admin)
            await browser.wait('#signal[data-state="live"]')
            handbook = await asyncio.to_thread(Handbook.laid_out_in, folder / "handbook")
            client, sent = watched_client(f"{proxy.url}/v1")
            came: list[bytes] = []
            async with client:
                agent = Agent(client, handbook, sent)
                for question in QUESTIONS[:5]:
                    came += [one.body for one in (await agent.ask(question.text)).requests]
                    # No reload: the rows come by themselves, each with what the wire said.
                    await browser.until(f"{ROWS} === {len(provider.received)}")
            await the_list_shows(browser, came, provider.received)
            await the_chart_shows(browser, admin, came, provider.received)
            await the_sides_show(browser, admin, len(came), came[-1], provider.received[-1])
            await every_view_is_for_everybody(browser, admin, len(came))
        finally:
            await proxy.stop()


async def the_list_shows(browser: Browser, came: list[bytes], went: list[bytes]) -> None:
    rows = await browser.evaluate("fetch('/inspector/requests?most=500').then((answer) => answer.json())")
    assert [row["before"] for row in rows["requests"]][::-1] == list(map(len, came))
    assert [row["after"] for row in rows["requests"]][::-1] == list(map(len, went))
    sizes = await browser.texts("tbody tr td.size")
    assert len(sizes) == len(came)
    assert sizes[0].replace("\u00a0", " ").startswith(f"{len(came[-1]) / 1000:.0f} kB → {len(went[-1]) / 1000:.0f} kB")
    await browser.until(f"document.querySelector('.tile .figure').innerText === '{len(came)}'")
    await browser.until("document.querySelectorAll('tbody tr td.wide.num')[0].innerText.includes('→')")  # tokens follow


async def the_chart_shows(browser: Browser, admin: str, came: list[bytes], went: list[bytes]) -> None:
    link = await browser.evaluate("document.querySelector(\"tbody a[href^='#/c/']\").getAttribute('href')")
    await browser.goto(f"{admin}/{link}")
    await browser.wait(".chart")
    for name, bodies in (("came", came), ("went", went)):
        drawn = await drawn_values(browser, f".{name}-line")
        for shown, real in zip(drawn, map(len, bodies), strict=True):
            assert abs(shown - real) < 0.01 * max(map(len, came)), (name, shown, real)
    capsules = await drawn_values(browser, ".capsule-area")
    last = cut(went[-1]).messages
    carriers = [
        len(raw) for raw, old in zip(last, cut(came[-1]).messages, strict=True) if raw != old and len(raw) > 200
    ]
    assert abs(capsules[len(came) - 1] - sum(carriers)) < 0.01 * max(map(len, came))
    cards = await browser.texts(".question-card h3")
    assert [card.split("\n")[0] for card in cards] == [f"Question {n}" for n in range(1, 6)]
    assert "grounded" in cards[0]
    await browser.picture("conversation-1440")


async def drawn_values(browser: Browser, path: str) -> list[float]:
    """The values that a line of the chart stands for, read off its pixels by the scale beside it."""
    line = await browser.evaluate(f"document.querySelector('{path}').getAttribute('d')")
    found = "[...document.querySelectorAll('.chart text[text-anchor=end]')]"
    marks = await browser.evaluate(f"{found}.map((mark) => [mark.textContent, +mark.getAttribute('y')])")
    unit = {"B": 1, "kB": 1000, "MB": 1_000_000}
    (low, y_low), (high, y_high) = (
        (float(text.split("\u00a0")[0]) * unit[text.split("\u00a0")[1]], y - 4) for text, y in (marks[0], marks[-1])
    )
    ys = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", line)]
    return [low + (high - low) * (y_low - y) / (y_low - y_high) for y in ys]


async def the_sides_show(browser: Browser, admin: str, serial: int, came: bytes, went: bytes) -> None:
    await browser.goto(f"{admin}/#/r/{serial}")
    await browser.wait(".pair")
    before, after = cut(came).messages, cut(went).messages
    changed = [index for index, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    assert changed
    for index in changed:
        for side, raw in (("first-child", before[index]), ("last-child", after[index])):
            selector = f"#message-{index} > .side:{side} pre.text"
            await browser.wait(selector)
            shown = await browser.evaluate(f"[...document.querySelectorAll('{selector}')].map((e) => e.textContent)")
            assert shown == texts(raw), index
        sizes = await browser.texts(f"#message-{index} .side-head .num")
        assert len(sizes) == 2
    assert await browser.evaluate("document.querySelectorAll('.pair').length") == len(changed)
    # What went as it came is folded, in runs of so many messages (each question has a heading of its own).
    folded = [int(text.split()[0].replace(",", "")) for text in await browser.texts("details.run > summary")]
    assert sum(folded) == len(before) - len(changed)
    assert all(
        is_open is False
        for is_open in await browser.evaluate("[...document.querySelectorAll('.run')].map((r) => r.open)")
    )
    pictures = await browser.evaluate("[...document.querySelectorAll('img.picture')].map((i) => i.getAttribute('src'))")
    shown = [
        part["image_url"]["url"] for index in changed for raw in (before[index], after[index]) for part in images(raw)
    ]
    assert sorted(pictures) == sorted(shown)
    assert pictures
    await browser.evaluate("document.querySelectorAll('img').forEach((image) => { image.loading = 'eager'; })")
    await browser.until(
        "[...document.querySelectorAll('img')].every((image) => image.complete && image.naturalWidth > 0)"
    )
    # A folded message shows what it holds when it is opened.
    await browser.click("details.run > summary")
    await browser.click("details.run .plain > summary")
    await browser.wait("details.run pre.text")
    opened = await browser.evaluate("document.querySelector('details.run pre.text').textContent")
    assert opened == texts(before[0])[0]
    # A capsule's chunks lead to the question that cited them.
    links = await browser.evaluate("[...document.querySelectorAll('.groups a')].map((a) => a.getAttribute('href'))")
    assert links
    assert all(re.fullmatch(r"#/c/[0-9a-f]+/q\d", link) for link in links)


def images(raw: bytes) -> list[dict[str, Any]]:
    content = json.loads(raw).get("content")
    return [part for part in content if part["type"] == "image_url"] if isinstance(content, list) else []


async def every_view_is_for_everybody(browser: Browser, admin: str, serial: int) -> None:
    """No serious fault of axe-core's, nothing wider than the page, in both sizes, light and dark; with screenshots."""
    rows = await browser.evaluate("fetch('/inspector/requests').then((answer) => answer.json())")
    views = {"requests": "#/", "conversation": f"#/c/{rows['requests'][0]['conversation']}", "request": f"#/r/{serial}"}
    await browser.goto(f"{admin}/#/")
    await browser.until(f"{ROWS} > 3")
    for width in (1300, 1217, 1100, 800, 705, 320):
        await browser.resize(width)
        assert await browser.evaluate(BEYOND_THEIR_CARD) == [], width
    for width, height in ((1440, 900), (390, 844)):
        for dark in (False, True):
            await browser.open(width, height, dark)
            for name, where in views.items():
                await browser.goto(f"{admin}/{where}")
                await browser.wait("h1")
                await browser.until({"requests": f"{ROWS} > 3", "conversation": "document.querySelector('.chart')"}.get(
                    name, "document.querySelectorAll('pre.text').length > 3"))  # fmt: skip
                if width > 1000 or not dark:
                    assert await serious_faults(browser) == [], (name, width, dark)
                assert await browser.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
                assert await browser.evaluate(BEYOND_THEIR_CARD) == [], (name, width)
                await browser.picture(f"{name}-{width}{'-dark' if dark else ''}")
            await nothing_came_alive(browser)


# What it all came to.


def written(value: float) -> str:
    """A sum of money below one, as the page writes it."""
    return f"{value:.2g}" if value < 0.01 else f"{value:.4f}"


async def test_what_was_spent_and_what_it_would_have_been_is_what_the_tally_says(
    whole: Watched, provider: Provider, browser: Browser
) -> None:
    await hear(whole, provider, "priced-1", *TALK[:-1], reply=answered(usage=USED))
    await hear(whole, provider, "priced-1", *NEXT, reply=answered(usage=USED))
    await hear(whole, provider, "priced-1", user("And this?"), reply=answered())
    await hear(whole, provider, "elsewhere-1", user("And that?"), reply=answered())
    totals = whole.lookout.tally.totals()
    money = totals.money
    assert money is not None and 0 < money.spent < 1
    for width, dark in ((1440, False), (390, True)):
        await browser.open(width, 900, dark)
        await browser.goto(f"{whole.admin}/#/")
        await browser.until(f"{ROWS} === 4")
        tiles = {text.split("\n")[0]: text.replace("\u00a0", " ") for text in await browser.texts(".tile")}
        paid = tiles["Money, by the price table"]
        low, high = sorted(money.unchanged_with_cache)
        assert f"{written(money.spent)} spent" in paid
        assert f"{written(low)} to {written(high)} uncompacted," in paid
        without = f"{written(money.spent_without_cache)}, uncompacted {written(money.unchanged_without_cache)}"
        assert f"without any cache {without}" in paid
        assert "1 request without usage, by our own count" in paid
        assert "1 request of models without a price" in paid
        counted = tiles["Tokens in messages"]
        assert f"≈ {totals.tokens.before} came, ≈ {totals.tokens.after} went" in counted
        assert f"{totals.bytes.before / 1000:.1f} kB came" in tiles["Request bytes"]
        used = tiles["Provider's own usage"]
        assert "200 in" in used and "128 of them from its cache (64 %)" in used and "14 out, as 2 replies" in used
        assert await serious_faults(browser) == []
        assert await browser.evaluate("document.documentElement.scrollWidth") <= width
        assert await browser.evaluate(BEYOND_THEIR_CARD) == []
        await browser.picture(f"totals-{width}{'-dark' if dark else ''}")
    await nothing_came_alive(browser)


async def test_under_observe_the_page_says_what_would_have_gone_apart_from_what_did(
    provider: Provider, browser: Browser
) -> None:
    watched = await Watched(provider.url, evidence=[KB], compaction={"mode": "observe"}).start()
    try:
        await hear(watched, provider, "gpt-4o", *TALK[:-1], reply=answered(usage=USED))
        await hear(watched, provider, "gpt-4o", *NEXT, reply=answered(usage=USED))
        totals = watched.lookout.tally.totals()
        assert totals.observed_tokens.before != totals.observed_tokens.after
        await browser.goto(watched.admin)
        await browser.until(f"{ROWS} === 2")
        tiles = {text.split("\n")[0]: text for text in await browser.texts(".tile")}
        seen = totals.observed_tokens
        assert f"{seen.before} tokens went, {seen.after} with it on" in tiles["Would have been"]
        assert f"{totals.tokens.before} came, {totals.tokens.after} went" in tiles["Tokens in messages"]
        assert not any("Money" in name for name in tiles)  # without a price table
        await nothing_came_alive(browser)
    finally:
        await watched.stop()


# Content, hidden.


async def test_without_content_the_page_shows_sizes_ids_and_digests_and_no_word(watch: Watch, browser: Browser) -> None:
    watching = await watch()
    await watching.send(*TALK[:-1])
    await watching.send(*NEXT)
    conversation = (await watching.rows())[0]["conversation"]
    for where in ("#/", f"#/c/{conversation}", "#/r/2"):
        await browser.goto(f"{watching.admin}/{where}")
        await browser.wait("h1")
        await browser.until("document.getElementById('content-state').innerText === 'content hidden'")
        assert "hunter2" not in await browser.evaluate("document.documentElement.outerHTML")
    text = await browser.evaluate("document.body.innerText")
    assert "Content is hidden" in text
    assert "c1 ← message 2" in text
    assert "Evidence: the table kb names its tool." in text
    assert len(re.findall(r"digest [0-9a-f]{12}", text)) == 2
    assert await browser.evaluate("document.querySelectorAll('pre, img').length") == 0
    await browser.picture("request-hidden-1440")
    await nothing_came_alive(browser)


# Hostile content.

EVIL = [
    "<script>window.hacked = 1; alert(1)</script>",
    "<img src=x onerror='window.hacked = 1; alert(2)'>",
    "\"><svg onload='window.hacked = 1'>",
    "</pre></section><h1>gone</h1><style>body{display:none}</style>",
    "javascript:alert(3)",
    "{{constructor.constructor('alert(4)')()}}",
    "\u202egnp.exe\u202c \u2066hidden\u2069 \u200bzero",
    "\x1b[2J\x00\x07 bell",
    "]]>--><!--",
    "half a pair \ud83d here",
]


async def test_nothing_in_a_transcript_comes_alive(watch: Watch, browser: Browser) -> None:
    watching = await watch(inspector={"content": True})
    evil = "\n".join(EVIL)
    rows = json.dumps([{"id": f"c{n}{text}"[:150], "text": evil, "title": text} for n, text in enumerate(EVIL)])
    wanted = [json.loads(rows)[n]["id"] for n in (0, 1, 2)]
    picture = [
        {"type": "text", "text": evil},
        {"type": "image_url", "image_url": {"url": "data:image/svg+xml," + EVIL[2]}},
    ]
    talk = [
        {"role": "system", "content": evil},
        user(picture),
        calls(("s", "search", {"q": evil})),
        returns("s", rows),
        *cited(wanted),
    ]
    await watching.send(*talk, model=EVIL[0])
    await watching.send(*talk, says("hunter2 answers"), user(evil), model=EVIL[1])
    row = (await watching.rows())[0]
    assert row["outcome"] == "compacted"
    for where in ("#/", f"#/c/{row['conversation']}", f"#/c/{row['conversation']}/q1", "#/r/1", "#/r/2"):
        await browser.open(dark=where == "#/r/2")
        await browser.goto(f"{watching.admin}/{where}")
        await browser.wait("h1")
        await browser.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        if "/r/" in where:
            await browser.until("document.querySelectorAll('pre.text').length >= 4")
        assert await browser.evaluate("window.hacked") is None
        assert (
            await browser.evaluate("document.querySelectorAll('script, style, img, svg svg, iframe, object').length")
            == 1
        )
        shown = await browser.evaluate("document.body.textContent")
        assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b\u0000\u0007\u001b]", shown)
        assert await browser.evaluate("getComputedStyle(document.body).display") == "block"
        await nothing_came_alive(browser)
    assert await serious_faults(browser) == []
    text = await browser.evaluate("document.body.textContent")
    assert "<script>window.hacked = 1; alert(1)</script>" in text
    assert "\\u202egnp.exe" in text
    assert await browser.evaluate("document.documentElement.scrollWidth") <= 1440
    await browser.picture("hostile-1440-dark")


async def test_a_message_of_ten_megabytes_is_shown_piece_by_piece(watch: Watch, browser: Browser) -> None:
    watching = await watch(inspector={"content": True})
    large = "<b>ten megabytes</b> " * 500_000
    await watching.send(user(large))
    await browser.goto(f"{watching.admin}/#/r/1")
    await browser.wait("details.run")
    await browser.click("details.run > summary")
    await browser.click("details.run .plain > summary")
    await browser.wait("pre.text")
    assert await browser.evaluate("document.querySelector('pre.text').textContent.length") == 100_000
    await browser.click("button.quiet")
    await browser.until("document.querySelector('pre.text').textContent.length === 200000")
    assert "200,000 of 10,500,000 characters" in await browser.evaluate("document.body.innerText")
    assert await browser.evaluate("document.querySelectorAll('pre b').length") == 0
    await nothing_came_alive(browser)


# Without a mouse.


async def test_every_view_is_reached_by_the_keyboard(watch: Watch, browser: Browser) -> None:
    watching = await watch()
    await watching.send(*TALK[:-1])
    await watching.send(*NEXT)
    await browser.goto(watching.admin)
    await browser.until(f"{ROWS} === 2")
    await browser.press("Tab")
    assert await browser.evaluate("document.activeElement.className") == "skip"
    await browser.press("Enter")
    await browser.until("document.activeElement.id === 'main'")
    for _ in range(8):
        await browser.press("Tab")
        if await browser.evaluate("document.activeElement.matches('tbody a')"):
            break
    await browser.press("Enter")
    await browser.until("location.hash === '#/r/2' && document.activeElement.tagName === 'H1'")
    assert "Request" not in await browser.evaluate("document.title")
    await browser.press("Tab")
    await browser.press("Enter")
    await browser.until("location.hash.startsWith('#/c/') && document.activeElement.tagName === 'H1'")
    await browser.until("document.title.includes('Conversation')")


async def test_new_requests_wait_while_somebody_reads_further_down(watch: Watch, browser: Browser) -> None:
    watching = await watch()
    for number in range(30):
        await watching.send(user(f"q{number}"))
    await browser.open(height=400)
    await browser.goto(watching.admin)
    await browser.until(f"{ROWS} === 30")
    await browser.evaluate("window.scrollTo(0, 1200)")
    await browser.wait('#signal[data-state="live"]')
    await watching.send(user("late"))
    await browser.until("document.querySelector('button.fresh').innerText === '1 new request'")
    assert await browser.evaluate(ROWS) == 30
    await browser.evaluate("document.querySelector('button.fresh').click()")
    await browser.until(f"{ROWS} === 31 && window.scrollY === 0")


async def test_why_no_record_fits_is_said_where_it_repeats(watch: Watch, browser: Browser) -> None:
    watching = await watch()
    await watching.send(*TALK[:-1])
    edited = [NEXT[0], NEXT[1], returns("s", FOUND.replace("Blue", "Green")), *NEXT[3:]]
    await watching.send(*edited)
    name = (await watching.rows())[0]["conversation"]
    await browser.goto(f"{watching.admin}/#/c/{name}")
    await browser.wait(".notice")
    (said,) = await browser.texts(".notice li")
    assert said == (
        "Request 2: message 2 is a tool's result that says something else than message 2 of the request before it."
    )


async def test_a_page_whose_proxy_went_away_says_so_and_comes_back_by_itself(watch: Watch, browser: Browser) -> None:
    watching = await watch()
    await watching.send(user("q"))
    await browser.goto(watching.admin)
    await browser.wait('#signal[data-state="live"]')
    await watching.room.close()
    await browser.wait('#signal[data-state="lost"]')
    await watching.send(user("q"), *searched(FOUND))

    again = Admin(ServerSettings(admin_port=int(watching.admin.rpartition(":")[2])))
    routes.register(again, watching.inspector)
    await again.start()
    try:
        await browser.wait('#signal[data-state="live"]')
        await browser.until(f"{ROWS} === 2")
    finally:
        await again.close()


async def test_what_is_no_longer_kept_says_so(watch: Watch, browser: Browser) -> None:
    watching = await watch()
    for where in ("#/r/99", "#/c/abcdef"):
        await browser.goto(f"{watching.admin}/{where}")
        await browser.until("document.body.innerText.includes('not kept')")
