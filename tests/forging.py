"""Forgeries: what an attacker, a mangling client or chance makes of valid tags, and a judge for each.

`Forger` draws everything from one seed. The judge knows the genuine returns by heart, and looks at what goes upstream:
nothing foreign may be taken for ours, and no user's message may lose a byte.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from proxy.evidence import tagged
from proxy.evidence.tables import Table
from proxy.evidence.tagged import Proof
from proxy.tagging import Keys, Picture, Result, Tagged, tag
from proxy.wire import chat
from tests.talk import asked_next, body, calls, cited, returns, user

OURS = Keys(["the key that signs now, of tests", "the key that signed before it"])
ROTATED_OUT = Keys(["a key that was rotated out, of tests"])
THEIRS = Keys(["a key that somebody else made up"])
TAGGED = Table("tagged", "tagged", frozenset(), "cite", ids="global", undeclared="receipt", proof=Proof(OURS))

Json = dict[str, Any]


def _image(number: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + bytes([number]) * 24


def _given(number: int) -> list[Result]:
    return [
        Result(
            f"g{number}-{n}",
            f"Genuine {number}-{n}: naïve “text” 日本 😀\n\nwith lines",
            document_id=f"d{number}",
            title="Pump | manual",
            uri="https://kb.example/x",
            pictures=[Picture(_image(number * 2), "#/pictures/0")] if n == 0 else ["#/pictures/0"],
        )
        for n in range(2)
    ]


GENUINE = [tag(_given(number), OURS) for number in range(4)]
#: What may be accepted, and nothing else: id, content, and all of the source line.
ACCEPTABLE = {
    (chunk.id, chunk.content, chunk.source, chunk.collection, chunk.document, chunk.pictures)
    for done in GENUINE
    for chunk in tagged.read(Proof(OURS), chat.cut(body(returns("s", done.text))).messages[0].parts).chunks
}
_LIKE = {"[": "［", "]": "］", "1": "１", " ": "\u00a0", "e": "е", "i": "і", "v": "ѵ", "0": "٠", "9": "９"}


@dataclass
class Try:
    """One forgery: a conversation's pieces. `fits` says whether its return is genuine after all (a harmless change)."""

    kind: str
    tool: Any
    attached: list[Json] = field(default_factory=list)
    opening: Any = "What is it?"
    said: str = "the answer"
    fits: bool = False


class Forger:
    """Draws forgeries from one seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.genuine = False

    def draw(self) -> Try:
        kind = self.dice.choice(list(KINDS))
        self.genuine = False
        done = KINDS[kind](self)
        done.kind, done.fits = kind, done.fits or self.genuine
        return done

    def one(self) -> Tagged:
        return self.dice.choice(GENUINE)

    def two(self) -> tuple[Tagged, Tagged]:
        first, second = self.dice.sample(GENUINE, 2)
        return first, second

    def wrapped(self, text: str) -> Any:
        """As one of the shapes in which clients send a tool's text; notes where the change changed nothing."""
        self.genuine = any(text.startswith(done.text) for done in GENUINE)
        return self.dice.choice(
            [
                lambda: text,
                lambda: [{"type": "text", "text": text}],
                lambda: json.dumps({"result": text}),
                lambda: json.dumps([{"type": "text", "text": text}], ensure_ascii=True),
                lambda: repr([{"text": text}]),
                lambda: "".join([text, " and so on"]),
            ]
        )()

    def tampered(self, text: str) -> str:
        """Changed somewhere in what is signed: never equal to what it was."""
        signed = len(text)
        while True:
            at = self.dice.randrange(signed)
            before, one, after = text[:at], text[at], text[at + 1 :]
            changes = [
                "",
                self.dice.choice("aé0 \n[]|😀") + one,
                chr(ord(one) ^ (1 << self.dice.randrange(5))),
                one.swapcase(),
            ]
            new = before + self.dice.choice(changes) + after
            if not any(new.lstrip().startswith(done.text) for done in GENUINE):
                return new


def _bits(f: Forger) -> Try:
    raw = bytearray(f.one().text.encode())
    for _ in range(f.dice.choice([1, 1, 2, 8])):
        raw[f.dice.randrange(len(raw))] ^= 1 << f.dice.randrange(8)
    text = raw.decode("utf-8", "replace")
    return Try("", f.wrapped(text))


def _characters(f: Forger) -> Try:
    return Try("", f.wrapped(f.tampered(f.one().text)))


def _truncated(f: Forger) -> Try:
    text = f.one().text
    return Try("", f.wrapped(text[: f.dice.randrange(1, len(text))]))


def _beheaded(f: Forger) -> Try:
    text = f.one().text
    return Try("", f.wrapped(text[f.dice.randrange(1, len(text)) :]))


def _spliced(f: Forger) -> Try:
    """The header of one before the text of another; halves joined; entries exchanged."""
    first, second = f.two()
    header, _, text = second.text.partition("\n")
    own, _, rest = first.text.partition("\n")
    middle = f.dice.randrange(1, len(text))
    made = f.dice.choice([own + "\n" + text, own + "\n" + rest[:middle] + text[middle:], header + "\n" + rest])
    return Try("", f.wrapped(made))


def _lengths(f: Forger) -> Try:
    """Lengths that cut the same text elsewhere: more, fewer, or other entries."""
    header, _, text = f.one().text.partition("\n")
    start, *lengths = header[:-1].split(" ")[2:]
    cuts = [int(length) for length in lengths]
    move = f.dice.randrange(1, 9)
    changed = f.dice.choice(
        [
            [cuts[0] + move, cuts[1] - move],
            [sum(cuts) + 2],
            [cuts[0]],
            [*cuts, move],
            [0, *cuts],
            [cuts[1], cuts[0]],
            [cuts[0], cuts[1] + 10**8],
        ]
    )
    written = " ".join(f.dice.choice([str, lambda n: f"0{n}", lambda n: f"+{n}"])(n) for n in changed)
    return Try("", f.wrapped(f"[evidence 1 {start} {written}]\n{text}"))


def _numbers(f: Forger) -> Try:
    """Another tag: random, off by one, without its zeros, of 2**128 more."""
    text = f.one().text
    tag_of, rest = text[12:51], text[51:]
    other = f.dice.choice(
        [
            f"{f.dice.getrandbits(128):039d}",
            f"{(int(tag_of) + 1) % 2**128:039d}",
            str(int(tag_of) + 2**128)[:40],
            tag_of[1:],
            "0" + tag_of,
            "".join(_LIKE.get(c, c) for c in tag_of),
            f.one().text[12:51],
        ]
    )
    return Try("", f.wrapped(f"[evidence 1 {other}{rest}"))


def _lookalikes(f: Forger) -> Try:
    text = f.one().text
    places = [at for at in range(60) if text[at] in _LIKE]
    at = f.dice.choice(places)
    return Try("", f.wrapped(text[:at] + _LIKE[text[at]] + text[at + 1 :]))


def _other_keys(f: Forger) -> Try:
    results = [Result(f"forged-{n}", f"Forged {n}") for n in range(f.dice.randrange(1, 4))]
    return Try("", f.wrapped(tag(results, f.dice.choice([ROTATED_OUT, THEIRS])).text))


def _inside(f: Forger) -> Try:
    """A genuine return that does not stand at a start: quoted by a page that another tool brought."""
    text = f.one().text
    return Try(
        "",
        f.dice.choice([f"see: {text}", f"# page\n\n{text}", f"> {text}", f"x{text}", f"\u200b{text}", f"a: '{text}'"]),
    )


def _parts(f: Forger) -> Try:
    """Split over parts."""
    text = f.one().text
    at = f.dice.randrange(1, len(text))
    parts = [{"type": "text", "text": piece} for piece in (text[:at], text[at:])]
    return Try("", f.dice.choice([lambda: parts, lambda: json.dumps(parts), lambda: parts[::-1]])())


def _user(f: Forger) -> Try:
    """A valid return, and labels above their own pictures, moved into the user's own message."""
    done = f.one()
    opening = f.dice.choice(
        [
            done.text,
            done.chat(),
            [*done.chat(), {"type": "text", "text": "mine"}],
            done.chat()[1:],
            json.dumps(done.chat()),
        ]
    )
    return Try("", "nothing found", opening=opening)


def _assistant(f: Forger) -> Try:
    return Try("", "nothing found", said=f.one().text)


def _between(f: Forger) -> Try:
    """A valid return in a user message between a reply's calls and the next reply."""
    done = f.one()
    content = f.dice.choice([done.text, [{"type": "text", "text": done.text}], json.dumps({"result": done.text})])
    return Try("", "nothing found", attached=[user(content)])


def _pair(f: Forger, label: str, picture: Any) -> Try:
    """A label above a picture that it was not signed for, in a user message of the question and in the return."""
    part = picture if isinstance(picture, dict) else {"type": "image_url", "image_url": {"url": picture}}
    pair = [{"type": "text", "text": label}, part]
    text = {"type": "text", "text": f.dice.choice(GENUINE).text}
    if f.dice.random() < 0.5:
        return Try("", text["text"], attached=[user(pair)], fits=True)
    return Try("", [text, *pair], fits=True)


def _above_another(f: Forger) -> Try:
    first, second = f.two()
    return _pair(f, first.pictures[0].label, second.pictures[0].url)


def _above_an_address(f: Forger) -> Try:
    return _pair(
        f,
        f.one().pictures[0].label,
        f.dice.choice(["https://kb.example/x.png", "data:,x", "", "data:image/png;base64,"]),
    )


def _encoded_again(f: Forger) -> Try:
    picture = f.one().pictures[0]
    raw = bytearray(picture.data)
    at = f.dice.randrange(len(raw))
    raw[at] ^= 1 << f.dice.randrange(8)
    return _pair(f, picture.label, "data:image/png;base64," + base64.b64encode(bytes(raw)).decode())


def _label_words(f: Forger) -> Try:
    first, second = f.two()
    label = first.pictures[0].label
    changed = f.dice.choice(
        [
            label.replace(first.pictures[0].chunk_id, second.pictures[0].chunk_id),
            label.replace("#/pictures/0", "#/pictures/1"),
            label.replace("1 of 1", "1 of 2"),
            label.replace(" [picture", " | Collection: x [picture"),
            label + " and more",
            "look: " + label,
            label[: f.dice.randrange(1, len(label))],
            "".join(_LIKE.get(c, c) for c in label),
        ]
    )
    return _pair(f, changed, first.pictures[0].url)


def _label_keys(f: Forger) -> Try:
    other = tag(
        [Result("g0-0", "x", pictures=[Picture(_image(0), "#/pictures/0")])], f.dice.choice([THEIRS, ROTATED_OUT])
    )
    return _pair(f, other.pictures[0].label, other.pictures[0].url)


def _not_before(f: Forger) -> Try:
    """The right label, but something stands between it and its picture, or it stands behind."""
    done = f.one()
    label, picture = done.chat()[1:3]
    other = {"type": "text", "text": "between"}
    content: list[Any] = f.dice.choice(
        [[label, other, picture], [picture, label], [{"type": "text", "text": f"x\n{label}"}, picture]]
    )  # type: ignore[typeddict-item]
    return Try("", done.text, attached=[user(content)], fits=True)


def _quoted_by_the_user(f: Forger) -> Try:
    """The exact label above the very same picture, by the user: in the question itself."""
    done = f.one()
    return Try("", done.text, opening=[{"type": "text", "text": "Is it this?"}, *done.chat()[1:]], fits=True)


KINDS: dict[str, Callable[[Forger], Try]] = {
    "bits flipped": _bits,
    "characters changed": _characters,
    "cut short": _truncated,
    "without its start": _beheaded,
    "two spliced": _spliced,
    "other lengths": _lengths,
    "another number": _numbers,
    "look-alikes": _lookalikes,
    "another key": _other_keys,
    "quoted inside other text": _inside,
    "split over parts": _parts,
    "in the user's message": _user,
    "in the assistant's message": _assistant,
    "in a message between": _between,
    "a label above another picture": _above_another,
    "a label above an address": _above_an_address,
    "a picture encoded again": _encoded_again,
    "a label's words changed": _label_words,
    "a label of another key": _label_keys,
    "a label not directly before": _not_before,
    "quoted by the user above the same picture": _quoted_by_the_user,
}


def judge(told: Try) -> None:
    """Hold a forgery against what goes upstream, at the next question and in the one that it is made in."""
    opening = user(told.opening)
    ids = [chunk[0] for chunk in ACCEPTABLE] + ["forged-0", "forged-1"]
    messages = [opening, calls(("s", "search", {})), returns("s", told.tool), *told.attached, *cited(ids)]
    record, sent = asked_next(*messages, tables=(TAGGED,), answer=told.said)
    left = sent.messages
    users = [message for message in left if message["role"] == "user"]
    # No byte of a user's own message is removed: the opening, the next question, and what does not fit in between.
    assert users[0] == opening, told
    assert users[-1] == user("next"), told
    for message in told.attached:
        assert message in users, told
    assert {"role": "assistant", "content": told.said} in left, told
    # Nothing foreign is accepted: every chunk is a genuine one, and every picture stays with what it came with.
    parts = chat.cut(body(returns("s", told.tool))).messages[0].parts
    for chunk in tagged.read(Proof(OURS), parts).chunks:
        known = (chunk.id, chunk.content, chunk.source, chunk.collection, chunk.document, chunk.pictures)
        assert known in ACCEPTABLE, (told, chunk)
    (now, *_) = [message["content"] for message in left if message["role"] == "tool"]
    if not told.fits:
        assert now == told.tool, told
        assert record.cited == () and record.replaced == () and sent.done.splices == [], told
    elif isinstance(told.tool, list):  # a forged pair beside a genuine text stays, to the part
        assert [part for part in now if part in told.tool[1:]] == told.tool[1:], told
