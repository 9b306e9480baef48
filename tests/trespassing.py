"""Attempts of one tenant at what is another's, drawn from a seed: by its conversations, ids, headers, tags and keys.

A trespasser may know all that a victim ever sent or was sent, and how the proxy works; what it does not have is the
victim's credential. Each kind of attempt, made with that credential, succeeds: that is how the judge knows its trade.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import random
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from PIL import Image

from proxy.gateway.conversation import tenant_digest
from proxy.gateway.keeping import conversation_digest, named_id
from tests.talk import calls, cited, returns, says, user

Json = dict[str, Any]
Lines = list[tuple[str | bytes, str | bytes]]

KINDS = (
    "the same conversation",
    "the same conversation, under its name",
    "a trimmed conversation, under its name",
    "a trimmed conversation, under a name like it",
    "its pictures, under its name",
    "a return that was cut short",
    "a return's tag on another text",
    "a credential like it",
    "several credentials at once",
    "the record API, by name",
    "the record API, by a shown id",
    "the record API, by a key of the store",
    "the record API, by a question's id and cursor",
    "the record API, with a credential like it",
)


def _picture(seed: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (3, 3), (seed % 251, seed // 251 % 251, 7)).save(out, "PNG")
    return out.getvalue()


def _part(data: bytes) -> Json:
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


@dataclass
class Victim:
    """A tenant with one conversation: what it sent, and what of it nobody else may ever be shown.

    `tagged` is a return that it registered; `shown` and `question` are what the record API told it.
    """

    number: int
    tagged: str = ""
    shown: str = ""
    question: str = ""
    history: list[Json] = field(default_factory=list)

    @property
    def credential(self) -> str:
        return f"Bearer sk-victim-{self.number}"

    @property
    def name(self) -> str:
        return f"conversation {self.number}"

    @property
    def secret(self) -> str:
        return f"SECRET-{self.number}-{hashlib.sha256(b'%d' % self.number).hexdigest()[:12]}"

    @property
    def title(self) -> str:
        return f"TITLE-{self.number}-{hashlib.sha256(b'title %d' % self.number).hexdigest()[:12]}"

    @property
    def picture(self) -> bytes:
        return _picture(1000 + self.number)

    @property
    def registered(self) -> Json:
        """What it registers as a tool's result."""
        content = f"{'A long introduction. ' * 30} REGISTERED-{self.secret}"
        return {"id": f"r{self.number}", "content": content, "title": self.title}

    def questions(self) -> list[list[Json]]:
        """Three questions: a text and a picture, a registered return, and nothing that was cited."""
        number = self.number
        first = json_of({"id": f"v{number}", "text": f"{self.secret} is kept", "title": self.title})
        parts = [{"type": "text", "text": first}, _part(self.picture)]
        other = [{"type": "text", "text": json_of({"id": f"w{number}", "text": "beside"})}, _part(_picture(number))]
        return [
            self._question(1, "search", parts, [f"v{number}"]),
            self._question(2, "fetch", self.tagged, [f"r{number}"]),
            self._question(3, "search", other, []),
        ]

    def _question(self, at: int, tool: str, found: Any, ids: list[str]) -> list[Json]:
        call = f"call-{self.number}-{at}"
        opened = [user(f"question {at} of {self.number}"), calls((call, tool, {})), returns(call, found)]
        return [*opened, *cited(ids, call_id=f"cite-{self.number}-{at}")]


def json_of(chunk: Json) -> str:
    """A tool's result of one chunk."""
    return json.dumps([chunk])


@dataclass(frozen=True)
class Attempt:
    """A request: to the proxy, or to the record API (`target`)."""

    kind: str
    victim: Victim
    headers: Lines
    messages: list[Json] | None = None
    target: str | None = None


class Trespasser:
    """Draws attempts at these victims. With `as_victim` each is made with the victim's credential."""

    def __init__(self, seed: int, victims: list[Victim], as_victim: bool = False, kind: str | None = None) -> None:
        self._random = random.Random(seed)
        # Of its own: what a trespasser once sent itself, it may see again.
        self._own = f"Bearer sk-trespasser-{seed}"
        self._victims = victims
        self._as_victim = as_victim
        self._kind = kind

    def draw(self) -> Attempt:
        kind = self._kind or self._random.choice(KINDS)
        victim = self._random.choice(self._victims)
        named = [("Evidence-Conversation", victim.name)]
        history = victim.history
        trimmed = history[12:]  # its last question alone: what it cited before is off the wire
        nothing: Lines = []
        drawn: dict[str, tuple[Lines, list[Json] | None, str | None]] = {
            "the same conversation": (nothing, [*history, user("?")], None),
            "the same conversation, under its name": ([*named], [*history, user("?")], None),
            "a trimmed conversation, under its name": ([*named], [*trimmed, user("?")], None),
            "a trimmed conversation, under a name like it": (
                [("Evidence-Conversation", victim.name if self._as_victim else self._like(victim.name))],
                [*trimmed, user("?")],
                None,
            ),
            "its pictures, under its name": ([*named], [*self._reworded(trimmed), user("?")], None),
            "a return that was cut short": (nothing, self._cut_short(victim), None),
            "a return's tag on another text": (nothing, self._retold(victim), None),
            "a credential like it": ([*named], [*trimmed, user("?")], None),
            "several credentials at once": ([*named], [*trimmed, user("?")], None),
            "the record API, by name": (nothing, None, self._asked(conversation=victim.name)),
            "the record API, by a shown id": (nothing, None, self._asked(conversation=victim.shown)),
            "the record API, by a key of the store": (nothing, None, self._asked(conversation=self._key(victim))),
            "the record API, by a question's id and cursor": (
                nothing,
                None,
                self._asked(conversation=victim.shown, **({} if self._as_victim else {"after": victim.question})),
            ),
            "the record API, with a credential like it": (nothing, None, self._asked(conversation=victim.name)),
        }
        headers, messages, target = drawn[kind]
        return Attempt(kind, victim, [*self._credentials(kind, victim), *headers], messages, target)

    def _credentials(self, kind: str, victim: Victim) -> Lines:
        if self._as_victim:
            return [("Authorization", victim.credential)]
        own = self._own
        if kind.endswith("credential like it"):
            name = self._random.choice(["Authorization", "api-key", "x-api-key"])
            return [(name, self._like(victim.credential))]
        if kind == "several credentials at once":
            # The first one that the settings name says who it is; the victim's digest or name in the others is nothing.
            more = [("api-key", tenant_digest(victim.credential).hex()), ("x-api-key", victim.name)]
            self._random.shuffle(more)
            return [("Authorization", own), *more, ("Evidence-Tenant", self._like(victim.credential))]
        if kind.startswith("the record API") and self._random.random() < 0.5:
            return [("Evidence-Tenant", own)]
        return [("Authorization", own)]

    def _like(self, text: str) -> str:
        """A text that looks like another one and is not it."""
        at = self._random.randrange(len(text))
        ways = [
            text.swapcase(),
            text + self._random.choice("0x;,=") + "0",
            "x" + text,
            text[:-1],
            text[:at] + text[at + 1 :] if len(text) > 1 else text + "y",
            text[:at] + chr(self._random.randrange(0x21, 0x7E)) + text[at:],
            text.replace("sk-", "sk_").replace(" ", "  ", 1),
            text.replace("e", "\u0435"),
            hashlib.sha256(text.encode()).hexdigest(),
            f"tenant {text}",
            text.removeprefix("Bearer ") + "+",
        ]
        drawn = self._random.choice(ways)
        return drawn if drawn.strip() and drawn.strip() != text else text + "?"

    def _reworded(self, messages: list[Json]) -> list[Json]:
        return [user("something else entirely"), *messages[1:]]

    def _cut_short(self, victim: Victim) -> list[Json]:
        """A question about the first characters of a return that the victim registered, answered as it would be."""
        cut = victim.tagged[: self._random.randrange(120, 300)] + "... [cut]"
        found = [calls(("t", "fetch", {})), returns("t", cut)]
        return [user("?"), *found, *cited([f"r{victim.number}"], call_id="u"), says("the answer"), user("next")]

    def _retold(self, victim: Victim) -> list[Json]:
        header, _, text = victim.tagged.partition("\n")
        told = victim.tagged[:300] if self._as_victim else f"{header}\n{text[: self._random.randrange(20, 90)]}~"
        found = [calls(("t", "fetch", {})), returns("t", told)]
        return [user("?"), *found, *cited([f"r{victim.number}"], call_id="u"), says("the answer"), user("next")]

    def _key(self, victim: Victim) -> str:
        """What a trespasser that knows the code could compute, the victim's credential aside."""
        tenant = tenant_digest(victim.credential if self._random.random() < 0.5 else self._like(victim.credential))
        if self._as_victim:
            return named_id(victim.name).hex()
        ways = [conversation_digest(tenant, named_id(victim.name)), named_id(victim.name), tenant]
        return self._random.choice(ways).hex()

    def _asked(self, **query: str) -> str:
        return "/api/questions?" + urlencode(query)
