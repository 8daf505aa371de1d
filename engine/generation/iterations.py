"""Which tokens the next step of a model computes (iteration-level batching).

A step computes a piece of each of several generations, as one batch; from the last token of a generation the next one
is drawn. Rules:

 1. One step is under way at a time. Between two of them generations begin, end, wait and come back. If all that run are
    in it and draw, and none waits, the step after it is known before (`ahead`): a token more of each. It may begin as
    soon as the first one is over, if no text has ended with that, and nothing has been told to this core meanwhile.
 2. A step computes no more than `most_tokens`. Each generation that goes on with a token just drawn has one of them;
    what is left goes to prompts, in pieces (chunked prefill), so that long prompts delay the tokens of others by no
    more than a step's length. No more than `most_running` run at a time, which is less than `most_tokens`: prompts go
    on, too.
 3. Order: the lower level first, then the earlier arrival. The first of those that wait (pending, or swapped out)
    begins as soon as there is room for it, and none passes it: large ones do not starve.
 4. One begins if there is memory for all its tokens, what the others need in this step, and `spare` blocks, so that
    those that run can grow; if none runs, without the last two. What has been computed before for the same beginning is
    not computed again (`blocks`).
 5. One that runs and finds no block takes those of the last one in this order, perhaps its own: that one is preempted.
    It is swapped out to the host's memory if that has room and it is worth it (`swaps_from` tokens computed); else its
    memory is dropped, and it is computed again when it comes back. It comes back in its place, so that the first one of
    all always gets on.
 6. One that waits and has a lower level preempts those of higher ones, if that makes room for it.
 7. Of several choices the prompt is computed once. They count as so many that run from the beginning.
 8. One that can never have memory for all its tokens, or would be longer than `context`, is refused at once; so is one
    that finds `most_pending` waiting.
 9. One that is cancelled or too late, or has failed, leaves before the next step; if it is in the one under way, when
    that is over, or the one after it that has begun by then. What was drawn for it then is dropped.
10. Memory moves in the order in which it was decided (`Step.moves`), before anything is computed. If a step fails, it
    may not have moved: what was to be moved for a generation that was not in it is computed again.

States of a generation:

    PENDING ─ room ▶ RUNNING ─ stop, length, cancelled, expired, failed ▶ OVER
    RUNNING ─ preempted ▶ PENDING or SWAPPED ─ room ▶ RUNNING
    PENDING, SWAPPED ─ cancelled, expired ▶ OVER
"""

from __future__ import annotations

import itertools
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..errors import CONTEXT_LENGTH, InvalidArgumentError, RefusalReason, UnavailableError
from .blocks import BlockMemory, Copy
from .requests import Generation, GenerationEnd, GenerationState


class SwapOut(NamedTuple):
    """The contents of a block go to the host."""

    block: int
    held: int


class SwapIn(NamedTuple):
    """They come back."""

    held: int
    block: int


Move = Copy | SwapOut | SwapIn


class Piece(NamedTuple):
    """The tokens of a generation from `start` to `end` (exclusive), which a step computes; if `draws`, the next token
    is drawn (for a prompt, one for each choice)."""

    generation: Generation
    start: int
    end: int
    draws: bool


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be done: first the moves, in this order, then the pieces, as one batch.

    Attributes:
        latest: of one that was known `ahead`, its tokens, of which the generations may not have been told.
    """

    pieces: Sequence[Piece]
    moves: Sequence[Move]
    latest: Mapping[Generation, int] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return sum(piece.end - piece.start for piece in self.pieces)

    def tokens_of(self, piece: Piece, start: int) -> Sequence[int]:
        """The tokens of a piece's generation from `start` to the piece's end."""
        tokens, latest = piece.generation.tokens, self.latest.get(piece.generation)
        return tokens[start : piece.end] if latest is None else [*tokens[start : piece.start], latest]


@dataclass(frozen=True, slots=True)
class IterationLimits:
    """What a model's steps may take.

    Attributes:
        context: tokens of a generation, prompt included.
        most_tokens: of a step.
        most_running: generations.
        most_pending: generations that wait.
        spare: blocks (rule 4).
        held: blocks of the host's memory.
        swaps_from: computed tokens (rule 5).
    """

    context: int
    most_tokens: int = 512
    most_running: int = 64
    most_pending: int = 1_000
    spare: int = 0
    held: int = 0
    swaps_from: int = 64

    def __post_init__(self) -> None:
        if self.most_tokens <= self.most_running:
            raise InvalidArgumentError(
                f"a step of {self.most_tokens} tokens has no room for prompts beside {self.most_running} generations; "
                "expected more tokens than generations"
            )


@dataclass(slots=True)
class IterationCounts:
    """What has happened so far.

    Attributes:
        tokens: computed.
        prompts: tokens of prompts that have begun.
        found: of these, those that were in memory already.
    """

    steps: int = 0
    tokens: int = 0
    prompts: int = 0
    found: int = 0
    drawn: int = 0
    swaps: int = 0
    recomputations: int = 0


class Iterations:
    """Decides what the steps of a model are.

    Args:
        memory: of keys and values; for this alone.
        ended: called with each generation that is over, its memory released.
        begun: called with each that begins as another choice of a prompt.
        counts: to go on counting in.
    """

    def __init__(
        self,
        memory: BlockMemory,
        limits: IterationLimits,
        ended: Callable[[Generation], object],
        begun: Callable[[Generation], object] = lambda _generation: None,
        counts: IterationCounts | None = None,
    ) -> None:
        self.memory = memory
        self.limits = limits
        self.counts = IterationCounts() if counts is None else counts
        self._ended = ended
        self._begun = begun
        self._arrivals = itertools.count()
        self._waiting: list[Generation] = []  # in order
        self._running: list[Generation] = []  # in order
        self._unheld = list(range(limits.held))
        self._moves: list[Move] = []
        self._step: Step | None = None
        self._leaving: dict[Generation, GenerationEnd] = {}  # when the step is over

    def __iter__(self) -> Iterator[Generation]:
        yield from self._running
        yield from self._waiting

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    # ---- what comes and goes ----

    def arrive(self, generation: Generation) -> None:
        """A generation wants to begin.

        Raises:
            InvalidArgumentError: it is empty, too long, or too large for the memory.
            UnavailableError: too many wait already.
        """
        self._check(generation)
        if len(self._waiting) >= self.limits.most_pending:
            raise UnavailableError(
                f"there are {len(self._waiting)} generations pending already; try again later",
                refusal=RefusalReason.QUEUE_FULL,
            )
        generation.order = (generation.level, next(self._arrivals), generation.choice)
        insort(self._waiting, generation, key=_order)

    def leave(self, generation: Generation, end: GenerationEnd = GenerationEnd.CANCELLED) -> None:
        """A generation is wanted no more (rule 9). One that is over is left alone."""
        if generation.state is GenerationState.OVER:
            return
        if self._step is not None and any(piece.generation is generation for piece in self._step.pieces):
            self._leaving.setdefault(generation, end)
        else:
            self._finish(generation, end)

    def expire(self, now_s: float) -> None:
        """Those that are too late leave (rule 9)."""
        for each in [each for each in self if each.deadline_s is not None and each.deadline_s <= now_s]:
            self.leave(each, GenerationEnd.EXPIRED)

    # ---- steps ----

    def begin_step(self, now_s: float) -> Step | None:
        """What is to be computed now; None if a step is under way, or there is nothing to do."""
        if self._step is not None:
            return None
        self.expire(now_s)
        self._moves = []
        self._admit()
        pieces = self._pieces()
        if not pieces:
            assert not self._moves, "nothing moves unless it is computed"
            return None
        return self._begin_step(Step(pieces, self._moves))

    def ahead(self) -> Step | None:
        """The step after the one under way, its memory taken already (rule 1); None if it is not known."""
        step = self._step
        if step is None or self._waiting or self._leaving or len(step.pieces) != len(self._running):
            return None
        if not all(piece.draws and _goes_on(piece.generation) for piece in step.pieces):
            return None
        pieces = [Piece(piece.generation, piece.end, piece.end + 1, True) for piece in step.pieces]
        places = [(table, at, end) for each, at, end, _ in pieces if (table := each.table)]
        if sum(self.memory.lacks(*each) for each in places) > self.memory.free:
            return None
        copies = [self.memory.grow(*each) for each in places]
        assert not any(copies), "what is written to in this step has no other users"
        return Step(pieces, ())

    def end_step(
        self,
        drawn: Mapping[Generation, Sequence[int]],
        stops: Callable[[Generation], bool],
        following: Step | None = None,
    ) -> None:
        """The step has been computed.

        Args:
            drawn: for each piece that draws, the next tokens: as many as the generation has choices if they are the
                first, else one.
            stops: whether a generation is at its end with the token that it has got last.
            following: the step that was known `ahead`, if it has begun.
        """
        assert self._step is not None, "there is none under way"
        for piece in self._step.pieces:
            generation = piece.generation
            assert generation.table is not None, "it is running"
            generation.computed = piece.end
            self.memory.computed(generation.table, generation.tokens, min(piece.end, len(generation.tokens)))  # rule 9
            if generation not in self._leaving and piece.draws:
                self._draw(generation, drawn[generation], stops)
        if following is None:
            self._end_step()
        else:
            self._begin_step(following)

    def fail_step(self) -> None:
        """The step under way has failed, and all that were in it with it."""
        step = self._step
        assert step is not None, "there is none under way"
        for piece in step.pieces:
            self._leaving.setdefault(piece.generation, GenerationEnd.FAILED)
        self._end_step()
        held = {move.held for move in step.moves if isinstance(move, SwapOut)}
        blocks = {move.block for move in step.moves if isinstance(move, SwapIn)}
        for generation in [each for each in self._waiting if not held.isdisjoint(each.held)]:
            self._waiting.remove(generation)
            self._wait_anew(generation)
        for generation in [each for each in self._running if each.table and not blocks.isdisjoint(each.table.blocks)]:
            self._running.remove(generation)
            self._wait_anew(generation)

    def _begin_step(self, step: Step) -> Step:
        self._step = step
        self.counts.steps += 1
        self.counts.tokens += step.tokens
        return step

    # ---- ends ----

    def _end_step(self) -> None:
        while self._leaving:  # more may leave as others are told
            generation = next(iter(self._leaving))
            end = self._leaving.pop(generation)
            if generation.state is not GenerationState.OVER:
                self._finish(generation, end)
        self._step = None

    def _draw(self, generation: Generation, tokens: Sequence[int], stops: Callable[[Generation], bool]) -> None:
        others = [self._fork(generation, choice) for choice in range(1, generation.wide)]
        for each, token in zip([generation, *others], tokens, strict=True):
            if each.state is GenerationState.OVER or each in self._leaving:
                continue  # who was told of another one's end has had it leave
            each.tokens.append(token)
            self.counts.drawn += 1
            if stops(each):
                self._finish(each, GenerationEnd.STOP)
            elif len(each.tokens) - each.prompt >= each.most_new:
                self._finish(each, GenerationEnd.LENGTH)

    def _fork(self, first: Generation, choice: int) -> Generation:
        assert first.table is not None, "it is running"
        order, table = (*first.order[:2], choice), self.memory.fork(first.table)
        fork = replace(
            first, tokens=list(first.tokens), choice=choice, order=order, table=table, held=[], preemptions=0
        )
        insort(self._running, fork, key=_order)
        self._begun(fork)
        return fork

    def _finish(self, generation: Generation, end: GenerationEnd) -> None:
        (self._running if generation.state is GenerationState.RUNNING else self._waiting).remove(generation)
        self._release(generation)
        generation.state, generation.end = GenerationState.OVER, end
        self._ended(generation)

    def _release(self, generation: Generation) -> None:
        if generation.table is not None:
            self.memory.release(generation.table)
            generation.table = None
        self._unheld += generation.held
        generation.held = []

    # ---- beginnings ----

    def _check(self, generation: Generation) -> None:
        longest = generation.prompt + generation.most_new
        if not generation.prompt or generation.most_new < 1:
            raise InvalidArgumentError(
                f"{generation.most_new} tokens are to follow a prompt of {generation.prompt}; "
                "expected 1 or more of both",
                about="text_input",
            )
        if longest > self.limits.context:
            raise InvalidArgumentError(
                f"the prompt has {generation.prompt} tokens and {generation.most_new} are to follow, "
                f"which is more than the model's context of {self.limits.context}",
                about=CONTEXT_LENGTH,
            )
        if generation.choices < 1 or generation.choices > self.limits.most_running:
            raise InvalidArgumentError(
                f"{generation.choices} choices are asked for; expected 1 to {self.limits.most_running}"
            )
        if (needed := self.memory.blocks_for(longest)) > self.memory.count:
            text = f"{longest} tokens take {needed} blocks of memory, and there are {self.memory.count}"
            raise InvalidArgumentError(text, about=CONTEXT_LENGTH)

    def _admit(self) -> None:
        while self._waiting:
            first = self._waiting[0]
            if not self._fits(first, self._running):
                victims = self._victims(first)
                if not victims:
                    return
                for victim in victims:
                    self._preempt(victim)
            self._begin(first)

    def _fits(self, generation: Generation, beside: Sequence[Generation]) -> bool:
        """Whether there is room for one that waits beside the first of those that run (rules 2 and 4)."""
        if sum(each.wide for each in beside) + generation.wide > self.limits.most_running:
            return False
        needed = self._needed(generation, self._freed(self._running[len(beside) :]))
        if beside:
            needed += self.limits.spare + sum(self._lacks(each) for each in beside)
        return needed <= self.memory.free

    def _needed(self, generation: Generation, freed: set[int]) -> int:
        """How many free blocks one that waits takes, beyond those that become free before."""
        if generation.state is GenerationState.SWAPPED:
            return self.memory.blocks_for(len(generation.tokens)) - len(freed)
        found = self.memory.find(generation.tokens, generation.salt)
        return self.memory.missing(found, len(generation.tokens)) - len(freed.difference(found))

    def _lacks(self, generation: Generation) -> int:
        assert generation.table is not None, "it is running"
        return self.memory.lacks(generation.table, generation.computed, len(generation.tokens))

    def _freed(self, leaving: Sequence[Generation]) -> set[int]:
        """Blocks that only those have who leave."""
        users = Counter(block for each in leaving if each.table is not None for block in each.table.blocks)
        return {block for block, count in users.items() if count == self.memory.users(block)}

    def _victims(self, first: Generation) -> list[Generation]:
        """The fewest, from the last, of a higher level that make room for it; none if they do not (rule 6)."""
        for count in range(1, len(self._running) + 1):
            if self._running[-count].level <= first.level:
                break
            if self._fits(first, self._running[:-count]):
                return self._running[: -count - 1 : -1]
        return []

    def _begin(self, generation: Generation) -> None:
        self._waiting.remove(generation)
        if generation.state is GenerationState.SWAPPED:
            assert generation.table is not None, "it is kept"
            self.memory.grow(generation.table, 0, len(generation.tokens))
            blocks = generation.table.blocks[: len(generation.held)]
            self._moves += [SwapIn(held, block) for held, block in zip(generation.held, blocks, strict=True)]
            self._unheld += generation.held
            generation.held = []
        else:
            found = self.memory.find(generation.tokens, generation.salt)
            generation.table = self.memory.begin(generation.tokens, generation.salt, found)
            assert generation.table is not None, "there is room"
            generation.computed = len(found) * self.memory.size
            if not generation.preemptions:
                generation.found = generation.computed
                self.counts.prompts += generation.prompt
                self.counts.found += generation.found
        generation.state = GenerationState.RUNNING
        insort(self._running, generation, key=_order)

    # ---- pieces ----

    def _pieces(self) -> list[Piece]:
        pieces: list[Piece] = []
        ready = sum(each.missing == 1 for each in self._running)
        left = self.limits.most_tokens - ready  # for prompts
        at = 0
        while at < len(self._running):
            generation = self._running[at]
            count = 1 if generation.missing == 1 else min(generation.missing, left)
            if count and not self._grow(generation, generation.computed + count):
                continue  # it was preempted itself
            if count:
                end = generation.computed + count
                pieces.append(Piece(generation, generation.computed, end, end == len(generation.tokens)))
                left -= count if generation.missing > 1 else 0
            at += 1
        return pieces

    def _grow(self, generation: Generation, end: int) -> bool:
        """Make room for the next tokens; false if that cost its own place (rule 5)."""
        assert generation.table is not None, "it is running"
        while (copies := self.memory.grow(generation.table, generation.computed, end)) is None:
            victim = self._running[-1]
            self._preempt(victim)
            if victim is generation:
                return False
        self._moves += copies
        return True

    def _preempt(self, generation: Generation) -> None:
        self._running.remove(generation)
        generation.preemptions += 1
        table = generation.table
        assert table is not None, "it is running"
        used = table.blocks[: self.memory.blocks_for(generation.computed)]
        if generation.computed >= self.limits.swaps_from and len(used) <= len(self._unheld):
            generation.held = [self._unheld.pop() for _ in used]
            self._moves += [SwapOut(block, held) for block, held in zip(used, generation.held, strict=True)]
            self.memory.release(table)
            generation.state = GenerationState.SWAPPED
            self.counts.swaps += 1
            insort(self._waiting, generation, key=_order)
        else:
            self._wait_anew(generation)

    def _wait_anew(self, generation: Generation) -> None:
        """What has been computed of one that was taken out is dropped: it waits to be computed again."""
        self._release(generation)
        generation.computed = 0
        generation.state = GenerationState.PENDING
        self.counts.recomputations += 1
        insort(self._waiting, generation, key=_order)


def _goes_on(generation: Generation) -> bool:
    """Whether one token is to be drawn for it now, and more later."""
    return generation.wide == 1 and len(generation.tokens) + 1 - generation.prompt < generation.most_new


def _order(generation: Generation) -> tuple[int, int, int]:
    return generation.order
