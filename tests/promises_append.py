"""The promises in layout `append`, judged on the bytes, request by request: `promises` with what differs.

Several returns may carry something, and each keeps what it held: from one question to the next the forwarded body keeps
its bytes up to the last question's first evidence return.
"""

from __future__ import annotations

import re

from proxy.compaction.wording import ADDED_LATER, APPENDED, RECEIPT
from proxy.gateway.conversation import Exchange
from tests.conversations import UNDECODABLE, History, Player, Voice
from tests.promises import (
    Broken,
    Cut,
    Truth,
    Verdict,
    _elsewhere,
    _fates_kept,
    _is_user,
    _nothing_foreign,
    _only_ours,
    _same_but_content,
    _stable,
    cut,
    parts_of,
    pictures_in,
    texts_of,
    transcript,
    truth_of,
)

_STILL_ABOVE = "Still above: "


async def judge(player: Player, voice: Voice, history: History, body: bytes, exchange: Exchange) -> None:
    """Check every promise on one request; raises Broken with the transcript."""
    try:
        verdict = _judge(player, voice, history, body, exchange)
        _stable(player, voice, history, body, exchange, verdict)
        _grows(player, voice, history, body, exchange)
        await _elsewhere(player, voice, history, body, exchange)
    except Broken:
        raise
    except Exception as error:
        raise Broken(f"{error!r}\n\n{transcript(player, history, body, exchange)}") from error


def _judge(player: Player, voice: Voice, history: History, body: bytes, exchange: Exchange) -> Verdict:
    came, went = cut(body), cut(exchange.body)
    truth = truth_of(history, player.setup, player.closed)
    verdict, again = align(came, went, history)
    _only_ours(player, history, truth, verdict, came, went)
    _framed(verdict)
    _nothing_lost(player, truth, verdict, came, went)
    _pictures(player, history, truth, verdict, again, came, went)
    _nothing_foreign(came, went)
    _figures(player, truth, verdict, body, exchange)
    if not player.harmed and not voice.pen.drops_text:
        _fates_kept(truth, verdict, exchange)
    return verdict


def _is_ours_again(raw: str) -> bool:
    """Whether a message holds nothing but pictures with our own labels."""
    if not _is_user(raw):
        return False
    parts = parts_of(raw)
    return bool(parts) and parts[0][0] == "text" and parts[0][1].startswith("Picture of cited evidence [")


def align(came: Cut, went: Cut, history: History) -> tuple[Verdict, list[str]]:
    """Promises 1 and 4, and the messages of pictures that were put in."""
    verdict = Verdict()
    again: list[str] = []
    at = 0
    for index, raw in enumerate(came.messages):
        there = went.messages[at] if at < len(went.messages) else ""
        if there != raw and there and _is_ours_again(there):
            again.append(there)
            at += 1
            there = went.messages[at] if at < len(went.messages) else ""
        message = history[index]
        if there == raw:
            verdict.same.add(index)
            at += 1
        elif message.role == "tool" and there:
            _same_but_content(raw, there)
            verdict.replaced[index] = there
            at += 1
        else:
            assert message.ours, f"message {index} went up changed: {raw[:200]} => {there[:200]}"
            verdict.removed.add(index)
    assert at == len(went.messages), "messages were added at the end"
    assert (came.head, came.tail) == (went.head, went.tail), "the rest of the body changed"
    if not verdict.removed and not again:
        assert came.between == went.between, "what stands between messages changed"
    return verdict, again


def _text(raw: str) -> str:
    return "\n\n".join(
        text for kind, text in parts_of(raw) if kind == "text" and not text.startswith("Picture of cited evidence [")
    )


def _framed(verdict: Verdict) -> None:
    """Promise 5, as far as it goes here: a replaced return is a receipt, or what its question and later ones cited."""
    for index, raw in verdict.replaced.items():
        text = _text(raw)
        assert text.startswith((RECEIPT, APPENDED)), f"message {index} is neither a receipt nor a capsule"
        if text.startswith(RECEIPT) and text != RECEIPT:
            assert text.removeprefix(RECEIPT).startswith((f"\n\n{_STILL_ABOVE}", f"\n\n{ADDED_LATER}")), text[:200]


def _holds_chunks(raw: str) -> bool:
    text = _text(raw)
    return text.startswith(APPENDED) or f"\n\n{ADDED_LATER}\n\n[" in text


_ENDS = re.compile(rf"\s*?(?:\Z|\n\n(?:\[|{re.escape(_STILL_ABOVE)}))")


def _nothing_lost(player: Player, truth: Truth, verdict: Verdict, came: Cut, went: Cut) -> None:
    """Promise 3, and of 8: whole, exact, once per content, under its id."""
    if not verdict.replaced:
        return
    forwarded = [text for raw in went.messages for text in texts_of(raw)]
    ours = [_text(raw) for raw in verdict.replaced.values()]
    for entry in truth.cited.values():
        if entry.far and (player.harmed or truth.interrupted or entry.docs[0].id.isdigit()):
            continue
        for doc in entry.docs:
            if not any(doc.content in text for text in forwarded):
                stood = any(doc.content in text for raw in came.messages for text in texts_of(raw))
                assert not stood, f"promise 3: [{doc.id}] was cited, and its content is gone: {doc.content!r}"
            written = [text for text in ours if f"[{doc.id}]" in text and doc.content in text]
            if not (doc.whole or player.harmed or player.incomplete or truth.interrupted):
                entries = [entry for text in written for entry in _entries(text, doc.id, doc.content)]
                assert len(entries) == len(set(entries)), f"promise 8: [{doc.id}] is written twice: {entries}"
            for text in written:
                at = text.find(doc.content)
                assert text[:at].endswith("\n"), f"promise 8: [{doc.id}] does not begin where it began"
                ending = text[at + len(doc.content) :]
                # The same words may have been shown with white space behind them, too.
                assert _ENDS.match(ending), f"promise 8: [{doc.id}] does not end where it ended: {ending[:60]!r}"


def _entries(text: str, chunk_id: str, content: str) -> list[str]:
    """The entries of this chunk with this content, without their first line, which names it."""
    found = []
    for entry in text.split("\n\n["):
        head, _, rest = entry.partition("\n")
        if head.lstrip("[").startswith(f"{chunk_id}]") and content in rest:
            found.append(rest)
    return found


def _pictures(
    player: Player, history: History, truth: Truth, verdict: Verdict, again: list[str], came: Cut, went: Cut
) -> None:
    """Promise 6: labels and pictures pair up, their number never grows, and a cited picture comes again once."""
    if not verdict.replaced and not verdict.removed:
        return
    before, after = pictures_in(came.messages), pictures_in(went.messages)
    assert len(after) <= len(before), f"promise 6: {len(before)} pictures came, {len(after)} went"
    assert set(after) <= set(before), "promise 6: a picture that nobody sent"
    for raw in (*verdict.replaced.values(), *again):
        parts = parts_of(raw)
        for position, (kind, url) in enumerate(parts):
            if kind != "picture":
                continue
            label = parts[position - 1][1] if position else ""
            assert label.startswith("Picture of cited evidence ["), f"promise 6: unpaired: {parts}"
            assert url not in UNDECODABLE, f"promise 6: a picture that does not decode was sent again: {label}"
            owners = [d for m in history for d in (*m.docs, *m.ours) if d.picture == url and f"[{d.id}]" in label]
            assert owners, f"promise 6: this label does not name the picture's chunk: {label}"
        labels = sum(kind == "text" and text.startswith("Picture of cited evidence [") for kind, text in parts)
        assert labels == sum(kind == "picture" for kind, _ in parts), f"promise 6: unpaired: {parts}"
    gone = [history[index] for index in (*verdict.replaced, *verdict.removed)]
    for entry in truth.cited.values():
        for doc in entry.docs:
            held = [m for m in gone if doc in m.docs or doc in m.ours]
            if not doc.picture or doc.picture in UNDECODABLE or not held or not all(m.readable for m in history):
                continue
            if any(("picture", doc.picture) in parts_of(m.raw) for m in held):
                assert doc.picture in after, f"promise 8: the picture of cited [{doc.id}] is gone"


def _figures(player: Player, truth: Truth, verdict: Verdict, body: bytes, exchange: Exchange) -> None:
    """The reply header agrees with the bytes: `capsule` counts the chunks of all returns that hold some."""
    if exchange.header.startswith("untouched"):
        assert exchange.body is body, "untouched means the very object"
        return
    figures = {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", exchange.header)}
    assert (figures["before"], figures["after"]) == (len(body), len(exchange.body)), exchange.header
    holding = sum(_holds_chunks(raw) for raw in verdict.replaced.values())
    assert figures["receipts"] == len(verdict.replaced) - holding, exchange.header
    assert figures["capsule"] >= holding and (figures["capsule"] > 0) == (holding > 0), exchange.header


def _grows(player: Player, voice: Voice, history: History, body: bytes, exchange: Exchange) -> None:
    """From one question to the next the bytes stay, up to the last question's first evidence return.

    But for a question that adds to a carrier before it (the one rewrite that is allowed), and where records were lost.
    """
    if player.harmed or voice.names_questions or voice.pen.drops_text or f"{ADDED_LATER}\\n".encode() in exchange.body:
        return
    truth = truth_of(history, player.setup, player.closed)
    if truth.interrupted or truth.earliest != truth.current or not exchange.header.startswith("compacted"):
        return
    for sent in reversed(player.sent):
        size = len(sent.history)
        if sent.tenant != voice.tenant or not 0 < size < len(history) or history[:size] != sent.history:
            continue
        then = truth_of(sent.history, player.setup, player.closed)
        if then.interrupted or then.earliest != then.current or then.questions != truth.questions - 1:
            return
        if not (sent.header.startswith("compacted") or "nothing-earlier" in sent.header):
            return
        first = next((at for at in range(then.current, size) if history[at].table), size)
        whole = cut(sent.forwarded)
        after = len(whole.messages) - (size - first)
        kept = whole.head + "".join(
            text + gap for text, gap in zip(whole.messages[:after], (*whole.between, ""), strict=False)
        )
        assert exchange.body.startswith(kept.encode("utf-8", "surrogatepass")), (
            f"the bytes before message {first} changed from one question to the next ({sent.header} before)"
        )
        return
