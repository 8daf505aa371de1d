"""Swarm runs of the cores that decide what generating models compute (`engine.generation`): everything that may happen
to them is drawn.

The memory of the model is played, too: each place of a block holds of which tokens it has the keys and values, and a
piece is computed only from places that hold what they should. A token is drawn as a function of those before it, so
that a text is what it is alone, whatever else is computed. Each step is held against the rules of `iterations`, stated
naively. A run ends with a phase in which nothing new comes: then all must end, and the memory must be free.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from random import Random

from ..engine.errors import InvalidArgumentError, UnavailableError
from ..engine.generation.blocks import BlockMemory, Copy
from ..engine.generation.iterations import IterationLimits, Iterations, Step, SwapOut
from ..engine.generation.requests import Generation, GenerationEnd, GenerationState
from .drawn_run import DrawnRun

WITHOUT_END = 5_000
"""So many events are enough for everything to end."""

VOCABULARY = 50
STOP = 0
"""The token that ends a text."""


def identity(salt: bytes, tokens: Sequence[int]) -> bytes:
    """What the keys and values of the last of these tokens depend on."""
    return blake2b(bytes(tokens), digest_size=8, person=salt).digest()


def following(salt: bytes, tokens: Sequence[int], choice: int) -> int:
    """The token that a model draws after these."""
    return identity(salt + b"%d" % choice, tokens)[0] % VOCABULARY


def alone(generation: Generation) -> list[int]:
    """The tokens that a generation gets if nothing else is there."""
    tokens = list(generation.tokens[: generation.prompt])
    while len(tokens) - generation.prompt < generation.most_new:
        tokens.append(following(generation.salt, tokens, generation.choice))
        if tokens[-1] == STOP:
            break
    return tokens


class PlayedMemory:
    """What is in the blocks of the model and of the host: for each place, the identity of its token."""

    def __init__(self, run: DrawnRun, blocks: int, held: int, size: int) -> None:
        self._run = run
        self._size = size
        self._places: list[list[bytes]] = [[b""] * size for _ in range(blocks)]
        self._held: list[list[bytes]] = [[b""] * size for _ in range(held)]

    def move(self, step: Step) -> None:
        """Rule 10: in the order in which it was decided."""
        for move in step.moves:
            self._run.counts[type(move).__name__] += 1
            match move:
                case Copy(source, target):
                    self._places[target] = list(self._places[source])
                case SwapOut(block, held):
                    self._held[held] = list(self._places[block])
                case (held, block):
                    self._places[block] = list(self._held[held])

    def compute(self, step: Step) -> dict[Generation, list[int]]:
        """Carry out the pieces; the tokens that are drawn."""
        texts = {piece.generation: step.tokens_of(piece, 0) for piece in step.pieces}
        for generation, start, end, _ in step.pieces:
            for at in range(start, end):
                block, offset = self._place(generation, at)
                self._places[block][offset] = identity(generation.salt, texts[generation][: at + 1])
        drawn: dict[Generation, list[int]] = {}
        for generation, _, end, draws in step.pieces:
            for at in range(end):
                block, offset = self._place(generation, at)
                if self._places[block][offset] != identity(generation.salt, texts[generation][: at + 1]):
                    self._run.complain(f"token {at} of generation {generation.number} is not in block {block}")
            if draws:
                choices = range(generation.choice, generation.choice + generation.wide)
                drawn[generation] = [following(generation.salt, texts[generation], choice) for choice in choices]
        return drawn

    def _place(self, generation: Generation, at: int) -> tuple[int, int]:
        assert generation.table is not None, f"generation {generation.number} has no memory"
        return generation.table.blocks[at // self._size], at % self._size


def wrong_in_step(step: Step, running: Sequence[Generation], limits: IterationLimits) -> Iterator[str]:
    """What in a step breaks a rule of `iterations`, whatever came before.

    Args:
        running: in order.
    """
    if step.tokens > limits.most_tokens:
        yield f"a step of {step.tokens} tokens, {limits.most_tokens} are allowed"
    if (wide := sum(each.wide for each in running)) > limits.most_running:
        yield f"{wide} run, choices to come included, {limits.most_running} are allowed"
    told = {piece.generation: piece for piece in step.pieces}
    if len(told) != len(step.pieces) or any(each not in running for each in told):
        yield "a step has a generation twice, or one that does not run"
    for each in running:
        if each not in told and (each.missing == 1 or each is running[0]):
            yield f"generation {each.number} does not get on"
    for piece in step.pieces:
        last = piece.end if piece.generation in step.latest else len(piece.generation.tokens)
        if piece.start != piece.generation.computed or piece.draws is not (piece.end == last):
            yield f"a piece of generation {piece.generation.number} from {piece.start} to {piece.end}"


def play_generating(seed: int, events: int = 120) -> DrawnRun:
    """Play one run to its end, or to the first violation."""
    run = _Run(Random(f"generating {seed}"))
    try:
        for number in range(events + WITHOUT_END):
            run.calm = number >= events
            if run.run.violation or (run.calm and run.quiet):
                run.check_end()
                return run.run
            run.event()
    except (AssertionError, KeyError, ValueError, IndexError) as error:
        run.run.complain(f"raised: {error!r}")
        return run.run
    run.run.complain(f"some never end: {run.left}")
    return run.run


class _Run:
    """A run in the making."""

    def __init__(self, draw: Random) -> None:
        self._draw = draw
        self.run = DrawnRun()
        self.calm = False
        self._now_s = 0.0
        size = draw.choice((1, 2, 4, 8))
        blocks = draw.choice((2, 6, 12, 40))
        most_running = draw.choice((1, 3, 8))
        self._limits = IterationLimits(
            context=draw.choice((12, 40)),
            most_tokens=most_running + draw.choice((1, 4, 30)),
            most_running=most_running,
            most_pending=draw.choice((3, 20)),
            spare=draw.choice((0, 0, 1, 2)),
            held=draw.choice((0, 0, 3, 20)),
            swaps_from=draw.choice((0, 4, 16)),
        )
        self._memory = BlockMemory(blocks, size, shares=draw.random() < 0.8)
        self._core = Iterations(self._memory, self._limits, self._ended, self._begun)
        self._played = PlayedMemory(self.run, blocks, self._limits.held, size)
        self._longest = min(self._limits.context, blocks * size)
        self._step: Step | None = None
        self._ahead: Step | None = None
        self._numbers = 0
        self._live: dict[tuple[int, int], Generation] = {}
        self._leaving: set[Generation] = set()
        self._beginnings = [self._text(draw.randint(1, 24)) for _ in range(draw.randint(1, 3))]
        self._levels = draw.choice((1, 1, 3))
        self._fails = draw.random() < 0.3

    @property
    def quiet(self) -> bool:
        return not self._live and self._step is None

    @property
    def left(self) -> list[str]:
        return [f"{each.number}.{each.choice} {each.state.value}" for each in self._live.values()]

    def check_end(self) -> None:
        """Nothing is in memory any more."""
        self.run.counts["tokens found"] = self._memory.found
        if not self.run.violation and self._memory.free != self._memory.count:
            self.run.complain(f"{self._memory.count - self._memory.free} blocks are left in use")
        if not self.run.violation and sorted(self._core._unheld) != list(range(self._limits.held)):
            self.run.complain("blocks of the host are left in use")

    def event(self) -> None:
        kinds = {
            self._arrive: 0 if self.calm else 3,
            self._leave: 0 if self.calm else 0.5,
            self._pass: 1,
            self._go_on: 6,
        }
        self._draw.choices(list(kinds), list(kinds.values()))[0]()

    # ---- events ----

    def _text(self, length: int) -> list[int]:
        return [self._draw.randrange(1, VOCABULARY) for _ in range(length)]

    def _arrive(self) -> None:
        draw = self._draw
        tokens = list(draw.choice(self._beginnings)) if draw.random() < 0.6 else []
        tokens = tokens[: draw.randint(0, len(tokens))] + self._text(draw.randint(0, 12))
        if draw.random() < 0.9:
            tokens = tokens[: max(1, self._longest - 1)] or self._text(1)
        most_new = draw.randint(1, 16)
        if draw.random() < 0.9:
            most_new = max(1, min(most_new, self._longest - len(tokens)))
        choices = draw.choice((2, 3)) if draw.random() < 0.2 and self._limits.most_running > 1 else 1
        generation = Generation(
            self._numbers,
            tokens,
            most_new,
            level=draw.randint(1, self._levels),
            deadline_s=self._now_s + draw.uniform(0.5, 20.0) if draw.random() < 0.15 else None,
            salt=b"adapter" if draw.random() < 0.2 else b"",
            choices=choices,
        )
        self._numbers += 1
        self._ahead = None
        right = bool(tokens) and len(tokens) + most_new <= self._longest and choices <= self._limits.most_running
        waiting = sum(each.state is not GenerationState.RUNNING for each in self._live.values())
        try:
            self._core.arrive(generation)
        except (InvalidArgumentError, UnavailableError) as error:
            self.run.counts["refused"] += 1
            full = isinstance(error, UnavailableError)
            if right != full or (full and waiting < self._limits.most_pending):
                self.run.complain(f"generation {generation.number} was refused: {error}")
            return
        if not right or waiting >= self._limits.most_pending:
            self.run.complain(f"generation {generation.number} was admitted, with {waiting} waiting")
        self._live[generation.number, 0] = generation

    def _leave(self) -> None:
        if self._live:
            generation = self._draw.choice(list(self._live.values()))
            self.run.counts["cancelled"] += 1
            self._leaving.add(generation)
            self._ahead = None
            self._core.leave(generation)
            busy = self._step is not None and any(piece.generation is generation for piece in self._step.pieces)
            if busy is (generation.state is GenerationState.OVER):
                self.run.complain(f"generation {generation.number} left {'amid' if busy else 'without'} a step")

    def _pass(self) -> None:
        self._now_s += self._draw.random() * 2.0

    def _go_on(self) -> None:
        if self._step is None:
            self._begin()
        elif self._ahead is None and self._draw.random() < 0.5:
            self._ahead = self._core.ahead()
            self.run.counts["steps known ahead"] += self._ahead is not None
        else:
            self._end(self._step)

    # ---- steps ----

    def _begin(self) -> None:
        before = {each: each.state for each in self._live.values()}
        free = self._memory.free
        self._step = step = self._core.begin_step(self._now_s)
        late = [
            each.number
            for each in self._live.values()
            if each.deadline_s is not None and each.deadline_s <= self._now_s
        ]
        if late:
            self.run.complain(f"generations {late} are too late and still there")
        if step is None:
            if self._live:
                self.run.complain(f"nothing is computed, and {self.left} are there")
            return
        self._check(step, before, free)

    def _check(self, step: Step, before: dict[Generation, GenerationState], free: int) -> None:
        running = sorted(self._having(GenerationState.RUNNING), key=lambda each: each.order)
        waiting = [each for each in self._live.values() if each not in running]
        was_waiting = {each for each, state in before.items() if state is not GenerationState.RUNNING}
        preempted = [each for each in waiting if each not in was_waiting]
        begun = [each for each in running if each in was_waiting]
        self.run.counts["begun"] += len(begun)
        self.run.counts["preempted"] += len(preempted)
        self.run.counts["pieces of prompts"] += sum(not piece.draws for piece in step.pieces)
        complain = self.run.complain
        for text in wrong_in_step(step, running, self._limits):
            complain(text)
        for each in begun:
            if any(other.order < each.order for other in waiting if other in was_waiting):
                complain(f"generation {each.number} has passed another one")
        for each in preempted:
            if any(other.order > each.order for other in running):
                complain(f"generation {each.number} was preempted, and not the last one")
        if begun and len(running) > len(begun) and not preempted and self._memory.free < self._limits.spare:
            complain(f"generation {begun[-1].number} began, and {self._memory.free} blocks are left")
        if not begun and not preempted and waiting and free == self._memory.count:
            complain("all memory was free, and none began")

    def _having(self, state: GenerationState) -> list[Generation]:
        return [each for each in self._live.values() if each.state is state]

    def _end(self, step: Step) -> None:
        self._step = None
        if self._fails and not self.calm and self._draw.random() < 0.05:
            self._ahead = None
            self.run.counts["failed steps"] += 1
            if self._draw.random() < 0.5:
                self._played.move(step)
            self._core.fail_step()
            for piece in step.pieces:
                if piece.generation.state is not GenerationState.OVER:
                    self.run.complain(f"generation {piece.generation.number} outlived its step")
            return
        self._played.move(step)
        drawn = self._played.compute(step)
        following = self._followed_by(drawn)
        self._core.end_step(drawn, lambda generation: generation.tokens[-1] == STOP, following)
        if following is not None:
            running = sorted(self._having(GenerationState.RUNNING), key=lambda each: each.order)
            for text in wrong_in_step(following, running, self._limits):
                self.run.complain(text)

    def _followed_by(self, drawn: dict[Generation, list[int]]) -> Step | None:
        """The step that was known ahead, if it begins before the end of the one before it is told; meanwhile anything
        may happen."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or any(tokens == [STOP] for tokens in drawn.values()):
            return None
        late = any(
            each.generation.deadline_s is not None and each.generation.deadline_s <= self._now_s
            for each in ahead.pieces
        )
        if late:
            return None
        self.run.counts["steps that follow"] += 1
        self._step = replace(ahead, latest={generation: token for generation, (token,) in drawn.items()})
        while self._draw.random() < 0.3:
            self._draw.choice((self._arrive, self._leave, self._pass) if not self.calm else (self._pass,))()
        return self._step

    def _begun(self, generation: Generation) -> None:
        self.run.counts["forks"] += 1
        self._live[generation.number, generation.choice] = generation

    def _ended(self, generation: Generation) -> None:
        assert generation.end is not None, "it is over"
        self.run.counts[generation.end.value] += 1
        if self._live.pop((generation.number, generation.choice), None) is not generation:
            self.run.complain(f"generation {generation.number} ended twice")
        done = generation.end in (GenerationEnd.STOP, GenerationEnd.LENGTH)
        if generation in self._leaving:
            if done:
                self.run.complain(f"generation {generation.number} was cancelled and went on")
        elif done and generation.tokens != alone(generation):
            self.run.complain(f"generation {generation.number} is not what it is alone")
        elif generation.tokens != alone(generation)[: len(generation.tokens)]:
            self.run.complain(f"generation {generation.number} is not the beginning of what it is alone")
