"""A chat in the terminal (textual): the conversation on the left, what was cited and what was saved on the right.

python examples/terminal_chat.py
"""

from __future__ import annotations

from typing import ClassVar

from conversation import Cited, Conversation, Said, Searched, Sent
from textual import work
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Footer, Header, Input, Markdown, Static

WIDTH = 24


class Chat(App[None]):
    """Ask below; every request adds a line of two bars: as it was sent, and as the provider got it."""

    TITLE = "The keeper's handbook, through Evidence Proxy"
    CSS = """
    #talk { width: 2fr; padding: 0 1; }
    #facts { width: 42; border-left: solid $primary; padding: 0 1; }
    .question { color: $accent; margin-top: 1; }
    .found { color: $text-muted; }
    """
    AUTO_FOCUS = "Input"
    BINDINGS: ClassVar[list[BindingType]] = [("ctrl+q", "quit", "Quit")]

    def __init__(self) -> None:
        super().__init__()
        self.conversation = Conversation()
        self.sent: list[Sent] = []
        self.cited: list[str] = []

    def compose(self) -> ComposeResult:
        yield Header()
        with Horizontal():
            yield VerticalScroll(id="talk")
            yield VerticalScroll(Static(id="saved"), Static(id="cited"), id="facts")
        yield Input(placeholder="Ask the handbook, for example: How do I clean the lens?")
        yield Footer()

    def on_input_submitted(self, submitted: Input.Submitted) -> None:
        if submitted.value.strip():
            self.answer(submitted.value.strip())
            submitted.input.value = ""
            submitted.input.disabled = True  # one question at a time

    @work
    async def answer(self, question: str) -> None:
        talk = self.query_one("#talk", VerticalScroll)
        await talk.mount(Static(question, classes="question", markup=False))
        text, shown = "", Markdown()
        async for event in self.conversation.ask(question):
            if isinstance(event, Searched):
                found = f"searched: {event.query}\nfound: {', '.join(event.ids)}"
                await talk.mount(Static(found, classes="found", markup=False))
            elif isinstance(event, Said):
                if not text:
                    await talk.mount(shown)
                text += event.text
                await shown.update(text)
            elif isinstance(event, Cited):
                self.cited.append(", ".join(event.ids) or "nothing")
            elif isinstance(event, Sent):
                self.sent.append(event)
            self.tell()
            talk.scroll_end(animate=False)
        asking = self.query_one(Input)
        asking.disabled = False
        asking.focus()

    def tell(self) -> None:
        most = max((one.before for one in self.sent), default=1)
        lines = []
        for one in self.sent[-12:]:
            before, after = (max(1, round(WIDTH * size / most)) for size in (one.before, one.after))
            lines += [f"{'░' * before} {one.before:,}", f"{'█' * after} {one.after:,}"]
        saved = sum(one.before - one.after for one in self.sent)
        self.query_one("#saved", Static).update("\n".join([f"saved so far: {saved:,} bytes", *lines, ""]))
        cited = [f"{n}. {ids}" for n, ids in enumerate(self.cited, 1)]
        self.query_one("#cited", Static).update("\n".join(["cited, question by question:", *cited]))


if __name__ == "__main__":
    Chat().run()
