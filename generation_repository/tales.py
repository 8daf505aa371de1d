"""Little tales, and a checker of them: what `narrator` is trained on, and what its texts are judged by.

A tale goes by a plot: a row of steps, each with several sentences to choose from. A sentence has slots. What a slot was
filled with first holds for the whole tale: the hero keeps the name, the fox stays a fox, what was lost is what is
found, and pronouns go by names. So a tale that a network writes holds together if it can be read by the same plots.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from random import Random
from typing import NamedTuple

SHE = ["Mira", "Lena", "Nora", "Ida", "Greta", "Rosa", "Olga", "Vera", "Clara", "Bella", "Tessa", "Molly"]
HE = ["Bruno", "Otto", "Felix", "Emil", "Hugo", "Leo", "Anton", "Karl", "Max", "Victor", "Sam", "Theo"]

THINGS = {
    "lantern": "shone like a little star at night",
    "kite": "danced in the wind",
    "drum": "could be heard on the other side of the valley",
    "flute": "sounded like a bird in spring",
    "ball": "jumped higher than the roof",
    "hat": "kept the rain away",
    "bell": "rang as clear as water",
    "mirror": "caught the light of the sun",
    "compass": "always knew the way",
    "blanket": "was as soft as moss",
    "boat of wood": "floated on every pond",
    "scarf": "was as warm as a stove",
}
"""Each with what is said of it."""

WEATHER = {
    "rain": ("the path was deep in mud", "stopped"),
    "snow": ("the path was white and could not be seen", "melted"),
    "storm": ("a tree had fallen across the path", "had gone by"),
    "fog": ("the path could not be seen any more", "lifted"),
}
"""Each with what it does to a path, and how it ends."""

WORKS = {
    "raft": ("logs", "float down the river"),
    "swing": ("ropes", "fly as high as the birds"),
    "sledge": ("boards", "ride down the hill"),
    "bridge": ("stones", "cross the stream with dry feet"),
    "hut": ("branches", "sit and listen to the rain"),
}
"""What can be built, of what, and for what."""

_KINDS = [
    "fox", "hare", "bear", "mouse", "badger", "hedgehog", "cat", "frog",
    "duck", "goat", "squirrel", "beaver", "rabbit", "mole", "raven", "goose",
]  # fmt: skip

WORDS: Mapping[str, Sequence[str]] = {
    "hero": [*SHE, *HE],
    "friend": [*SHE, *HE],
    "kind": _KINDS,
    "fkind": _KINDS,
    "trait": [
        "kind",
        "brave",
        "clever",
        "shy",
        "careful",
        "cheerful",
        "gentle",
        "lively",
        "quiet",
        "proud",
        "curious",
        "lonely",
    ],
    "size": ["small", "tiny", "red", "blue", "crooked", "warm", "round", "narrow"],
    "home": [
        "by the river",
        "at the edge of the forest",
        "behind the old mill",
        "on a green hill",
        "near the harbour",
        "under a tall oak",
        "at the end of the village",
        "between two lakes",
    ],
    "color": ["red", "blue", "green", "yellow", "golden", "silver"],
    "thing": list(THINGS),
    "giver": ["grandmother", "grandfather", "mother", "father", "aunt", "uncle"],
    "day": ["morning", "evening", "day in spring", "day in summer", "day in autumn", "day in winter"],
    "look": ["in the garden", "under the bed", "behind the stove", "in the cellar", "on the roof"],
    "look2": ["by the well", "in the barn", "along the fence", "in the tall grass", "under the bench"],
    "found": [
        "under the bridge",
        "in a hollow tree",
        "behind a large stone",
        "among the reeds",
        "in a bush of roses",
        "on the church tower",
    ],
    "joy": ["danced in a circle", "sang a loud song", "laughed until it hurt", "jumped into the air"],
    "goal": ["the sea", "the high mountains", "the great city", "the end of the rainbow", "the island of birds"],
    "food": ["bread", "cheese", "soup", "cake", "honey", "porridge", "pie"],
    "weather": list(WEATHER),
    "fear": ["the dark", "the deep water", "the thunder", "the long tunnel", "the old tower"],
    "work": list(WORKS),
    "game": ["hide and seek", "chess", "cards", "catch", "ball"],
}
"""What the slots of sentences can be filled with."""

_OPENING = [
    "Once upon a time there was a {trait} {kind} named {hero}, who lived {home}.",
    "Once upon a time a {trait} {kind} named {hero} lived in a {size} house {home}.",
    "In a {size} house {home} lived a {trait} {kind} named {hero}.",
    "There was once a {kind} named {hero}, who was very {trait} and lived {home}.",
    "{hero} was a {trait} {kind} who lived in a {size} house {home}.",
]
_FRIENDS = [
    "From that day on {hero} and {friend} were the best of friends.",
    "After that {hero} and {friend} met every day.",
    "And if they have not moved away, {hero} and {friend} still live there.",
    "That night {hero} slept well and dreamed of {friend} the {fkind}.",
]

PLOTS: Mapping[str, Sequence[Sequence[str]]] = {
    "lost": [
        _OPENING,
        [
            "{He} had a {color} {thing} that {use}.",
            "The best thing that {he} had was a {color} {thing}, which {use}.",
        ],
        [
            "It was a gift from {his} {giver}, and {he} took it everywhere.",
            "{His} {giver} had given it to {him}, and {he} loved it very much.",
            "{His} {giver} had made it for {his} birthday.",
        ],
        [
            "But one {day} the {thing} was gone.",
            "One {day} {hero} woke up and could not find the {thing}.",
            "Then, one {day}, the wind carried the {thing} away.",
        ],
        [
            "{He} looked {look} and {look2}, but it was not there.",
            "{hero} looked {look}, and then {he} looked {look2}, but there was nothing.",
        ],
        [
            "{He} sat down on the steps and began to cry.",
            "{hero} was so sad that {he} could not eat.",
            "So {hero} sat down in front of the house and did not know what to do.",
        ],
        [
            'Then a {fkind} named {friend} came by and asked, "Why are you so sad?"',
            "A {fkind} named {friend} heard {him} and came nearer.",
            '"What is the matter?" asked {friend} the {fkind}, who was just passing.',
        ],
        [
            '"I have lost my {color} {thing}," said {hero}.',
            '"My {thing} is gone, and my {giver} gave it to me," said {hero}.',
        ],
        [
            '"Do not worry," said {friend}, "we will look for it together."',
            '"Then let us look for it," said {friend}, "four eyes see more than two."',
        ],
        [
            "They looked all day, and at last they found the {thing} {found}.",
            "When the sun went down, {friend} saw something {color} {found}, and it was the {thing}.",
            "They did not have to go far, for the {color} {thing} lay {found}.",
        ],
        [
            "{hero} was so happy that {he} {joy}.",
            '"Thank you, {friend}!" called {hero}, and {he} {joy}.',
        ],
        _FRIENDS,
    ],
    "journey": [
        _OPENING,
        [
            "All {his} life {he} had wanted to see {goal}.",
            "Every night {he} dreamed of {goal}.",
            "{His} {giver} had told {him} so much about {goal} that {he} wanted to see it.",
        ],
        [
            "One {day} {he} packed some {food} and set out.",
            "So one {day} {hero} put some {food} into a bag and went off.",
        ],
        [
            "{He} had not gone far when the {weather} came.",
            "On the third day there was {weather}, and {he} had to stop.",
        ],
        [
            "Soon {effect}, and {hero} did not know where to go.",
            "Because of the {weather} {effect}, and {he} was afraid.",
        ],
        [
            "Then {he} saw a light in the window of a {fkind} named {friend}.",
            "But there was a house, and in it lived {friend}, an old {fkind}.",
        ],
        [
            '"Come in," said {friend}, "you must be cold and tired."',
            '"You can stay with me until the {weather} is over," said {friend}.',
        ],
        [
            "They sat by the fire and ate the {food} that {hero} had brought.",
            "{hero} shared the {food} with {friend}, and they told each other stories.",
        ],
        [
            '"I am on my way to {goal}," said {hero}, "would you like to come with me?"',
            "{hero} told {friend} about {goal}, and {friend} wanted to see it, too.",
        ],
        [
            "In the morning the {weather} {over}, and they went on together.",
            "When the {weather} {over}, they set out side by side.",
        ],
        [
            "At last they came to {goal}, and it was more beautiful than in any dream.",
            "After seven days they stood before {goal}, and {hero} {joy}.",
        ],
        _FRIENDS,
    ],
    "share": [
        _OPENING,
        [
            "One {day} {he} made a lot of {food}.",
            "{He} had some {food}, enough for the whole winter.",
            "{His} {giver} had sent {him} a basket of {food}.",
        ],
        [
            "A {fkind} named {friend} knocked at the door and asked for a little of it.",
            '"I am so hungry," said {friend} the {fkind}, who stood at the door.',
        ],
        [
            '"The {food} is mine," said {hero}, and {he} closed the door.',
            "But {hero} did not want to share the {food}, and {he} said no.",
        ],
        [
            "{friend} said nothing and went away.",
            "So {friend} went home with an empty belly.",
        ],
        [
            "That night {hero} could not sleep, because {he} thought of {friend}.",
            "{hero} sat at the table alone, and the {food} did not taste good.",
        ],
        [
            "In the morning {he} took the {food} and carried it to the house of {friend}.",
            "So {he} ran after {friend} with the {food} in {his} arms.",
        ],
        [
            '"I am sorry," said {hero}, "the {food} is for both of us."',
            '"Please eat with me," said {hero}, "there is enough {food} for two."',
        ],
        [
            "They ate until the {food} was gone, and it had never tasted so good.",
            "{friend} smiled, and they ate the {food} to the last bite.",
        ],
        _FRIENDS,
    ],
    "afraid": [
        _OPENING,
        [
            "There was only one thing that {hero} was afraid of, and that was {fear}.",
            "{hero} was afraid of {fear}, but {he} told no one.",
        ],
        [
            "{His} best friend was a {fkind} named {friend}.",
            "Next door lived a {fkind} named {friend}, with whom {he} played {game}.",
        ],
        [
            "One {day} {friend} did not come home.",
            "One {day} {hero} heard {friend} call for help.",
        ],
        [
            "To find {friend}, {hero} had to go where {fear} was.",
            "Between {hero} and {friend} there was {fear}.",
        ],
        [
            "{His} knees shook, but {he} took {his} {color} {thing} and went on.",
            "{He} held {his} {color} {thing} tight and took one step after the other.",
        ],
        [
            '"{friend}, where are you?" called {hero}.',
            '"I am coming, {friend}!" called {hero}.',
        ],
        [
            "And there was {friend} the {fkind}, {found}.",
            "{He} found {friend} {found}, wet and cold.",
        ],
        [
            '"You came, although you are afraid of {fear}," said {friend}.',
            '"I knew that you would come, {hero}," said {friend}.',
        ],
        [
            "Hand in hand they went home, and {hero} was not afraid of {fear} any more.",
            "On the way home {hero} saw that {fear} was not so bad at all.",
        ],
        _FRIENDS,
    ],
    "built": [
        _OPENING,
        [
            "One {day} {he} wanted to build a {work}, to {purpose}.",
            "{He} wanted to {purpose}, and so {he} began to build a {work}.",
        ],
        [
            "{He} carried {stuff} from the forest and worked all day.",
            "All week {he} looked for {stuff} and put them together.",
        ],
        [
            "But the {stuff} were heavy, and the {work} fell to pieces.",
            "But in the evening the {work} broke, and the {stuff} lay on the ground.",
        ],
        [
            '"I will never build a {work}," said {hero}.',
            "{hero} kicked the {stuff} and sat down in the grass.",
        ],
        [
            "A {fkind} named {friend} had watched {him} from the other side.",
            "Then {friend} came along, a {fkind} who knew much about building.",
        ],
        [
            '"You hold the {stuff}, and I tie the knots," said {friend}.',
            '"One alone cannot build a {work}," said {friend}, "but two can."',
        ],
        [
            "They worked until the moon came out, and then the {work} was done.",
            "{hero} held the {stuff}, {friend} tied the knots, and soon the {work} stood firm.",
        ],
        [
            "Now they could {purpose}, and {hero} {joy}.",
            "Every day they used the {work} to {purpose}.",
        ],
        _FRIENDS,
    ],
    "quarrel": [
        _OPENING,
        [
            "Every day {he} played {game} with {friend} the {fkind}.",
            "{His} neighbour was {friend}, a {fkind}, and they liked to play {game}.",
        ],
        [
            "One {day} they found a {color} {thing} {found}.",
            "One {day} there was a {color} {thing} {found}.",
        ],
        [
            '"I saw it first," said {hero}, and {he} took the {thing}.',
            '"The {thing} is mine!" called {hero}.',
        ],
        [
            '"No, it is mine," said {friend}, "I saw it before you."',
            '"That is not fair," said {friend}, and they began to shout.',
        ],
        [
            "They pulled at the {thing} from both sides until it broke.",
            "They were so angry that each went home alone.",
        ],
        [
            "For three days they did not play {game}, and both were sad.",
            "It was quiet {home}, and {hero} had no one to play {game} with.",
        ],
        [
            "Then {hero} knocked at the door of {friend}.",
            "On the fourth day {hero} went to {friend} and took the {thing} along.",
        ],
        [
            '"I am sorry," said {hero}, "you can have the {thing}."',
            '"A {thing} is no friend, but you are," said {hero}.',
        ],
        [
            '"Let it belong to both of us," said {friend}.',
            '"I am sorry, too," said {friend}, "come in and let us play {game}."',
        ],
        _FRIENDS,
    ],
}
"""What tales go by: steps, each with its sentences."""


def _derived(slot: str, value: str) -> dict[str, str]:
    """What else is known when a slot is filled."""
    match slot:
        case "hero":
            he, his, him = ("she", "her", "her") if value in SHE else ("he", "his", "him")
            return {"he": he, "his": his, "him": him, "He": he.capitalize(), "His": his.capitalize()}
        case "thing":
            return {"use": THINGS[value]}
        case "weather":
            return dict(zip(("effect", "over"), WEATHER[value], strict=True))
        case "work":
            return dict(zip(("stuff", "purpose"), WORKS[value], strict=True))
    return {}


@cache
def _slots() -> dict[str, list[str]]:
    """All slots with what they can be filled with, those that follow from others included."""
    found: dict[str, list[str]] = {slot: list(values) for slot, values in WORDS.items()}
    for slot, values in WORDS.items():
        for value in values:
            for other, derived in _derived(slot, value).items():
                found.setdefault(other, [])
                if derived not in found[other]:
                    found[other].append(derived)
    return found


_SLOT = re.compile(r"{(\w+)}")
_END = re.compile(r'(?<=[.!?])(?=\s+["A-Z])|(?<=[.!?]")(?=\s+["A-Z])')

Filled = Mapping[str, str]


def write_tale(random: Random) -> str:
    """A tale: 9 to 12 sentences, as one line."""
    filled: dict[str, str] = {}
    steps = PLOTS[random.choice(sorted(PLOTS))]
    return " ".join(_filled_in(random.choice(step), filled, random) for step in steps)


def _filled_in(sentence: str, filled: dict[str, str], random: Random) -> str:
    for slot in _SLOT.findall(sentence):
        if slot in WORDS and slot not in filled:
            choices = [value for value in WORDS[slot] if _allowed(slot, value, filled)]
            filled[slot] = random.choice(choices)
            filled |= _derived(slot, filled[slot])
    return _SLOT.sub(lambda match: filled[match[1]], sentence)


def _allowed(slot: str, value: str, filled: Filled) -> bool:
    """Two are not the same, nor of one name."""
    other = {"friend": "hero", "fkind": "kind", "hero": "friend", "kind": "fkind"}.get(slot)
    return other is None or filled.get(other) != value


@cache
def _pattern(sentence: str) -> tuple[re.Pattern[str], tuple[str, ...]]:
    slots: list[str] = []

    def group(match: re.Match[str]) -> str:
        slots.append(match[1])
        return "(" + "|".join(re.escape(value) for value in _slots()[match[1]]) + ")"

    return re.compile(re.sub(r"\\{(\w+)\\}", group, re.escape(sentence))), tuple(slots)


def _read(sentence: str, text: str, filled: Filled) -> Filled | None:
    """What is known when a text is that sentence of a plot; None if it is not."""
    pattern, slots = _pattern(sentence)
    found = pattern.fullmatch(text)
    if found is None:
        return None
    known = dict(filled)
    given = list(zip(slots, found.groups(), strict=True))
    for slot, value in given:
        if slot in WORDS and slot not in known and _allowed(slot, value, known):
            known |= {slot: value, **_derived(slot, value)}
    return known if all(known.get(slot) == value for slot, value in given) else None


def sentences(text: str) -> list[str]:
    """The sentences of a text; what is said is in the sentence that says it."""
    return [each.strip() for each in _END.split(text) if each.strip()]


class Verdict(NamedTuple):
    """What the checker finds.

    Attributes:
        sentences: of the text.
        right: of these, such as stand in some plot, filled with words that fit.
        fitting: how many, from the first on, go on with one plot and contradict nothing before.
        whole: all of them do, and the tale comes to its end.
    """

    sentences: int
    right: int
    fitting: int
    whole: bool


def check(text: str) -> Verdict:
    """Judge a tale from its beginning."""
    found = sentences(text)
    everything = {sentence for steps in PLOTS.values() for step in steps for sentence in step}
    right = sum(any(_pattern(sentence)[0].fullmatch(each) for sentence in everything) for each in found)
    states: list[tuple[str, Filled]] = [(plot, {}) for plot in PLOTS]
    fitting = 0
    for number, each in enumerate(found):
        states = list(_go_on(states, number, each))
        if not states:
            break
        fitting += 1
    whole = fitting == len(found) and any(len(PLOTS[plot]) == fitting for plot, _ in states)
    return Verdict(len(found), right, fitting, whole)


def _go_on(states: Sequence[tuple[str, Filled]], number: int, text: str) -> Iterator[tuple[str, Filled]]:
    for plot, filled in states:
        for sentence in PLOTS[plot][number] if number < len(PLOTS[plot]) else ():
            known = _read(sentence, text, filled)
            if known is not None:
                yield plot, known
