"""What both layouts share: which returns and picture messages are replaced, and the splices that replace them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

import msgspec

from proxy.compaction import capsule, places, wording
from proxy.compaction.capsule import Capsule, PictureAgain
from proxy.evidence.tables import Tables
from proxy.ledger import reading
from proxy.ledger.aside import NOTHING, Aside
from proxy.ledger.records import PicturePlace, Record
from proxy.ledger.transcript import Return, Transcript
from proxy.wire.messages import LabelledPicture, Picture, Splice


class Rewrite(msgspec.Struct, frozen=True):
    """What a rewrite does: its splices, and the figures that the reply header reports.

    `replaced` and `stays` are the ordinals of the returns that it accounts for; `carried` is what those of them hold
    that are no receipts.
    """

    splices: list[Splice] = []
    capsule: int = 0
    receipts: int = 0
    kept: int = 0
    missing: bool = False
    replaced: frozenset[int] = frozenset()
    stays: frozenset[int] = frozenset()
    carried: Mapping[int, Sequence[Capsule]] = {}


class Replaced:
    """The returns that go, and the messages of nothing but their pictures, which go with them.

    `decodes` says whether a picture can be sent again; `aside` has those that are not on the wire.
    """

    def __init__(
        self,
        transcript: Transcript,
        record: Record,
        ordinals: Iterable[int],
        tables: Tables,
        decodes: Callable[[Picture], bool],
        aside: Aside = NOTHING,
    ) -> None:
        known = sorted({ordinal for ordinal in ordinals if ordinal < len(transcript.returns)})
        self.returns = [transcript.returns[ordinal] for ordinal in known]
        self._tables = tables
        self._transcript = transcript
        self._decodes = decodes
        self._aside = aside
        self.ordinals = frozenset(known)
        self._attached = [a for a in record.attachments if self.ordinals.issuperset(a.returns)]
        self._users = {a.user: places.parts_that_go(transcript, a, tables) for a in self._attached}

    def comes_again(self, place: PicturePlace) -> bool:
        """Whether a picture can be sent again: it stood there and goes, or is had from elsewhere."""
        if place.ordinal < 0:
            url = self._aside.picture(place)
            return url is not None and self._decodes(Picture(url))
        if place.in_user:
            user, going = self._transcript.users[place.ordinal], self._users.get(place.ordinal, set())
            message = user if places.picture_goes(user, place.nth, going) else None
        else:
            message = self._transcript.returns[place.ordinal].message if place.ordinal in self.ordinals else None
        picture = capsule.picture_at(message, place) if message is not None else None
        return picture is not None and self._decodes(picture)

    def pictures_removed(self, of: Container[int] | None = None) -> int:
        """How many pictures go with the returns, or with these of them (by ordinal)."""
        returns = [found for found in self.returns if of is None or found.ordinal in of]
        inside = sum(places.pictures_that_go(found, reading.table(found, self._tables)) for found in returns)
        messages = {a.user for a in self._attached if of is None or all(ordinal in of for ordinal in a.returns)}
        parts = [(user, self._transcript.users[user].parts) for user in messages]
        return inside + sum(isinstance(own[index], Picture) for user, own in parts for index in self._users[user])

    def splices(self, carried: Mapping[int, Sequence[Capsule]]) -> list[Splice]:
        """A receipt in place of each return, or what it carries (by its ordinal); picture messages go."""
        splices = [
            splice
            for user, going in sorted(self._users.items())
            for splice in places.remove(self._transcript, self._transcript.users[user], going)
        ]
        for found in self.returns:
            held = carried.get(found.ordinal)
            if held:
                splices += self._carry(found, held)
            else:
                splices.append(reading.once(found, self._tables, "receipt", self._receipt))
        return splices

    def _carry(self, carrier: Return, held: Sequence[Capsule]) -> list[Splice]:
        """Capsules in the carrier's place, their pictures where this conversation's own pictures were.

        Each is behind the whole of the one before it, so that adding one keeps the bytes of those that were there.
        """
        request = self._transcript.request
        text = held[0].text
        inside: list[LabelledPicture | str] = []
        after: list[LabelledPicture] = []
        for position, one in enumerate(held):
            if position and inside:
                inside.append(one.text)
            elif position:
                text += "\n\n" + one.text
            for again in one.pictures:
                if again.place.in_user or carrier.message.only_text:
                    after.append(self._labelled(again))
                else:
                    inside.append(self._labelled(again))
        splices = [self._put(carrier, text, inside)]
        if after:
            group = next(step for step in self._transcript.replies if any(found is carrier for found in step.returns))
            last = max((found.message for found in group.returns), key=lambda message: message.index)
            splices.append(request.api.add_user_message(request, last, after))
        return splices

    def _receipt(self, found: Return, _: Tables) -> Splice:
        return self._put(found, wording.RECEIPT, ())

    def _put(self, found: Return, text: str, added: Sequence[LabelledPicture | str]) -> Splice:
        table = reading.table(found, self._tables)
        return places.replace(self._transcript, found, table, text, added)

    def _labelled(self, again: PictureAgain) -> LabelledPicture:
        place = again.place
        transcript, request = self._transcript, self._transcript.request
        if place.ordinal < 0:
            url = self._aside.picture(place)
            assert url is not None  # it was had a moment ago
            return LabelledPicture(again.label, request.api.picture_part(url))
        message = transcript.users[place.ordinal] if place.in_user else transcript.returns[place.ordinal].message
        return request.api.picture_again(request, message, place.nth, again.label)
