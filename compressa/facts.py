"""What is true of each compressor at its defaults: the one place where it is worked out.

The command line and the documentation site show the same facts. Sizes and
bounds are for a float32 matrix of `SHAPE`, exchanges and an aggregator's bounds for `RANKS` ranks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import cache

from compressa import plugins
from compressa.aggregators import build_aggregator, choose_exchange
from compressa.aggregators.base import Merge, Round, State, World
from compressa.bias import EVERY, LOSSLESS
from compressa.codecs import Bias, Biased, Codec, Fixed, Range, Unbiased
from compressa.collectives.choice import ROUND_ROBIN
from compressa.compressor import Compressor, Wrapper
from compressa.compressors import COMPRESSORS, Entry
from compressa.config import Config, DenseBelow, assign
from compressa.config.choices import CHOICES, choice_model
from compressa.config.describe import not_a_compressor
from compressa.errors import ConfigError
from compressa.parameters import Layout, ParameterInfo, Segment
from compressa.traffic import busiest_bytes, dense_ring_bytes

SHAPE = (1000, 1000)
RANKS = 4
BUSIEST_OF = (4, 16, 64)
LIBRARY = "compressa"

PARAMETER = ParameterInfo(0, "weight", SHAPE)


@dataclass(frozen=True)
class Facts:
    """What is true of one compressor at its defaults.

    Attributes:
        name: Its name in a configuration.
        family: What kind of idea it is.
        summary: What is sent.
        paper: Where it is from.
        source: The package that has it, with its version unless that is compressa itself.
        kind: "codec", or "aggregator" for what exchanges in rounds of its own.
        wire_id: Its number in payload headers; None for an aggregator.
        exact_size: Whether the size follows from the number of elements alone; of an aggregator
            False if payloads may be shorter than its rounds say, else None.
        ratio: Dense bytes over compressed, headers apart; the least if sizes vary.
        busiest: For each number of ranks in `BUSIEST_OF`, the bytes of a dense ring in float32 over
            those of the busiest rank; 1 is no gain, and 2 that of a dense ring in 16 bits.
        exchange: How payloads travel on four ranks.
        summable: The dtypes in which an all-reduce may sum payloads; empty if it may not.
        bias: "exact", "unbiased", "contraction", "biased" or "undeclared".
        bound: Omega if unbiased, delta of a contraction, the noise if biased; else None.
        smallest: Least magnitude above 0 for which the bound holds; None without a bound.
        largest: The largest.
        feedback: What a configuration adds by itself: "error feedback", "built in" if there is
            nothing to add, or "none".
        state_bytes: Bytes per element that each rank keeps between steps.
    """

    name: str
    family: str
    summary: str
    paper: str
    source: str
    kind: str
    wire_id: int | None
    exact_size: bool | None
    ratio: float
    busiest: tuple[float, ...]
    exchange: str
    summable: tuple[str, ...]
    bias: str
    bound: float | None
    smallest: float | None
    largest: float | None
    feedback: str
    state_bytes: float

    @property
    def bias_text(self) -> str:
        """The bound that holds for every vector, in words; its last digit is on the safe side."""
        if self.bound is None:
            return "exact" if self.bias == "exact" else "no stated bound"
        up, down = (_shown(_rounded(self.bound, way)) for way in (ROUND_CEILING, ROUND_FLOOR))
        among = f" on {RANKS} ranks" if self.kind == "aggregator" else ""
        if self.bias == "unbiased":
            return f"unbiased, omega <= {up}{among}"
        if self.bias == "biased":
            return f"biased, squared error <= {up}{among}"
        if self.feedback == "none":
            relative = _shown(_rounded(math.sqrt(1.0 - self.bound), ROUND_CEILING))
            return f"relative error <= {relative}"
        return f"delta >= {down}"

    @property
    def range_text(self) -> str:
        """For which magnitudes the bound holds, for people; empty if for all."""
        if self.smallest is None or self.largest is None:
            return ""
        limits = [f"from {self.smallest:.3g}"] if self.smallest > EVERY.smallest else []
        limits += [f"up to {self.largest:.3g}"] if self.largest < EVERY.largest else []
        return f"for magnitudes {' '.join(limits)}" if limits else ""

    @property
    def error_text(self) -> str:
        """The bound, and what becomes of the error, for people."""
        words = {"none": "", "built in": "; error feedback built in"}
        return self.bias_text + words.get(self.feedback, f"; {self.feedback}")

    @property
    def busiest_text(self) -> str:
        """One number for each of `BUSIEST_OF`, with " / " between; two digits at least."""
        return " / ".join(
            f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}" for ratio in self.busiest
        )

    @property
    def summable_text(self) -> str:
        """The dtypes in which an all-reduce may sum payloads, for people: "in float32", or "no"."""
        return f"in {', '.join(self.summable)}" if self.summable else "no"


@cache
def facts(entry: Entry, source: str = LIBRARY) -> Facts:
    """Work out what is true of a compressor at its defaults; once in a process.

    Args:
        entry: Its row; it need not be in the table.
        source: Who provides it.

    Example:
        >>> facts(COMPRESSORS["fp16"]).ratio
        2.0
    """
    compressor = entry.compressor().for_parameter(PARAMETER)
    codec = compressor if isinstance(compressor, Codec) else None
    used = _Used(entry)
    bias, bound, held = _bias(compressor)
    return Facts(
        name=compressor.name,
        family=str(entry.family),
        summary=entry.summary,
        paper=entry.paper,
        source=source,
        kind="codec" if codec else "aggregator",
        wire_id=codec.wire_id if codec else None,
        exact_size=isinstance(codec.size, Fixed) if codec else used.exact_size,
        ratio=4 * PARAMETER.elems / compressor.payload_bytes(SHAPE),
        busiest=tuple(used.busiest(ranks) for ranks in BUSIEST_OF),
        exchange=choose_exchange(codec, RANKS).replace("_", "-") if codec else used.exchange,
        summable=_summable(codec) if codec else used.summable,
        bias=bias,
        bound=bound,
        smallest=None if bound is None else held.smallest,
        largest=None if bound is None else held.largest,
        feedback=used.feedback,
        state_bytes=used.state_bytes,
    )


def rounds_of(entry: Entry) -> tuple[Round, ...]:
    """Return the rounds in which `RANKS` ranks exchange a gradient that a compressor has.

    Example:
        >>> [own.verb.value for own in rounds_of(COMPRESSORS["powersgd"])]
        ['all_reduce', 'all_reduce']
    """
    return _Used(entry).rounds_on(RANKS, State())


def survey() -> tuple[list[Facts], list[str]]:
    """Return the facts of all that can be configured, and what is wrong with other packages.

    Imports every plug-in.
    """
    found = [facts(entry) for entry in COMPRESSORS.values()]
    problems = [claim.problem for claim in plugins.shadowed().values()]
    for name in plugins.plugins():
        try:
            found.append(find(name)[1])
        except ConfigError as error:
            problems.append(str(error))
    return found, problems + _shared_wire_ids(found)


def find(name: str) -> tuple[Entry, Facts]:
    """Return the row and the facts of any compressor that can be configured.

    Raises:
        ConfigError: There is none of this name, or its package does not work.
    """
    if name in COMPRESSORS:
        return COMPRESSORS[name], facts(COMPRESSORS[name])
    if name not in CHOICES:
        raise ConfigError(not_a_compressor(name))
    entry, plugin = CHOICES[name].row, plugins.plugins()[name]
    try:
        return entry, facts(entry, plugin.source)
    except Exception as error:  # in another package's code
        raise ConfigError(
            f"{plugin.title} does not work: {type(error).__name__}: {error}; update or uninstall "
            f"{plugin.distribution}"
        ) from error


class _Used:
    """A compressor as a configuration that only names it would use it, on one of the ranks."""

    def __init__(self, entry: Entry) -> None:
        name = entry.compressor.name
        chosen = choice_model(name, entry).model_validate({"name": name})
        plain = Config(dense_below=DenseBelow(elems=0))
        config = plain.model_copy(update={"compressor": chosen})
        assigned = assign(config, [PARAMETER])[PARAMETER.name].for_parameter(PARAMETER)
        self._settled = assigned.at(max(assigned.breakpoints, default=0))
        self._wrappers = list(_wrappers(self._settled, entry.compressor))
        self._state = State()
        # An aggregator makes all of its state now, and none later.
        self._rounds = self.rounds_on(RANKS, self._state)

    def rounds_on(self, ranks: int, state: State) -> tuple[Round, ...]:
        """Those of so many ranks; what it keeps between steps goes into the state."""
        layout = Layout(0, (Segment(PARAMETER, 0, PARAMETER.elems),))
        world = World(rank=0, size=ranks, seed=0, exchange="auto", state=state)
        return build_aggregator(self._settled, layout, world).rounds

    def busiest(self, ranks: int) -> float:
        """A dense ring's bytes over those of the busiest of so many ranks."""
        busiest = busiest_bytes(self.rounds_on(ranks, State()), ranks)
        return dense_ring_bytes(PARAMETER.elems, ranks) / busiest

    @property
    def exchange(self) -> str:
        """Its rounds, such as "2 x all-reduce"."""
        verbs = Counter(map(_verb, self._rounds))
        return ", ".join(verb if n == 1 else f"{n} x {verb}" for verb, n in verbs.items())

    @property
    def exact_size(self) -> bool | None:
        """False if payloads may be shorter than its rounds say."""
        return None if all(own.exact for own in self._rounds) else False

    @property
    def summable(self) -> tuple[str, ...]:
        """The dtypes of the rounds that a backend could sum, if the largest is one of them."""
        dense = [own for own in self._rounds if own.dense]
        largest = max(self._rounds, key=lambda own: own.capacity_bytes)
        return tuple({_word(str(own.dtype)): 0 for own in dense}) if largest in dense else ()

    @property
    def feedback(self) -> str:
        """What is wrapped around it, or what it keeps by itself."""
        owed = Merge.SUM in self._state.merges.values()
        return " + ".join(self._wrappers) or ("built in" if owed else "none")

    @property
    def state_bytes(self) -> float:
        """Bytes per element that survive a step."""
        vectors = self._state.vectors.values()
        return sum(v.numel() * v.element_size() for v in vectors) / PARAMETER.elems


def _verb(round_: Round) -> str:
    """Return what a round asks of the network, and by which algorithm if by no usual one."""
    verb = round_.verb.value.replace("_", "-")
    usual = round_.algorithm in (None, ROUND_ROBIN)
    return verb if usual else f"{verb} by {round_.algorithm}"


def _wrappers(compressor: Compressor, wrapped: type[Compressor]) -> Iterator[str]:
    """Yield the names of what is around a compressor, from the outside in."""
    while not isinstance(compressor, wrapped):
        yield compressor.name.replace("_", " ")
        assert isinstance(compressor, Wrapper), f"{compressor} wraps nothing"
        compressor = compressor.inner


def _summable(codec: Codec) -> tuple[str, ...]:
    return () if codec.reduce is None else (_word(str(codec.reduce.dtype)),)


def _word(dtype: str) -> str:
    return dtype.removeprefix("torch.")


def _bias(compressor: Compressor) -> tuple[str, float | None, Range]:
    """Return the kind of error, its bound and range. An aggregator need not declare them."""
    elems = PARAMETER.elems
    bias: Bias | None = compressor.bias_of_mean(elems, RANKS)
    if isinstance(compressor, Codec):
        bias = compressor.bias(elems)
    if bias is None:
        return "undeclared", None, Range()
    if bias == LOSSLESS:
        return "exact", None, bias.range
    if isinstance(bias, Unbiased):
        return "unbiased", bias.omega, bias.range
    if isinstance(bias, Biased):
        return "biased", bias.noise, bias.range
    return "contraction", bias.delta, bias.range


def _rounded(bound: float, direction: str) -> Decimal:
    """Three digits, on the side on which the bound still holds."""
    return Context(prec=3, rounding=direction).create_decimal(bound)


def _shown(bound: Decimal) -> str:
    """Return a bound as people write it: 1000 and not 1.00E+3."""
    return f"{bound:f}" if bound >= 1 else str(bound)


def _shared_wire_ids(found: list[Facts]) -> list[str]:
    codecs = [own for own in found if own.wire_id is not None]
    uses = Counter(own.wire_id for own in codecs)
    return [
        f'compressor "{own.name}" of {own.source} shares the wire id {own.wire_id} with another; '
        "one configuration can not use both"
        for own in codecs
        if uses[own.wire_id] > 1
    ]
