"""Pictures: their bytes, whether they decode, whose they are, and that none comes back alone. Promise 6."""

from __future__ import annotations

import base64
import io
import random
import struct
import zlib
from itertools import pairwise
from typing import Any

import PIL.EpsImagePlugin
import pytest
from PIL import Image

from proxy.evidence.haiku import PICTURE_TAG
from proxy.evidence.pictures import (
    _is_sound_png,
    decodes,
    picture_bytes,
    picture_digest,
    read_attachment,
)
from proxy.wire import chat
from tests.talk import AUTO, HAIKU, asked_next, body, cited, grows_gently, rewritten, says, searched, settled, user


def url(raw: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(raw).decode()}"


def png(color: int = 0, side: int = 2) -> bytes:
    out = io.BytesIO()
    Image.new("L", (side, side), color).save(out, "PNG")
    return out.getvalue()


def picture(color: int = 0, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(png(color))}, **more}


def text(content: str) -> dict[str, str]:
    return {"type": "text", "text": content}


def bomb() -> bytes:
    """A PNG that says it has ten thousand million pixels."""
    head = (100_000).to_bytes(4, "big") * 2 + b"\x08\x00\x00\x00\x00"
    chunk = b"IHDR" + head
    return b"\x89PNG\r\n\x1a\n" + (13).to_bytes(4, "big") + chunk + zlib.crc32(chunk).to_bytes(4, "big")


@pytest.mark.parametrize(
    "spelled", ["data:image/png;base64,AA\nAA", "data:image/jpeg;base64, AAAA", "DATA:;BASE64,AAAA"]
)
def test_a_picture_is_its_decoded_bytes(spelled: str) -> None:
    assert picture_digest(spelled) == picture_digest("data:image/png;base64,AAAA")


def test_an_address_is_itself() -> None:
    assert picture_digest("https://x/a.png") != picture_digest("https://x/b.png") and decodes("https://x/a.png")


@pytest.mark.parametrize(
    "spelled",
    ["data:image/png,AAAA", "data:image/png;base64,A", "data:image/png;base64,漢", "data:", "data:;base64",
     "https://x/a.png", "data:image/png;base64,\ud800", "data:image/png;base64,A\x00AA"],
)  # fmt: skip
def test_what_is_not_base64_has_no_bytes_and_stands_for_itself(spelled: str) -> None:
    assert picture_bytes(spelled) is None and len(picture_digest(spelled)) == 16


BROKEN = {
    "text": b"hello", "nothing": b"", "cut": png(side=64)[:50], "bomb": bomb(), "svg": b"<svg/>", "nul": b"\x00" * 99,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN.keys())
def test_promise_6_what_does_not_decode_is_not_sent_again(raw: bytes) -> None:
    assert not decodes(url(raw))


def test_a_picture_decodes() -> None:
    assert decodes(url(png()))


def saved(mode: str, dice: random.Random, **options: Any) -> bytes:
    out = io.BytesIO()
    shape = (dice.randint(1, 40), dice.randint(1, 40))
    Image.effect_noise(shape, 90).convert(mode).save(out, "PNG", **options)
    return out.getvalue()


MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


def chunks(raw: bytes) -> list[tuple[bytes, bytes]]:
    found, at = [], 8
    while at < len(raw):
        size, kind = struct.unpack_from(">I4s", raw, at)
        found.append((kind, raw[at + 8 : at + 8 + size]))
        at += 12 + size
    return found


def joined(parts: list[tuple[bytes, bytes]]) -> bytes:
    framed = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


def damaged(raw: bytes, dice: random.Random) -> bytes:
    """The same with something wrong or odd: bytes, chunks, or pixels whose checksums fit all the same."""
    parts = chunks(raw)
    which = dice.randrange(len(parts))
    kind, data = parts[which]
    match dice.randrange(7):
        case 0:
            at = dice.randrange(len(raw))
            return raw[:at] + bytes([raw[at] ^ (1 << dice.randrange(8))]) + raw[at + 1 :]
        case 1:
            return raw[: dice.randrange(len(raw))] + dice.choice((b"", raw[-12:]))
        case 2 if data:
            at = dice.randrange(len(data))
            parts[which] = (kind, data[:at] + dice.randbytes(1) + data[at + 1 :])
        case 3:
            parts.insert(dice.randrange(len(parts) + 1), dice.choice(parts))
        case 4:
            del parts[which]
        case 5:
            pixels = zlib.decompress(b"".join(data for kind, data in parts if kind == b"IDAT"))
            changed = bytearray(pixels + dice.randbytes(dice.randrange(2)))
            changed[dice.randrange(len(changed))] = dice.randrange(256)
            at = next(at for at, (kind, _) in enumerate(parts) if kind == b"IDAT")
            parts[at] = (b"IDAT", zlib.compress(bytes(changed)))
        case _:
            parts.insert(dice.randrange(len(parts)), (dice.choice((b"tEXt", b"pHYs", b"PLTE", b"tRNS")), data[:9]))
    return joined(parts)


@pytest.mark.parametrize("mode", MODES)
def test_a_plain_png_that_is_whole_is_known_without_making_an_image(mode: str) -> None:
    dice = random.Random(mode)
    assert all(_is_sound_png(saved(mode, dice, compress_level=level)) for level in (0, 1, 9))


@pytest.mark.parametrize("mode", MODES)
def test_what_is_known_for_a_whole_png_is_one_that_pillow_reads(mode: str) -> None:
    dice = random.Random(mode)
    taken = 0
    for _ in range(100):
        raw = damaged(saved(mode, dice), dice)
        if _is_sound_png(raw):
            taken += 1
            with Image.open(io.BytesIO(raw), formats=("PNG",)) as image:
                image.load()
    assert taken  # some changes do no harm


def test_no_program_is_started_for_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(PIL.EpsImagePlugin, "Ghostscript", lambda *_, **__: started.append(1) or Image.new("L", (1, 1)))
    decodes(url(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"))
    assert not started


@pytest.mark.parametrize("unit", [";a", "a", ";base64", ";", "\n"])
def test_reading_a_data_url_costs_by_the_byte(unit: str) -> None:
    assert grows_gently(lambda n: lambda: picture_bytes("data:" + unit * n), 20_000)


def seen(content: list[dict[str, Any]]) -> list[Any]:
    """The pictures that still go up after chunk c1 was cited out of this return, and the text before each."""
    _, sent = asked_next(user("q"), *searched(content), *cited(["c1"]))
    parts = sent.returns[0] if isinstance(sent.returns[0], list) else []
    return [(before["text"], part) for before, part in pairwise(parts) if part["type"] == "image_url"]


def test_promise_6_a_cited_picture_comes_again_to_the_byte_behind_a_label() -> None:
    ((label, part),) = seen([text("[c1] one"), picture(7, detail="high")])
    assert part == picture(7, detail="high") and "[c1]" in label


def test_promise_6_pictures_of_chunks_that_nobody_cited_go_with_their_return() -> None:
    assert seen([text("[c0] none"), picture(1), text("[c1] one"), picture(2)])[0][1] == picture(2)
    assert len(seen([text("[c0] none"), picture(1), text("[c1] one")])) == 0


def test_promise_6_one_picture_that_two_chunks_cite_comes_once() -> None:
    content = [text("[c1] one\n[c2] two"), picture(1), text("again"), picture(1)]
    _, sent = asked_next(user("q"), *searched(content), *cited(["c1", "c2"]))
    assert sent.raw.count(b"image_url") // 2 == 1


def test_promise_6_a_picture_that_does_not_decode_is_sent_with_neither_label_nor_picture() -> None:
    messages = [user("q"), *searched([text("[c1] one"), picture(1)]), *cited(["c1"])]
    sent = rewritten(*messages, says("a"), user("next"), record=settled(*messages), decodes=lambda _: False)
    assert len(sent.returns[0]) == 1 and "Picture" not in sent.returns[0][0]["text"]


def test_a_cache_hint_is_not_multiplied() -> None:
    content = [text("[c1] one"), picture(1, cache_control={"type": "ephemeral"})]
    assert asked_next(user("q"), *searched(content), *cited(["c1"]))[1].raw.count(b"cache_control") == 1


# Pictures in a user message.

LABEL = f"[c1] (#/pictures/0). Not provided by the user. {PICTURE_TAG}"
RETURN = "[c1] [rank 1 of 1]\nContent:\none"


def attached(*parts: dict[str, Any], tables: Any = (HAIKU,), ids: list[str] | None = None) -> list[Any]:
    """The user messages that go up, where these parts follow the search."""
    messages = [user("q"), *searched(RETURN), user(list(parts)), *cited(ids if ids is not None else [])]
    return [m["content"] for m in asked_next(*messages, tables=tables)[1].messages if m["role"] == "user"]


def test_an_attachment_that_nobody_cited_goes_with_its_return() -> None:
    assert attached(text(LABEL), picture()) == ["q", "next"]


def test_promise_6_a_cited_attachment_comes_again_after_the_carriers_group() -> None:
    (_, again, _) = attached(text(LABEL), picture(3), ids=["c1"])
    assert again[1] == picture(3) and "#/pictures/0" in again[0]["text"]


@pytest.mark.parametrize(
    "parts",
    [[text(LABEL), picture(), text("mine")], [picture()], [text("mine"), picture()], [text(LABEL)],
     [text(LABEL.replace("c1", "c9")), picture()], [text(LABEL + " "), picture()], [picture(), text(LABEL)]],
)  # fmt: skip
def test_promise_1_a_user_message_that_holds_anything_else_is_the_users_own(parts: list[dict[str, Any]]) -> None:
    assert parts in attached(*parts)


def test_promise_1_the_message_that_opens_a_question_is_the_users_own_whatever_it_quotes() -> None:
    quoted = user([text(LABEL), picture()])
    messages = [user("q"), *searched(RETURN), *cited([])]
    record = settled(*messages, tables=(HAIKU,))
    assert quoted in rewritten(*messages, says("a"), quoted, record=record, tables=(HAIKU,)).messages
    more = settled(*messages, says("a"), quoted, says("b"), user("c"), tables=(HAIKU,), before=record, from_reply=3)
    assert more.attachments == ()


def test_promise_1_without_haiku_evidence_no_user_message_is_ours() -> None:
    assert len(attached(text(LABEL), picture(), tables=(AUTO,))) == 3


def test_read_attachment_wants_pairs_and_nothing_else() -> None:
    (message,) = chat.cut(body(user([text(LABEL), picture()]))).messages
    assert [pair.label.reference for pair in read_attachment(message) or ()] == ["#/pictures/0"]
