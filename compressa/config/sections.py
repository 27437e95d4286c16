"""The sections of the configuration, one model each; see `Config` for how they go together."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, BeforeValidator, Field, JsonValue

from compressa.codecs.entropy import MOST_LEVEL
from compressa.collectives.algorithms import ALGORITHMS
from compressa.collectives.broadcast import BROADCASTS
from compressa.config.base import Listed, OneOf, Section
from compressa.config.choices import AnyCompressor, choice
from compressa.config.values import (
    BitsPerSecond,
    BurstBytes,
    Count,
    FewSteps,
    Heartbeat,
    Norm,
    Seconds,
    Silence,
    UnitBytes,
    WireBytes,
    link_name,
    meeting_place,
)
from compressa.schedulers import POLICIES, Policy
from compressa.transports.table import AUTO, AUTO_SUMMARY, TRANSPORTS, Entry

FeedbackKind = Literal["auto", "error", "scaled", "ef21", "none"]
ExchangeKind = Literal["auto", "all_reduce", "all_gather", "scatter_reduce", "per_hop"]

NONE: dict[str, JsonValue] = {"default": {"name": "none"}}


def none() -> AnyCompressor:
    """Return the choice of no compression."""
    return choice("none")


def _summaries(rows: Iterable[Entry | Policy]) -> str:
    return "; ".join(f"{row.name}: {row.summary}" for row in rows)


def _which(fact: str) -> str:
    """Return the transports of which something is true."""
    return " or ".join(name for name, row in TRANSPORTS.items() if getattr(row, fact))


def _text_path(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


class Feedback(Section):
    """What becomes of what was not sent."""

    kind: FeedbackKind = Field(
        default="auto",
        description="auto: as the compressor needs; error: keep it and send it later, with any "
        "compressor; scaled: as error, and unbiased ones are scaled by 1 / (1 + omega) for it; "
        "ef21: send changes of an estimate instead; none: lose it.",
    )
    owner: bool = Field(
        default=True, description="In a scatter-reduce, the owner keeps the error of the mean too."
    )
    dtype: Literal["float32", "bfloat16", "int8"] = Field(
        default="float32",
        description="What residuals are kept as; int8: with a scale for each block of 256.",
    )
    decay: Annotated[float, Ge(0), Le(1)] = Field(
        default=1.0, description="What a residual is multiplied by before it is added."
    )
    beta: Annotated[float, Gt(0), Le(1)] = Field(
        default=1.0, description="Share of the new error in a residual; less than 1 averages."
    )
    reset_steps: Count = Field(
        default=0, description="Residuals are dropped in every so manieth step; 0 for never."
    )


class Momentum(Section):
    """Momentum before compression, in place of the optimizer's, which must have none then."""

    factor: Annotated[float, Ge(0), Lt(1)] = Field(
        default=0.0, description="Share of the velocity that stays in each step; 0 for no momentum."
    )
    masking: bool = Field(
        default=True, description="The velocity starts anew where something was sent."
    )
    clip_norm: Norm | None = Field(
        default=None,
        description="Norm to which each parameter's gradient is cut before it is added, times "
        "P^-1/2 for P ranks. Not given: nothing is cut.",
    )


class Warmup(Section):
    """Sends the first steps in another way, while gradients change quickly."""

    steps: Count = Field(default=0, description="Number of such steps; 0 for none.")
    compressor: AnyCompressor = Field(
        default_factory=none, description="What sends them.", json_schema_extra=NONE
    )
    densities: Annotated[
        tuple[Annotated[float, Gt(0), Le(1)], ...],
        Listed(),
    ] = Field(
        default=(),
        description="In place of that: the densities that a sparse compressor has in turn in these "
        "steps, which are shared out equally.",
    )


class DenseBelow(Section):
    """Exempts small parameters, on which compression gains nothing."""

    elems: Count = Field(
        default=1024, description="A parameter with fewer elements is sent dense; 0 exempts none."
    )


class Exchange(Section):
    """How payloads cross the network."""

    transport: Annotated[str, OneOf(TRANSPORTS, (AUTO,))] = Field(
        default=AUTO,
        description=f"{_summaries(TRANSPORTS.values())}; {AUTO}: {AUTO_SUMMARY}.",
    )
    kind: ExchangeKind = Field(
        default="auto",
        description="auto: the cheapest that the compressor allows; scatter_reduce: each rank "
        "sums a part and shares it compressed; per_hop: payloads are decoded, added and encoded "
        "anew at every hop of exchange.algorithm.",
    )
    order: Literal["own", "stream"] = Field(
        default="own",
        description="own: exchanges by NCCL have a communicator of their own, beside the "
        "collectives of the model's; stream: the thread that hands gradients over launches them "
        "on the model's process group, in one order with its own collectives "
        "(docs/guides/gpu.md). Not tried on a GPU yet.",
    )
    algorithm: Annotated[str, OneOf(ALGORITHMS, ("auto", "backend", "hierarchical"))] = Field(
        default="auto",
        description="How sums of plain values cross the network (compressor none, fp16, bf16, and "
        "what else a plain all-reduce may sum), and sums of kind per_hop: backend: as Gloo, NCCL "
        "or MPI sums by itself, plain values only; the others are compressa's own (hierarchical: "
        "by ring within each host, directly across hosts). auto: by exchange.link, if it is given; "
        f"else, where sums are lowered ({_which('lowers')}), all_to_all where a rank sends 16 KiB "
        "at most, round_robin below 1 MiB or where schedule.policy is not fifo, and from there on "
        "halving_doubling for a power of two of ranks and ring for others; elsewhere the backend's "
        "from 1 MiB on, if it has one and policy is fifo, and round_robin below; for kind "
        "per_hop, whatever the link, halving_doubling up to 16 KiB and for a power of two of "
        "ranks, else ring.",
    )
    inside: Literal["none", "bf16", "fp16"] = Field(
        default="none",
        description="What makes the messages within a host smaller, with kind per_hop and "
        "algorithm hierarchical; across hosts the compressor does.",
    )
    link: Annotated[str | None, BeforeValidator(_text_path)] = Field(
        default=None,
        description='A file of `compressa link` for this network: algorithm = "auto" then '
        "takes what is predicted to be fastest for the size of a sum of plain values or of an "
        "all-gather, and the number of ranks. Only rank 0's counts; checkpoints keep its figures, "
        "and a resumed run of as many ranks goes on with them.",
    )
    broadcast: Annotated[str, OneOf(BROADCASTS, ("auto", "multicast"))] = Field(
        default="auto",
        description="How compressa.broadcast brings parameters to ranks that lack them: along a "
        "ring in chunks; down a tree, each rank doubling those that have them (k_nomial); shared "
        "out, then gathered (scatter); round a ring that all sources feed (multi_source); by IP "
        "multicast on the interface that GLOO_SOCKET_IFNAME names, what is lost being sent again. "
        "auto: by size and number of ranks, never multicast.",
    )
    unit_bytes: UnitBytes | None = Field(
        default=None,
        description="Least dense bytes of gradient that are compressed and sent together. Not "
        "given: 4 MiB, or up to 32 MiB where that was measured to be faster, and 25 MiB where GPUs "
        "exchange among themselves; or, where schedule.policy is not fifo, 1/16 of what has not "
        "come yet of the parameters that are compressed alike, but no more than half of what has; "
        "at least 1/64 of all of them, 1 MiB (or 1/8 of all), and 64 KiB after compression, but no "
        "more than 3/4 of what has not.",
    )
    unit_payload_bytes: UnitBytes = Field(
        default=128 << 10,
        description="Least bytes that they have after compression, unless 8 unit_bytes do not "
        "yield so much; does not count where unit_bytes is left to the policy.",
    )
    unit_dense_bytes: UnitBytes | None = Field(
        default=None,
        description="Least bytes of gradient that are summed together where nothing compresses "
        "them. Not given: 25 MiB, and 1 MiB of the first, as much as buckets of "
        "DistributedDataParallel; or, where schedule.policy is not fifo, as for unit_bytes.",
    )
    entropy_level: Annotated[int, Ge(0), Le(MOST_LEVEL)] = Field(
        default=0,
        description="Level at which Zstandard shortens the payloads of codecs, without loss, where "
        "they are not summed on the way; 0: not at all, 1: fastest. Pays on slow links, not with "
        "transport nccl, and needs the library zstandard: pip install 'compressa[entropy]'.",
    )
    chunk_bytes: WireBytes | None = Field(
        default=None,
        description="Most bytes of a message that go out in one piece, between which more urgent "
        "ones overtake. Not given: 256 KiB; or, where schedule.policy is not fifo and "
        "exchange.link is given, what that link makes best.",
    )
    credit_bytes: WireBytes | None = Field(
        default=None,
        description="Most bytes handed over for one peer that more urgent ones cannot overtake; "
        "at least chunk_bytes. What a fast link sends meanwhile does not count. Not given: "
        "512 KiB; or, as for chunk_bytes, the least that keeps that link busy.",
    )
    connections: Annotated[int, Ge(1), Le(16)] = Field(
        default=1,
        description="Connections to every peer, which share the credit; of the transport "
        f"{_which('connections')}. More than 1 pays where each is limited, as in clouds, or a fast "
        "line is long.",
    )
    authenticate: bool = Field(
        default=False,
        description="Whether every frame has a MAC with a key from exchange.secret_file, so that "
        "only ranks are listened to; nothing is encrypted. With the transport "
        f"{_which('authenticated')} only; sums are then never left to the backend, whose messages "
        "have none.",
    )
    secret_file: Annotated[str | None, BeforeValidator(_text_path)] = Field(
        default=None,
        description="A file with the secret of exchange.authenticate: at least 16 bytes, the same "
        "on all ranks, which nobody but their user may read (chmod 600). It is read when ranks "
        "register, and never sent.",
    )
    deadline_s: Seconds = Field(
        default=1800.0,
        description="Longest wait, in seconds, for a rank that is alive and elsewhere, as where "
        "one alone evaluates; after 30 s a warning says who waits for whom. As long as torch's own "
        "for Gloo.",
    )
    start_s: Seconds = Field(
        default=300.0,
        description="Longest wait, in seconds, for a rank that does not come to registration, "
        "compressa.broadcast or handle.reform, before which nobody can tell whether it is alive; "
        "never more than deadline_s.",
    )
    heartbeat_s: Heartbeat = Field(default=2.0, description="Seconds between two signs of life.")
    silence_s: Silence = Field(
        default=60.0,
        description="A rank silent for so many seconds is lost; more than two heartbeats, and "
        "longer than anything that keeps Python's lock. One whose process has ended is lost at "
        "once.",
    )

    @property
    def start_wait_s(self) -> float:
        """Longest wait for a rank that does not come to a start."""
        return min(self.start_s, self.deadline_s)


class LinkSharing(Section):
    """A link that several jobs share: one sends while the others compute.

    Jobs that know the same name at the same place send in turns, a step at a time. A job that is
    alone does not wait.
    """

    name: Annotated[str, AfterValidator(link_name)] = Field(
        description="Of the link: letters, digits, dots, hyphens and underscores."
    )
    at: Annotated[str, AfterValidator(meeting_place)] = Field(
        description="Where the jobs meet: file:///folder, which they can all write to, or "
        "tcp://host:port, a TCPStore that the first job on that host serves."
    )
    longest_wait_s: Seconds = Field(
        default=10.0,
        description="Longest that a step waits for its turn; it waits for what a step usually "
        "takes, if that is less.",
    )


class Schedule(Section):
    """Which unit goes next, and how fast."""

    policy: Annotated[str, OneOf(POLICIES)] = Field(
        default="fifo",
        description=f"{_summaries(POLICIES.values())} (by exchange.link; priority without it). "
        "Chunks and the window are exchange.chunk_bytes and exchange.credit_bytes, whatever the "
        "policy. OverlappedDataParallel takes auto if not given.",
    )
    profile_steps: FewSteps = Field(
        default=5,
        description="How many steps are measured before the first plan that goes by measured times "
        "is made; each later one goes by as many.",
    )
    replan_steps: FewSteps = Field(
        default=100,
        description="After how many steps it is looked whether times have changed, and a new plan "
        "is made if they have.",
    )
    pace_bits_per_s: BitsPerSecond | None = Field(
        default=None,
        description="Most bits per second that the ranks of a host send together over one "
        "interface; sums are then never left to the backend, which cannot be paced. Not given: as "
        "fast as the network takes them.",
    )
    burst_bytes: BurstBytes | None = Field(
        default=None,
        description="Most bytes that leave at once where sending is paced; messages are cut to fit "
        "into it. Not given: what pace_bits_per_s brings in 1 ms, at least 16 KiB.",
    )
    server_bits_per_s: BitsPerSecond | None = Field(
        default=None,
        description="Bits per second that the port of a parameter server takes: its workers then "
        "push in time slots, one after the other. Not given: all at once.",
    )
    share: LinkSharing | None = Field(
        default=None, description="With which other jobs the link is shared; left out: with none."
    )

    @property
    def overtaking(self) -> bool:
        """Whether what is urgent shall go before what was ready earlier."""
        return POLICIES[self.policy].overtaking


class Engine(Section):
    """Where and with how many threads gradients are compressed."""

    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="Device of the gradients; auto: wherever they are."
    )
    threads: Annotated[int, Ge(1), Le(1 << 10)] | None = Field(
        default=None,
        description="Most threads that encode and decode. Not given: the cores that a rank may "
        "use, divided by the ranks that share them, and 8 at most.",
    )
    seed: Annotated[int, Ge(0), Lt(2**32)] = Field(
        default=0, description="Seed of all random bits; yours are left alone."
    )
    recover: bool = Field(
        default=False,
        description="Whether training can go on without ranks that were lost (handle.reform; "
        "strategies that average parameters do so by themselves): each step keeps a copy of what "
        "it changes, as large as the residuals.",
    )
    cuda_graphs: bool = Field(
        default=False,
        description="Whether what a unit launches on a GPU, if it is the same in each step, is "
        "captured as a CUDA graph and started by one call (docs/guides/gpu.md). Not tried on a GPU "
        "yet.",
    )


class Integrity(Section):
    """Whether all ranks still hold the same bits, which is compared beside training.

    By the hook and by OverlappedDataParallel: parameters, buffers where rank 0's are brought to
    all, and what compressors keep that is the same on all ranks. Workers of a parameter server
    pull what they hold, and are not compared.
    """

    every: Count = Field(
        default=100, description="Steps from one comparison to the next, from step 0 on; 0: none."
    )
    on_mismatch: Literal["raise", "warn", "repair"] = Field(
        default="raise",
        description="raise: end the training with a StateError that names rank, tensor and step, "
        "on all ranks; warn: say so and go on; repair: also bring what more than half of the ranks "
        "hold to the others; without such a majority, raise. What the optimizer keeps is neither "
        "compared nor repaired.",
    )


class Trace(Section):
    """What is recorded."""

    path: Annotated[str | None, BeforeValidator(_text_path)] = Field(
        default=None,
        description="Where each rank writes its trace, with its number in the name; left out: "
        "nowhere.",
    )
    steps: Annotated[tuple[Count, Count], Listed()] | None = Field(
        default=None,
        description="The first and the last step that are recorded; all if left out.",
    )
