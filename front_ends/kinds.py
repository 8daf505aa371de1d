"""What the messages between a front end's process and the engine's are: the first item of each head.

Numbers are chosen by who begins: of requests, leases and calls by the front end, of descriptions by the engine. Each
head is a list; what follows the kind stands here.
"""

from __future__ import annotations

from typing import Final

# From a front end to the engine.

ADMIT: Final = 1
"""number, slot, id [, spec or None [, extras]]; payload: the inputs (`requests`)."""
CANCEL: Final = 2
"""number of a request: its answers are not wanted any more."""
TAKEN: Final = 3
"""number, count: so many of its answers have been taken, which makes room for more."""
FOLLOW: Final = 4
"""number: say when it is accepted (`ACCEPTED`)."""
GROW: Final = 5
"""lease, bytes [, model, version, client]: for the first time with whom it is for. Answered by `GRANTED`."""
ARRIVED: Final = 6
"""lease: its body is complete."""
CLOSE: Final = 7
"""lease: it is given back."""
CALL: Final = 8
"""number, name, arguments; payload: what of them is bytes. Answered by `RESULT`."""
GIVE_UP: Final = 9
"""number of a call: its result is not waited for any more."""
NOTES: Final = 10
"""number of a request, notes: what the front end has noted of a request that may be traced. The last that is said of
it. Of one that the engine has not heard of: 0, notes, and what is wished (`traces`)."""
HEARD: Final = 11
"""number: the `SYNC` of this number has come, and all that was sent before it."""

OPENED: Final = 12
"""addresses: it listens there."""
FAILED: Final = 13
"""text: why it cannot serve."""

REFUSED: Final = 14
"""reason, model or an empty text, version, count: so many requests or connections were refused (`refusals`)."""

DENIED: Final = 15
"""number of a caller, call: it was refused for want of a right (`access`)."""

# From the engine to a front end.

ANSWER: Final = 32
"""number, slot: the final answer, a response like others before it; payload: the outputs (`responses`)."""
OUTCOME: Final = 33
"""number, final, accepted, body: any answer; payload: its outputs, if it is a response."""
ACCEPTED: Final = 34
"""number of a request."""
HELD: Final = 35
"""how many of the front end's requests wait for room: while there is one, it sends no other."""
GRANTED: Final = 36
"""lease, bytes: it has grown."""
WANTED: Final = 37
"""lease: others wait for what it holds."""
RESULT: Final = 38
"""number, bytes of the value, error or None: what has come of a call; payload: its value, as JSON."""
MODELS: Final = 39
"""generation, started, bytes of the rows; payload: these, and what they tell of (`models`)."""
REGIONS: Final = 40
"""generation, bytes of the rows; payload: these, of regions that have come or gone (`regions`)."""
STATE: Final = 41
"""exiting, traces, contexts: whether the server stops, may trace requests, and looks at callers' spans."""
DRAIN: Final = 42
"""seconds: listen no more, and answer what is in flight."""
SYNC: Final = 43
"""number: to be answered by `HEARD`, which says that all that was sent before has come."""
LOG: Final = 44
"""settings: what is logged, and how; a dictionary of those that can change."""
ACCESS: Final = 46
"""generation, open health: which access rules there are now (`access`)."""
BEGIN_DRAIN: Final = 45
"""nothing: serve on, and have clients connect anew. `DRAIN` follows."""
