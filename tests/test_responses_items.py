"""The Responses API's own shapes: items of every kind, what settles, what an answer's annotations cite, histories."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.gateway.histories import Histories
from proxy.ledger import transcript
from proxy.wire import responses
from proxy.wire.messages import Call, Message, NotJson, Picture, Reply, Role, Text
from proxy.wire.responses_reply import ResponsesReplyReader
from tests.conftest import StartHere
from tests.house.client import Seen, ask
from tests.house.provider import Provider, json_reply, sse_reply
from tests.house.responding import item, response, response_events
from tests.rewrites import CREDENTIAL

Json = dict[str, Any]

CITED = [{"name": "kb", "format": "auto", "tools": ["search", "file_search"], "cite": "cite"}]
INLINE = [{"name": "kb", "format": "auto", "tools": ["search", "file_search"], "cite": "inline"}]


def cut(*items: Any, **beside: Any) -> tuple[Message, ...]:
    return responses.cut(json.dumps({"model": "m", "input": list(items), **beside}).encode()).messages


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def call(call_id: str, name: str = "search", arguments: Any = None) -> Json:
    written = json.dumps(arguments or {})
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": written}


def output(call_id: str, value: Any) -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": value}


def found(*chunks: tuple[str, str], **beside: Any) -> str:
    return json.dumps([{"id": chunk_id, "text": text, **beside} for chunk_id, text in chunks])


def says(text: str, *annotations: Json, **beside: Any) -> Json:
    (message,) = response(text, annotations=annotations)["output"]
    return {**message, **beside}


def file_search(*results: tuple[str, str, str], **beside: Any) -> Json:
    shown = [
        {"file_id": file_id, "filename": name, "score": 0.5, "text": text, "attributes": {}}
        for file_id, name, text in results
    ]
    return item("file_search_call", "1", status="completed", queries=["q"], results=shown, **beside)


# Items.


def test_items_of_every_kind_are_read_as_who_speaks_in_them() -> None:
    kinds = {
        Role.USER: [user("x"), {"type": "message", "role": "user", "content": []}, {"type": None, **user("x")}],
        Role.SYSTEM: [{"role": "developer", "content": "x"}, {"type": "message", "role": "system", "content": "x"}],
        Role.ASSISTANT: [
            {"role": "assistant", "content": "x", "id": None},
            says("x"),
            call("1"),
            {"type": "custom_tool_call", "call_id": "1", "name": "n", "input": "free"},
            {"type": "computer_call", "call_id": "1"},
            {"type": "mcp_approval_request", "id": "1", "name": "search", "arguments": "{}"},
            {"type": "a_new_call", "call_id": "1"},
            {"type": "item_reference", "id": "msg_1"},
            {"id": "fc_1"},
        ],
        Role.TOOL: [output("1", "x"), output("1", None), {"type": "custom_tool_call_output", "call_id": "1"}],
        Role.OTHER: [
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
            {"type": "item_reference", "id": "rs_1"},
            {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"},
            {"type": "web_search_call", "id": "ws_1", "status": "completed"},
            {"type": "code_interpreter_call", "id": "ci_1", "code": "1", "outputs": []},
            {"type": "mcp_call", "id": "mcp_1", "name": "search", "arguments": "{}", "output": "[]"},
            {"type": "mcp_list_tools", "id": "mcpl_1", "tools": []},
            {"type": "image_generation_call", "id": "ig_1", "result": "AAAA"},
            {"type": "file_search_call", "id": "fs_1", "queries": [], "results": None},
            {"type": "something_new", "content": "x"},
            {"role": "critic", "content": "x"},
        ],
    }
    for role, items in kinds.items():
        for value in items:
            (message,) = cut(value)
            assert message.role is role, value


def test_an_approval_is_no_call_of_the_tool_that_it_names() -> None:
    (message,) = cut({"type": "mcp_approval_request", "id": "a", "name": "search", "arguments": "{}"})
    assert message.calls == (Call("a", "mcp_approval_request", "{}"),)


def test_outputs_hold_text_pictures_and_files() -> None:
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"},
        {"type": "input_image", "file_id": "file_1"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "AA=="},
    ]
    (message,) = cut(output("1", parts))
    assert message.parts[:2] == (Text("a"), Picture("data:image/png;base64,AA==", "auto"))
    assert [part.value for part in message.parts[2:]] == parts[2:]  # type: ignore[union-attr]


def test_a_string_is_the_users_message_and_null_is_nothing() -> None:
    request = responses.cut(b'{"input": "one \\u00e9"}')
    assert [(m.role, m.text()) for m in request.messages] == [(Role.USER, "one é")]
    nulls = b'{"input":[],"previous_response_id":null,"conversation":null,"store":null,"background":null}'
    request = responses.cut(nulls)
    assert (request.history, request.in_conversation, request.stored, request.in_background) == (
        None,
        False,
        True,
        False,
    )
    request = responses.cut(b'{"conversation": {"id": "conv_1"}, "input": null, "store": false}')
    assert (request.history, request.in_conversation, request.stored) == ("conv_1", True, False)
    assert responses.cut(b'{"prompt": {"id": "pmpt_1"}}').messages == ()
    for odd in (b"{}", b'{"input": 1}', b'{"input": null}', b'{"input": ["x"]}', b"[]", b'{"input": "\xff"}'):
        with pytest.raises(NotJson):
            responses.cut(odd)


# Settling.


def read(whole: Json, stream: bool = False, broken: bool = False) -> Reply | None:
    reader = ResponsesReplyReader()
    pieces = response_events(whole) if stream else [json.dumps(whole).encode()]
    for piece in pieces[:-1] if broken else pieces:
        reader.feed(piece)
    reader.close(complete=not broken)
    replies = reader.replies()
    return replies[0] if replies else None


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_completed_answer_settles_and_nothing_else_does(stream: bool) -> None:
    thought = item("reasoning", "1", summary=[])
    answered = read(response("Yes.", before=[thought]), stream)
    assert answered is not None and (answered.text, answered.finish) == ("Yes.", "stop")
    called = read(response("I will look.", [("1", "search", {})]), stream)
    assert called is not None and called.finish == "tool_calls"
    unknown = read({**response("Yes."), "output": [says("Yes."), {"type": "new_call", "id": "1"}]}, stream)
    assert unknown is not None and unknown.finish == "tool_calls"  # a call that may be the client's
    for silent in ([thought], [says("I will look.", phase="commentary")], []):
        reply = read({**response("x"), "output": silent}, stream)
        assert reply is not None and reply.finish is None
    for status in ("incomplete", "failed", "cancelled", "queued", "in_progress"):
        assert read(response("Yes.", status=status), stream) is None
    assert read(response("Yes."), stream, broken=True) is None


def test_a_stream_whose_last_event_leaves_the_items_out_is_read_from_the_others() -> None:
    whole = response("Yes.", [("1", "search", {"q": 1})])
    pieces = response_events(whole)
    reader = ResponsesReplyReader()
    for piece in pieces[:-1]:
        reader.feed(piece)
    reader.feed(b'data: {"type":"response.completed","response":{"id":"resp_1","usage":null}}\n\n')
    assert reader.replies() == [Reply("Yes.", (Call("1", "search", '{"q": 1}'),), "tool_calls")]


# Whole questions, over a socket.


class Talk:
    """One client: what it sends grows by what came back."""

    def __init__(self, url: str, provider: Provider) -> None:
        self._url = url
        self._provider = provider
        self.items: list[Json] = []
        self.sent: list[Json] = []

    async def ask(self, text: str | None, *said: Json, outputs: tuple[Json, ...] = (), stream: bool = False) -> Seen:
        """A request that is answered with these items, which the client keeps, with the outputs of its own tools."""
        if text is not None:
            self.items.append(user(text))
        body = {"model": "m", "input": self.items, "stream": stream}
        whole = {**response("x"), "output": list(said)}
        self._provider.reply(sse_reply(response_events(whole)) if stream else json_reply(whole))
        seen = await ask(self._url, body, "/v1/responses", headers=[CREDENTIAL])
        self.sent = self._provider.requests[-1].json()["input"]
        self.items = [*self.items, *said, *outputs]
        return seen


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_promise_5_file_search_results_are_evidence_where_a_table_names_the_tool(
    start_here: StartHere, provider: Provider, stream: bool
) -> None:
    proxy = await start_here(evidence=INLINE)
    talk = Talk(proxy.url, provider)
    thought = item("reasoning", "1", summary=[], encrypted_content="gAAA")
    search = file_search(("file-a", "pump.pdf", "It runs at 3 bar."), ("file-b", "valve.pdf", "It opens at 5 bar."))
    cites = {"type": "file_citation", "index": 3, "file_id": "file-a", "filename": "pump.pdf"}
    await talk.ask("One?", thought, search, says("At 3 bar.", cites), stream=stream)
    seen = await talk.ask("Two?", file_search(("file-c", "seal.pdf", "Two years.")), says("It does."), stream=stream)
    assert seen.evidence.startswith("compacted; question=2; capsule=1; receipts=0;")
    # Only its results changed: it keeps its place behind the reasoning, and its other fields.
    assert [value for value in talk.sent if value.get("type") != "file_search_call"] == [
        user("One?"), thought, says("At 3 bar.", cites), user("Two?")
    ]  # fmt: skip
    (carrier,) = [value for value in talk.sent if value.get("type") == "file_search_call"]
    assert {**carrier, "results": None} == {**search, "results": None}
    (result,) = carrier["results"]
    assert '[file-a] Source: "pump.pdf"\nIt runs at 3 bar.' in result["text"] and "file-b" not in result["text"]
    seen = await talk.ask("Three?", says("No."), stream=stream)  # nothing cited: under `keep` it stays
    assert seen.evidence.startswith("compacted; question=3; capsule=1; receipts=0; kept=1;")


async def test_a_client_that_leaves_the_file_search_out_still_finds_the_record_of_the_rest(
    start_here: StartHere, provider: Provider
) -> None:
    proxy = await start_here(evidence=CITED)
    talk = Talk(proxy.url, provider)
    await talk.ask("One?", call("s"), outputs=(output("s", found(("a", "Alpha."), ("b", "Beta."))),))
    await talk.ask(None, call("c", "cite", {"ids": ["a"]}), outputs=(output("c", "ok"),))
    await talk.ask(None, file_search(("file-a", "pump.pdf", "It runs.")), says("Alpha."))
    talk.items = [value for value in talk.items if value.get("type") != "file_search_call"]
    seen = await talk.ask("Two?", says("Yes."))
    assert seen.evidence.startswith("compacted; question=2; capsule=1; receipts=0;")


async def test_promise_6_pictures_beside_a_file_search_that_carries_go_into_a_user_item(
    start_here: StartHere, provider: Provider
) -> None:
    proxy = await start_here(evidence=CITED)
    talk = Talk(proxy.url, provider)
    picture = {"type": "input_image", "image_url": _PNG}
    shown = [{"type": "input_text", "text": found(("a", "Alpha."))}, picture]
    await talk.ask("One?", call("s"), outputs=(output("s", shown),))
    search = file_search(("file-a", "pump.pdf", "It runs."))
    await talk.ask(None, search, call("c", "cite", {"ids": ["a", "file-a"]}), outputs=(output("c", "ok"),))
    await talk.ask(None, says("Alpha."))
    seen = await talk.ask("Two?", says("Yes."))
    assert seen.evidence.startswith("compacted; question=2; capsule=2; receipts=1;")
    kinds = [value.get("type", value.get("role")) for value in talk.sent]
    carrier = kinds.index("file_search_call")
    assert kinds[carrier + 1] == "user" and talk.sent[carrier + 1]["content"][1] == picture
    assert json.dumps(talk.sent).count(_PNG) == 1


@pytest.mark.parametrize(
    "annotation",
    [
        {"type": "url_citation", "url": "https://kb.example/a?utm_source=openai", "title": "A", "start_index": 0},
        {"type": "url_citation", "url": "https://kb.example/a#part"},
        {"type": "file_citation", "file_id": "a", "filename": "other", "index": 1},
        {"type": "file_citation", "file_id": "file-1", "filename": "a", "index": 1},
        {"type": "container_file_citation", "container_id": "c", "file_id": "cf-1", "filename": "a"},
    ],
    ids=["url", "fragment", "file-id", "filename", "container"],
)
async def test_promise_8_annotations_of_an_answer_cite_where_citing_is_inline(
    start_here: StartHere, provider: Provider, annotation: Json
) -> None:
    proxy = await start_here(evidence=INLINE)
    talk = Talk(proxy.url, provider)
    results = json.loads(found(("a", "Alpha."), ("b", "Beta.")))
    for result in results:
        result["url"] = f"https://kb.example/{result['id']}"
    await talk.ask("One?", call("s"), outputs=(output("s", json.dumps(results)),))
    await talk.ask(None, says("Alpha it is.", annotation))
    seen = await talk.ask("Two?", says("Yes."))
    assert seen.evidence.startswith("compacted; question=2; capsule=1; receipts=0;")
    assert "Alpha." in json.dumps(talk.sent) and "Beta." not in json.dumps(talk.sent)


async def test_promise_3_annotations_of_nothing_that_was_retrieved_declare_nothing(
    start_here: StartHere, provider: Provider
) -> None:
    proxy = await start_here(evidence=INLINE)
    talk = Talk(proxy.url, provider)
    await talk.ask("One?", call("s"), outputs=(output("s", found(("a", "Alpha."))),))
    await talk.ask(None, says("Yes.", {"type": "url_citation", "url": "https://elsewhere.example/"}, {"type": "new"}))
    seen = await talk.ask("Two?", says("Yes."))
    assert seen.evidence == "untouched; reason=no-citations"


async def test_promises_1_and_4_what_is_not_ours_stays_in_its_place(start_here: StartHere, provider: Provider) -> None:
    """Reasoning, the provider's own tools, compactions and items of the future, around and inside a reply."""
    proxy = await start_here(evidence=CITED)
    talk = Talk(proxy.url, provider)
    talk.items = [
        {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"},
        {"type": "something_new", "n": 1.50, "deep": [{"type": "function_call"}]},
    ]
    before = [
        item("reasoning", "1", summary=[], encrypted_content="gAAA"),
        item("web_search_call", "1", status="completed", action={"type": "search", "query": "q"}),
        item("mcp_call", "1", name="search", arguments="{}", output=found(("m", "Mcp.")), server_label="s"),
    ]
    await talk.ask(
        "One?", *before, call("s"), says("Looking.", phase="commentary"), outputs=(output("s", found(("a", "Alpha."))),)
    )
    await talk.ask(
        None, item("reasoning", "2", summary=[]), call("c", "cite", {"ids": ["a"]}), outputs=(output("c", "ok"),)
    )
    await talk.ask(None, item("reasoning", "3", summary=[]), says("Alpha."))
    came = [*talk.items, user("Two?")]
    seen = await talk.ask("Two?", says("Yes."))
    assert seen.evidence.startswith("compacted; question=2; capsule=1;")
    changed = [index for index, (was, went) in enumerate(zip(came, talk.sent, strict=True)) if was != went]
    assert [came[index] for index in changed] == [output("s", found(("a", "Alpha.")))]


async def test_the_answer_of_a_provider_that_ran_a_shell_of_its_own_settles(
    start_here: StartHere, provider: Provider
) -> None:
    proxy = await start_here(evidence=CITED)
    talk = Talk(proxy.url, provider)
    await talk.ask("One?", call("s"), outputs=(output("s", found(("a", "Alpha."))),))
    await talk.ask(None, call("c", "cite", {"ids": ["a"]}), outputs=(output("c", "ok"),))
    hosted = [
        {"type": "shell_call", "id": "sh_1", "call_id": "h", "action": {"commands": ["ls"]}, "status": "completed"},
        {"type": "shell_call_output", "id": "sho_1", "call_id": "h", "output": [{"stdout": "x"}]},
    ]
    await talk.ask(None, *hosted, says("Alpha."))
    seen = await talk.ask("Two?", says("Yes."))
    assert seen.evidence.startswith("compacted; question=2; capsule=1;")


async def test_strict_mode_names_the_member_of_this_api(start_here: StartHere, provider: Provider) -> None:
    proxy = await start_here(evidence=CITED, compaction={"strict": True})
    talk = Talk(proxy.url, provider)
    talk.items = [user("One?"), call("s"), output("s", found(("a", "Alpha."))), says("Alpha.")]
    body = {"model": "m", "input": [*talk.items, user("Two?")]}
    seen = await ask(proxy.url, body, "/v1/responses", headers=[CREDENTIAL])
    assert seen.status == 422
    assert (seen.json()["error"]["code"], seen.json()["error"]["param"]) == ("no-record", "input")
    assert provider.requests == []


# Histories.


def kept(histories: Histories, name: str, size: int = 10) -> transcript.Transcript:
    shown = transcript.read(responses.cut(json.dumps({"input": [user("x" * size)]}).encode()))
    histories.keep(b"anna", [name], shown, Reply("yes", (), "stop"))
    return shown


def test_remembered_histories_are_bounded_in_memory() -> None:
    histories = Histories(most_bytes=100_000, most_bytes_of_one=20_000)
    for number in range(50):
        kept(histories, f"resp_{number}", 5_000)
        assert histories.size <= 100_000
    kept(histories, "resp_large", 30_000)

    def known(name: str) -> bool:
        request = responses.cut(json.dumps({"previous_response_id": name, "input": "next"}).encode())
        return histories.before(b"anna", request)[1]

    assert [known(f"resp_{number}") for number in (0, 30, 49)] == [False, False, True]
    assert not known("resp_large")
    for _ in range(50):  # one name again and again takes no more
        kept(histories, "resp_49", 5_000)
    assert known("resp_48")


def test_promise_9_a_history_is_its_tenants_own() -> None:
    histories = Histories()
    kept(histories, "resp_1")
    request = responses.cut(b'{"previous_response_id": "resp_1", "input": "next"}')
    assert len(histories.before(b"anna", request)[0].messages) == 3
    assert histories.before(b"berta", request) == (request, False)
    assert histories.before(None, request) == (request, False)


async def test_a_reply_that_is_not_stored_is_not_remembered(start_here: StartHere, provider: Provider) -> None:
    proxy = await start_here(evidence=CITED)
    for stored in (True, False):
        provider.reply(json_reply(response("Yes.", identity=f"resp_{stored}")))
        await ask(proxy.url, {"input": "One?", "store": stored}, "/v1/responses", headers=[CREDENTIAL])
    assert proxy.gateway._serving.conversations._histories.size > 0  # type: ignore[attr-defined]
    reader = responses.reader(responses.cut(b'{"input": "One?", "store": false}'))
    reader.feed(json.dumps(response("Yes.")).encode())
    reader.close(True)
    assert reader.continued_by() == ()


_PNG = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mPgYmAAAAAiAAswjz+HAAAAAElFTkSuQmCC"
)
