"""The script: what is asked, what the provider searches for, cites and answers. Data only.

Each answer rests on a sentence of the handbook, named here by its passage. The provider says it only if that sentence
stands in the request in front of it, so an answer proves that the evidence was there.
"""

from __future__ import annotations

from dataclasses import dataclass

SYSTEM = (
    "You look after the light. Answer from the handbook: call search, then cite the ids of the passages that your "
    "answer rests on (an empty list if none does), then answer in one or two sentences."
)


@dataclass(frozen=True)
class Question:
    """One question of the script.

    `searches` holds, for each reply that searches, the queries it asks at once. `rests_on` maps the id of a cited
    passage to words of it that the answer repeats.
    """

    text: str
    searches: tuple[tuple[str, ...], ...]
    rests_on: dict[str, str]
    answer: str

    @property
    def cites(self) -> list[str]:
        """The ids that the provider cites."""
        return list(self.rests_on)


QUESTIONS = (
    Question(
        "How do I clean the lens, and what must never touch it?",
        (("clean the lens cloth", "names of the lens panels and rings"),),
        {"lens-1": "Never use paper, wool or anything with ammonia", "lens-2": "the panel's letter, the ring's number"},
        "Brush first, then damp linen, then chamois. {lens-1}. Report a chip by {lens-2} and the clock.",
    ),
    Question(
        "The rotation has slowed a little. What do I check first?",
        (("rotation slowed rollers motor",),),
        {"drive-2": "check the rollers first"},
        "Time ten turns; above 606 seconds, {drive-2}: cold grease is the usual cause.",
    ),
    Question(
        "How many coats does the gallery railing get?",
        (("paint coats for the railing",), ("preparing ironwork rust primer",)),
        {"paint-3": "two of red zinc primer on bright metal, one of micaceous undercoat, one of black gloss"},
        "Four coats: {paint-3}.",
    ),
    Question(
        "What is the password of the wireless network on the island?",
        (("password wireless network island",),),
        {},
        "The handbook does not say; nothing that I found grounds an answer.",
    ),
    Question(
        "How do I test the fog signal, and what should it sound like?",
        (("weekly test of the fog signal", "fog signal horn character blasts"),),
        {"fog-2": "two seconds of sound, two of silence, two of sound, twenty-four of silence"},
        "On Wednesdays at noon, four cycles: {fog-2}.",
    ),
    Question(
        "How long do the batteries carry us without sun?",
        (("batteries last without sun",),),
        {"power-2": "for five days without any sun"},
        "A full bank carries everything {power-2}; start the diesel at 24.0 volts.",
    ),
    Question(
        "Back to the lens: what was it that must never touch the glass?",
        # No search: the provider reads the capsule, where the passage stands since the first question cited it.
        (),
        {"lens-1": "Never use paper, wool or anything with ammonia"},
        "As I said: {lens-1}.",
    ),
    Question(
        "What do I get ready for the spring visit?",
        (("spring visit of the district get ready",), ("landing the boat crane in spring", "stores list")),
        {"log-2": "the list of chips and loose prisms by panel and ring", "landing-2": "Stores are ordered by list"},
        "The log, {log-2}, the curve of ten turns, the voltages. {landing-2}, six weeks ahead.",
    ),
)
