"""Settings that are fine alone and impossible together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from compressa.bias import TYPICAL_ELEMS
from compressa.codecs._zstandard import missing_library
from compressa.codecs.base import Biased, Bounded, Codec, Fixed, Unbiased
from compressa.codecs.entropy import can_shorten
from compressa.compressor import Compressor, Granularity
from compressa.config.fsdp import fsdp_conflicts
from compressa.config.mistakes import Mistake, Path
from compressa.config.pipeline import pipeline_conflicts
from compressa.config.settings import Settings
from compressa.config.strategy_conflicts import strategy_conflicts
from compressa.config.uses import Use, uses_of
from compressa.transports.table import USUAL, meant
from compressa.wrappers.density_schedule import has_density

_KIND: Path = ("exchange", "kind")
_ALGORITHM: Path = ("exchange", "algorithm")
_TRANSPORT: Path = ("exchange", "transport")


def conflicts(config: Settings) -> list[Mistake]:
    """Return every impossible combination in a configuration whose parts are valid."""
    uses = list(uses_of(config))
    found = [*_exchange_conflicts(config), *_wire_id_conflicts(uses)]
    found += _hop_conflicts(config)
    for use in uses:
        found += _feedback_conflicts(use)
        found += _kind_conflicts(use, config.exchange.kind)
        found += _sum_conflicts(use, config.exchange.kind)
        found += _estimate_conflicts(use, config.exchange.kind)
    found += _entropy_conflicts(config, uses)
    found += _order_conflicts(config, uses)
    found += _pace_conflicts(config)
    found += _momentum_conflicts(config)
    found += _trace_conflicts(config)
    found += _secret_conflicts(config)
    found += _warmup_conflicts(config)
    found += fsdp_conflicts(config.fsdp)
    found += pipeline_conflicts(config.pipeline)
    found += strategy_conflicts(config, uses)
    # Two rules may run into the same wall.
    return list(dict.fromkeys(found))


def _pace_conflicts(config: Settings) -> Iterator[Mistake]:
    path: Path = ("schedule", "pace_bits_per_s")
    if config.schedule.pace_bits_per_s is None:
        if config.schedule.burst_bytes is not None:
            text = "is set, but nothing is paced; set schedule.pace_bits_per_s, or leave it out"
            yield Mistake(("schedule", "burst_bytes"), text)
        return
    transport = config.exchange.transport
    if not any(row.paced for row in meant(transport)):
        yield Mistake(
            path,
            f'is set, but exchange.transport = "{transport}" can not be paced; use "{USUAL}", or '
            "leave it out",
            (_TRANSPORT,),
        )
    if config.exchange.algorithm == "backend":
        yield Mistake(
            path,
            'is set, but no backend can be paced; use exchange.algorithm = "auto", or leave it out',
            (_ALGORITHM,),
        )


def _secret_conflicts(config: Settings) -> Iterator[Mistake]:
    exchange, path = config.exchange, ("exchange", "authenticate")
    if exchange.secret_file is not None and not exchange.authenticate:
        text = "is set, but nothing is authenticated; set exchange.authenticate, or leave it out"
        yield Mistake(("exchange", "secret_file"), text)
    if not exchange.authenticate:
        return
    if exchange.secret_file is None:
        text = "is set, but not exchange.secret_file; set it to a file with the secret"
        yield Mistake(path, text)
    for setting, refused, use in (
        ("transport", not any(row.authenticated for row in meant(exchange.transport)), USUAL),
        ("algorithm", exchange.algorithm == "backend", "auto"),
        ("broadcast", exchange.broadcast == "multicast", "auto"),
    ):
        if refused:
            chosen = getattr(exchange, setting)
            yield Mistake(
                path,
                f'is set, but exchange.{setting} = "{chosen}" sends what has no MAC of ours; use '
                f'"{use}", or leave authenticate out',
                (("exchange", setting),),
            )


def _trace_conflicts(config: Settings) -> Iterator[Mistake]:
    steps, path = config.trace.steps, ("trace", "steps")
    if steps is not None and config.trace.path is None:
        yield Mistake(path, "is set, but not trace.path; set it, or leave this out")
    if steps is not None and steps[0] > steps[1]:
        yield Mistake(path, f"must be the first step and the last, not {list(steps)}")


def _feedback_conflicts(use: Use) -> Iterator[Mistake]:
    path, involves = use.feedback_path, (use.path,)
    if use.compressor.built_in_feedback and use.feedback in ("none", "ef21"):
        yield Mistake(
            path,
            f'is "{use.feedback}", but {use.name} has its error feedback built in; use "auto"',
            involves,
        )
    plain = not isinstance(use.compressor, Codec) and not use.compressor.built_in_feedback
    if plain and use.feedback not in ("auto", "none"):
        yield Mistake(
            path,
            f'is "{use.feedback}", but {use.name} keeps nothing from step to step; use "auto"',
            involves,
        )
    if use.feedback not in ("auto", "none") and isinstance(use.compressor, Codec):
        bias = use.compressor.bias(TYPICAL_ELEMS)
        if isinstance(bias, Unbiased) and use.feedback == "error":
            yield Mistake(
                path,
                f'is "error", but {use.name} is unbiased as configured, and its residual would '
                f'grow without bound; use "auto", "scaled" or "none", or the biased form of '
                f"{use.name}",
                involves,
            )
        if isinstance(bias, Biased):
            yield Mistake(
                path,
                f'is "{use.feedback}", but {use.name} is no contraction as configured, and its '
                'error would grow without bound; use "auto" or "none"',
                involves,
            )


def _kind_conflicts(use: Use, kind: str) -> Iterator[Mistake]:
    reason = _why_not(use.compressor, kind)
    if reason:
        yield Mistake(_KIND, f'is "{kind}", but {reason}; use "auto"', ((*use.path, "name"),))


def _sum_conflicts(use: Use, kind: str) -> Iterator[Mistake]:
    """What a sum rounds away on its way would be in nobody's residual."""
    sums = use.compressor.reduce if isinstance(use.compressor, Codec) else None
    fed = use.feedback in ("error", "scaled")
    if fed and kind == "all_reduce" and sums and sums.dtype.itemsize < 4:
        yield Mistake(
            use.feedback_path,
            f'is "{use.feedback}", but the sum of {use.name} by exchange.kind = "all_reduce" '
            f"rounds in {str(sums.dtype).removeprefix('torch.')}, which no residual can keep; use "
            '"none", or exchange.kind = "auto"',
            (_KIND,),
        )


def _estimate_conflicts(use: Use, kind: str) -> Iterator[Mistake]:
    """Whoever shall keep the mean of all estimates must see every change."""
    if use.feedback == "ef21" and kind in ("all_reduce", "scatter_reduce", "per_hop"):
        yield Mistake(
            use.feedback_path,
            f'is "ef21", for which every payload must reach every rank, but exchange.kind is '
            f'"{kind}"; use exchange.kind = "auto"',
            (_KIND,),
        )


def _entropy_conflicts(config: Settings, uses: Sequence[Use]) -> Iterator[Mistake]:
    """Somebody's payloads must be there to be shortened, and the library that does it."""
    level, path = config.exchange.entropy_level, ("exchange", "entropy_level")
    if not level:
        return
    missing = missing_library()
    if missing:
        yield Mistake(path, f"is {level}, but {missing}")
    transport = config.exchange.transport
    if all(row.device for row in meant(transport)):
        yield Mistake(
            path,
            f'is {level}, but exchange.transport = "{transport}" moves payloads from GPU to GPU, '
            "and they are coded in the host's memory, at less than 1 GB a second; "
            f'"{USUAL}" fills every network on which that pays: use "{USUAL}", or 0',
            (_TRANSPORT,),
        )
    codecs = (use.compressor for use in uses if isinstance(use.compressor, Codec))
    if not any(can_shorten(codec, config.exchange.kind) for codec in codecs):
        names = ", ".join(dict.fromkeys(use.name for use in uses))
        yield Mistake(
            path,
            f"is {level}, but nothing that {names} sends can be shortened: it is summed on its "
            "way, or exchanged in rounds of its own; use 0",
            (_KIND, *(use.path for use in uses)),
        )


def _order_conflicts(config: Settings, uses: Sequence[Use]) -> Iterator[Mistake]:
    """Whoever shares the model's process group launches all at once, and waits for no number."""
    transport, path = config.exchange.transport, ("exchange", "order")
    if config.exchange.order == "own":
        return
    if not any(row.device for row in meant(transport)):
        yield Mistake(
            path,
            f'is "stream", but exchange.transport = "{transport}" launches nothing on a GPU: it '
            'meets no collective there; use "own"',
            (_TRANSPORT,),
        )
    strategy = config.strategy and config.strategy.name
    if strategy not in (None, "hook"):
        yield Mistake(
            path,
            f'is "stream", which is for the hook, but strategy.name is "{strategy}"; use "own"',
            (("strategy", "name"),),
        )
    for use in uses:
        codec = use.compressor
        if isinstance(codec, Codec) and isinstance(codec.size, Bounded):
            yield Mistake(
                path,
                f'is "stream", but payloads of {codec.name} vary in length, which the host waits '
                'for; use "own", or topk, whose payloads do not',
                (use.path,),
            )


_NO_VELOCITY = {
    "scatter_reduce": "in a scatter-reduce every rank contributes its own shard whole, which "
    "leaves no velocity there",
    "per_hop": "where sums are encoded at every hop no rank knows what became of its own velocity",
}


def _momentum_conflicts(config: Settings) -> Iterator[Mistake]:
    factor, why = config.momentum.factor, _NO_VELOCITY.get(config.exchange.kind)
    if factor and why:
        text = f'is {factor:g}, but {why}; use exchange.kind = "auto"'
        yield Mistake(("momentum", "factor"), text, (_KIND,))


def _warmup_conflicts(config: Settings) -> Iterator[Mistake]:
    """A schedule of densities takes the place of another compressor."""
    warm, path = config.warmup, ("warmup", "densities")
    if not warm.densities:
        return
    if warm.steps < len(warm.densities):
        yield Mistake(
            path,
            f"names {len(warm.densities)} densities for {warm.steps} steps; each needs a step",
            (("warmup", "steps"),),
        )
    if warm.compressor.name != "none":
        yield Mistake(
            path,
            f"is given beside warmup.compressor = {warm.compressor.name}; only one of them can "
            "send the first steps",
            (("warmup", "compressor"),),
        )
    builds = [config.compressor.build(), *(rule.compressor.build() for rule in config.rules)]
    if not any(has_density(compressor) for compressor in builds):
        yield Mistake(
            path,
            f"is given, but {', '.join(dict.fromkeys(c.name for c in builds))} has no density; use "
            "warmup.compressor, or a sparse compressor",
        )


def _why_not(compressor: Compressor, kind: str) -> str:
    """Return why payloads can not be exchanged in this way; nothing if they can."""
    name = compressor.name
    if not isinstance(compressor, Codec):
        own = kind not in ("auto", "all_reduce")
        return f"{name} exchanges in rounds of its own" if own else ""
    whole = compressor.granularity in (Granularity.PARAMETER, Granularity.MATRIX)
    if kind in ("scatter_reduce", "per_hop") and whole:
        return f"the statistics of {name} span a whole parameter, which no rank may cut"
    if kind == "all_reduce" and compressor.reduce is None:
        return f"payloads of {name} can not be summed before they are decoded"
    if kind == "per_hop" and not isinstance(compressor.size, Fixed):
        return f"the length of a payload of {name} is not known beforehand"
    return ""


def _hop_conflicts(config: Settings) -> Iterator[Mistake]:
    """No backend encodes on the way, and a host's own messages are told apart by one algorithm."""
    exchange = config.exchange
    if exchange.kind == "per_hop" and exchange.algorithm == "backend":
        yield Mistake(
            _ALGORITHM,
            'is "backend", but no backend decodes and encodes at every hop; use "auto", or another '
            "algorithm",
            (_KIND,),
        )
    apart = exchange.kind == "per_hop" and exchange.algorithm == "hierarchical"
    if exchange.inside != "none" and not apart:
        yield Mistake(
            ("exchange", "inside"),
            f'is "{exchange.inside}", but only with exchange.kind = "per_hop" and '
            'exchange.algorithm = "hierarchical" do messages within a host differ from others; use '
            '"none"',
            (_KIND, _ALGORITHM),
        )


def _wire_id_conflicts(uses: Iterable[Use]) -> Iterator[Mistake]:
    """Two packages that do not know of each other may have chosen the same number."""
    first: dict[int, Use] = {}
    for use in uses:
        if isinstance(use.compressor, Codec):
            other = first.setdefault(use.compressor.wire_id, use)
            if type(other.compressor) is not type(use.compressor):
                yield Mistake(
                    use.path,
                    f"{use.name} has the wire id {use.compressor.wire_id}, as {other.name} has, so "
                    "that payloads could be taken for each other; use only one of the two, until "
                    "the package of one has chosen another number",
                    (other.path,),
                )


def _exchange_conflicts(config: Settings) -> Iterator[Mistake]:
    exchange = config.exchange
    chunk, credit = exchange.chunk_bytes, exchange.credit_bytes
    if chunk is not None and credit is not None and credit < chunk:
        yield Mistake(
            ("exchange", "credit_bytes"),
            f"is {credit}, less than one chunk; must be at least chunk_bytes = {chunk}",
            (("exchange", "chunk_bytes"),),
        )
    rows = meant(exchange.transport)
    if exchange.connections > 1 and not any(row.connections for row in rows):
        yield Mistake(
            ("exchange", "connections"),
            f"is {exchange.connections}, but the transport {exchange.transport} makes its own; use "
            f'exchange.transport = "{USUAL}", or leave it out',
            (_TRANSPORT,),
        )
    if exchange.broadcast == "multicast" and all(row.ordered for row in rows):
        yield Mistake(
            ("exchange", "broadcast"),
            f'is "multicast", which asks for lost packets by messages that come in any order, and '
            f'exchange.transport = "{exchange.transport}" has none; use "{USUAL}"',
            (_TRANSPORT,),
        )
    if exchange.silence_s <= 2 * exchange.heartbeat_s:
        yield Mistake(
            ("exchange", "silence_s"),
            f"is {exchange.silence_s:g}; must be more than two heartbeats, "
            f"{2 * exchange.heartbeat_s:g} s, or a healthy rank would be taken for lost",
            (("exchange", "heartbeat_s"),),
        )
