"""The corpus of the demo: a handbook for the upkeep of a small lighthouse, and how it is searched.

Only the passages and their search may live here. The handbook was written for this demo; the lighthouse is made up.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import lancedb


@dataclass(frozen=True)
class Passage:
    """One citable piece of the handbook. `picture` says that the passage comes with a drawing."""

    id: str
    title: str
    text: str
    picture: bool = False

    @property
    def url(self) -> str:
        """Where the passage stands in the handbook."""
        return f"handbook/{self.id.rpartition('-')[0]}.html#{self.id}"


PASSAGES = (
    Passage(
        "lens-1",
        "Lens: the weekly cleaning",
        "Clean the lens every Monday, in daylight and with the drive stopped. Dust it first with the badger-hair "
        "brush, from the top prism down, so that grit is lifted and not rubbed in. Then wipe each prism with the "
        "washed linen cloth, dampened with spirit of wine and rain water in equal parts, and dry it with chamois "
        "before going on to the next. Never use paper, wool or anything with ammonia: all three scratch or cloud "
        "the old glass. Wear the apron without buttons, and take off rings and watches, for most chips on this lens "
        "were made by the people who cleaned it. A full cleaning takes about two hours.",
    ),
    Passage(
        "lens-2",
        "Lens: names of the panels",
        "The optic is of the third order and has three bull's-eye panels, named A, B and C by the brass letters on "
        "the frame. Each panel is a bull's-eye in the middle with eleven prisms around it: the inner six bend the "
        "light, the outer five bend it and throw it back once. The drawing shows one panel with its rings numbered "
        "from the middle. When you report a chip, give the panel's letter, the ring's number, and the place as on a "
        "clock face, for example B, ring 7, four o'clock. Panel B carries an old repair in ring 9 that is stable "
        "and needs nothing.",
        picture=True,
    ),
    Passage(
        "lens-3",
        "Lens: putty and frame",
        "The prisms are bedded in litharge putty, which shrinks with age. Press the handle of a wooden spoon "
        "lightly against each prism twice a year: one that ticks is loose. Up to two loose prisms in a panel may be "
        "held with cork wedges until the spring visit; with three or more, stop the drive, show the fixed emergency "
        "light and call the district. New putty needs nine days before it carries weight, so bedding is summer "
        "work. The brass frame is polished with whiting only, because liquid polish creeps into the putty and "
        "dissolves it.",
    ),
    Passage(
        "lens-4",
        "Lens: curtains and the sun",
        "The lens burns as well in as out. From sunrise to sunset the linen curtains of the lantern room must be "
        "drawn on the sunny side, or the panels will focus the sun on the lamp changer and scorch its wiring; this "
        "has happened twice. When the drive is stopped for cleaning, draw all the curtains before you brake it. "
        "Curtains are washed in May, without starch, and rehung the same day. Keep the spare set dry in the chest "
        "on the second landing, folded in the paper that it came in.",
    ),
    Passage(
        "drive-1",
        "Drive: how the lens turns",
        "The lens turns once in sixty seconds and shows three white flashes, one every twenty seconds. It rests on "
        "a ring of twenty-four steel rollers and is turned by a twelve-volt motor through a worm and a fibre wheel. "
        "A second motor stands ready on the other side; change over on the first of every month, so that both are "
        "known to work. The worm runs in an oil bath. The fibre wheel is meant to break before anything else does, "
        "and two spares hang behind the door of the watch room.",
    ),
    Passage(
        "drive-2",
        "Drive: when the rotation slows",
        "Time ten full turns with the stopwatch every Sunday. Ten turns take 600 seconds; up to 606 is fair wear. "
        "If the rotation has slowed beyond that, check the rollers first: cold, thick grease on the roller path is "
        "the cause four times out of five. Wipe the path with paraffin and grease it with a film of the thin winter "
        "grease. Only then look at the motor's brushes, which are changed when shorter than eight millimetres, and "
        "last at the voltage under load, which must not fall below 11.8. A light that turns slowly shows the wrong "
        "character, so tell the district when ten turns take longer than 620 seconds.",
    ),
    Passage(
        "drive-3",
        "Drive: stopping and starting",
        "To stop the lens, cut the motor, let it run out, and only then set the wooden brake; a hard stop has "
        "cracked the fibre wheel before. To start, take off the brake, push the lens by hand through a quarter turn "
        "in its own direction, clockwise seen from above, and then switch on. If it does not go round freely by "
        "hand, do not start the motor: look for a cloth or a tool left on the roller path. Two people are needed "
        "for any work under the lens, one of them at the switch.",
    ),
    Passage(
        "lamp-1",
        "Lamp: the changer",
        "The lamp changer holds four lamps of 250 watts on a turret. When one fails, the next swings into the focus "
        "within three seconds and a bell rings in the watch room. Replace the failed lamp the next morning, never "
        "in the dark. Handle lamps with the cotton gloves: a finger's grease on the quartz shortens its life to a "
        "tenth. The focus is right when the image of the filament falls on the red mark inside the north window; "
        "adjust the height with the knurled ring, a quarter turn at a time.",
    ),
    Passage(
        "lamp-2",
        "Lamp: the emergency light",
        "The emergency light is a fixed white lantern on the gallery rail, seen for six miles. It comes on by "
        "itself when the main light has been dark for thirty seconds after dusk. Test it every Friday by covering "
        "the photocell with the felt cap for one minute. It runs on its own battery for fourteen hours. If the "
        "emergency light has shown for a whole night, the district sends out a notice to mariners, so ring before "
        "eight in the morning and say why.",
    ),
    Passage(
        "paint-1",
        "Paint: preparing the masonry",
        "The tower is rendered brick and takes mineral paint, nothing else: oil paint traps the damp and comes off "
        "in sheets within two winters. Brush down loose paint with the nylon brush, wash off salt with rain water "
        "twice, and let the wall dry for three days of wind. Fill cracks wider than a finger nail with lime mortar, "
        "not cement, and wet the wall before filling. Work from the gallery down on the shaded side. Paint only "
        "between eight and twenty-two degrees, and never when fog is forecast for the night.",
    ),
    Passage(
        "paint-2",
        "Paint: the day mark",
        "By day the tower is known by its bands: white at the foot, red in the middle, white under the gallery, "
        "with a black lantern. The drawing gives the heights of the bands in metres. The edges are struck with a "
        "chalk line from the iron pins left in the wall. Red fades first on the south-west side; hold the colour "
        "card against it in June, and repaint the band when it is paler than step three. A day mark that has faded "
        "is as wrong as a light that is out, and is reported in the same way.",
        picture=True,
    ),
    Passage(
        "paint-3",
        "Paint: railings and ironwork",
        "The gallery railing and all ironwork outside get four coats: two of red zinc primer on bright metal, one "
        "of micaceous undercoat, one of black gloss. Leave a day between the coats, and rub down the undercoat with "
        "wet paper. Chip rust back to bright metal with the small hammer, and treat what is left in the pits with "
        "tannic acid overnight. Do the railing in four lengths, one at a time, with the harness clipped to the ring "
        "bolts in the wall and never to the railing itself. The whole railing takes five dry days and three litres "
        "of gloss.",
    ),
    Passage(
        "paint-4",
        "Paint: store and waste",
        "Paint is kept in the stone shed, on the shelf above the line of the 1953 flood, with the lids down and the "
        "month written on them. Primer keeps for two years, gloss for four, mineral paint for one. Rags with "
        "linseed oil on them go into the water bucket and not into the bin: they heat up by themselves. Brushes are "
        "cleaned in the same three jars of spirit, used in order. Nothing is poured down the rock; what is left "
        "over goes back with the supply boat in the yellow drum.",
    ),
    Passage(
        "fog-1",
        "Fog signal: when it sounds",
        "The fog signal is an electric horn heard for three miles. The detector starts it when visibility falls "
        "below two miles and stops it fifteen minutes after it has risen again. It can be started by hand from the "
        "watch room when the detector is blind, which happens when its window is salted: wipe the window with fresh "
        "water every second day in winter. Write the start and the stop in the log with the visibility that you saw "
        "yourself, for the detector's own record is kept for only a month.",
    ),
    Passage(
        "fog-2",
        "Fog signal: the weekly test",
        "The fog signal is tested every Wednesday at noon, for four full cycles. The character is two blasts every "
        "thirty seconds, as in the drawing: two seconds of sound, two of silence, two of sound, twenty-four of "
        "silence. Time it with the stopwatch from the start of the first blast. A blast that is off by more than "
        "half a second, or that wavers, means a tired driver: change to the second one and send the first ashore. "
        "Ring the harbour before the test, and wear the ear defenders, even indoors with the windows shut.",
        picture=True,
    ),
    Passage(
        "fog-3",
        "Fog signal: horn and ice",
        "Ice in the horn's mouth changes its note and can tear the membrane. Below minus two degrees the heater "
        "ring must be on, and the green lamp beside the switch must be lit; the lamp alone proves nothing, so put a "
        "hand on the flange. Clear the mouth with warm water, never with a scraper. In October the membrane is "
        "looked at with a lamp from the side, where cracks show as bright lines. A membrane lasts about nine years, "
        "and the present one was fitted when the mast was raised.",
    ),
    Passage(
        "power-1",
        "Power: the panels",
        "Twelve solar panels stand on the south terrace in three rows of four. Gulls are the chief trouble: wash "
        "the panels every second week from April to September with a soft brush and rain water, early, while the "
        "glass is cool. A row that gives less than four fifths of its neighbours has a dirty or a broken panel; "
        "cover the panels one by one to find it. The bolts are checked after any wind above force nine, and the "
        "wires under the panels for the teeth of rabbits.",
    ),
    Passage(
        "power-2",
        "Power: how long the batteries last",
        "A full bank of batteries carries the light, the drive and the fog signal for five days without any sun, "
        "and the light and the drive alone for eleven. The bank is full at 27.2 volts at rest and must not go below "
        "23.6. At 24.4 the horn's heater is cut off by itself; at 24.0 start the diesel, run it for six hours, and "
        "do not wait for better weather. Batteries lose a tenth of what they hold when their room is below five "
        "degrees, so keep its vents half shut from November on, but never fully shut, because charging gives off "
        "gas.",
    ),
    Passage(
        "power-3",
        "Power: the diesel",
        "The diesel is run for half an hour on the first Tuesday of each month under load, whether it is needed or "
        "not. Check oil and water before, and the belt after. It burns 1.4 litres an hour; the day tank holds forty "
        "and the main tank six hundred, filled by the supply boat in May. Drain the water trap until clean fuel "
        "comes. If it does not start within ten seconds, wait for a minute; after three tries, look at the fuel "
        "cock, which has been the cause more often than everything else together.",
    ),
    Passage(
        "log-1",
        "Log: what is written down",
        "Write the log in ink, at eight in the morning and at eight in the evening: wind, sea, visibility, "
        "barometer, the voltage at rest, the time of ten turns on Sundays, and all that was cleaned, changed or "
        "found. Write down what you saw and not what you suppose. A wrong line is struck out once so that it stays "
        "readable, and is never erased. Each page ends with a signature. Full books go ashore in January, and a "
        "copy stays on the second landing.",
    ),
    Passage(
        "log-2",
        "Log: the spring visit",
        "The district's spring visit is in the first calm week of May and lasts two days. Have ready: the log since "
        "the last visit, the list of chips and loose prisms by panel and ring, the times of ten turns as a curve, "
        "the battery voltages at rest, and the list of stores. On the first day the lens is lifted off its rollers "
        "by a hand's width and the roller path is looked at; on the second day the tower is walked from the "
        "outside. Ask for parts in writing at least three weeks before, because the supply boat calls only once "
        "before the visit.",
    ),
    Passage(
        "landing-1",
        "Landing: the boat and the crane",
        "The landing faces east and can be used with a swell of up to one metre and wind from any quarter but the "
        "north-east. Two people are on the steps, in life jackets, before the boat comes inside the rock. The crane "
        "lifts 200 kilograms and not one more; its wire is greased in April and changed every sixth year. Weed on "
        "the steps is scraped off before every landing and limed in spring. When the signal arm on the terrace is "
        "down, the landing is closed, whatever the skipper thinks.",
    ),
    Passage(
        "landing-2",
        "Landing: the stores list",
        "Stores are ordered by list, six weeks ahead. Always on the island: lamps, eight; fibre wheels, two; motor "
        "brushes, four pairs; linen cloths, twelve; spirit of wine, five litres; winter grease, two tins; lime, "
        "three bags; zinc primer and black gloss, three litres each; a horn's membrane; drinking water for twenty "
        "days and food for thirty. Count on the last day of each month, and write the count and not the order into "
        "the log.",
    ),
    Passage(
        "rounds-1",
        "Rounds: the day of a keeper",
        "At sunrise draw the curtains and see that the light has gone out by itself. At eight: log, weather call, "
        "walk round the terrace. In the morning the work of the weekday: Monday the lens, Tuesday the diesel and "
        "tools, Wednesday the fog signal, Thursday the ironwork, Friday the emergency light, Saturday the house, "
        "Sunday the ten turns. In the afternoon whatever the season asks for. An hour before sunset open the "
        "curtains, look at the lamp changer, and be in the lantern room when the light comes on.",
    ),
)

BY_ID = {passage.id: passage for passage in PASSAGES}


class Handbook:
    """The passages in a LanceDB table of their own, searched by their words (BM25)."""

    def __init__(self, table: lancedb.table.Table) -> None:
        self._table = table

    @classmethod
    def laid_out_in(cls, folder: Path) -> Handbook:
        """Write the passages into a LanceDB database under `folder`, index their words, and return the handbook."""
        # Here and not at the top: the import costs two seconds, in which the demo already says what it is about to do.
        import lancedb
        from lancedb.index import FTS

        rows = [{"id": p.id, "words": f"{p.title}\n{p.text}"} for p in PASSAGES]
        table = lancedb.connect(folder).create_table("handbook", rows)
        table.create_index("words", config=FTS())
        return cls(table)

    def search(self, query: str, limit: int = 6) -> list[Passage]:
        """The passages that fit the words of `query` best, the best one first."""
        hits = self._table.search(query, query_type="fts").limit(limit).to_list()
        return [BY_ID[hit["id"]] for hit in hits]
