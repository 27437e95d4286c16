"""entropy: shorter without loss where that is possible, and no bomb goes off."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import zstandard
from compressor_cases import ALL

from compressa.aggregators import choose_exchange
from compressa.codecs import (
    QSGD,
    Codec,
    Entropy,
    Fp16,
    Int2,
    Int4,
    Int8,
    Natural,
    NoCompression,
    OneBit,
    OneBitSGD,
    TernGrad,
    TopK,
)
from compressa.codecs.entropy import can_shorten
from compressa.config import assign, load_config
from compressa.errors import ConfigError, PayloadError
from compressa.parameters import ParameterInfo
from compressa.testing.allocation import allocations, check_codec_allocations
from compressa.testing.codec_checks import DRAW, decoded, encoded
from compressa.testing.inputs import MODEL, generator
from compressa.wrappers import EF21, ErrorFeedback

X = torch.randn(50_000, generator=generator(1))
ELEMS = 1000
CODEC = Entropy(codec=Int8())  # of 1000 elements: four floats, 1000 codes
HELD = bytes(1016)
MAGIC = bytes.fromhex("28b52ffd")


def payload_of(body: bytes, flag: int = 1) -> torch.Tensor:
    return torch.tensor([*body, flag], dtype=torch.uint8)


def frame(held: bytes, *, says: int | None = None, blocks: bytes | None = None) -> bytes:
    """A frame of one segment whose size takes four bytes, and of one run of zeros."""
    run = (len(held) << 3 | 0b011).to_bytes(3, "little") + b"\0"
    size = len(held) if says is None else says
    return MAGIC + b"\xa0" + size.to_bytes(4, "little") + (run if blocks is None else blocks)


def refused(payload: torch.Tensor, codec: Codec = CODEC) -> str:
    """Return why; nothing may have been written."""
    out = torch.full((ELEMS,), 3.0)
    messages = set()
    for way in (
        lambda: codec.check(payload, ELEMS),
        lambda: codec.decode(payload, out, DRAW),
        lambda: codec.decode_add(payload, out, 0.5, DRAW),
    ):
        with pytest.raises(PayloadError) as caught:
            way()
        messages.add(str(caught.value))
    assert (out == 3.0).all()
    assert len(messages) == 1
    return messages.pop()


@pytest.mark.parametrize("elems", [0, 1, 5, 1000, 50_000])
@pytest.mark.parametrize("codec", [Int8(), Int2(), OneBit(), TopK()], ids=lambda codec: codec.name)
def test_nothing_is_lost(codec: Codec, elems: int) -> None:
    coded, x = Entropy(codec=codec), X[:elems]
    plain = decoded(codec, encoded(codec, x), elems)
    assert torch.equal(decoded(coded, encoded(coded, x), elems), plain)


@pytest.mark.parametrize(
    ("codec", "share"),
    [
        (Int8(), 0.95),
        (Int4(), 0.95),
        (Int2(), 0.7),
        (QSGD(), 0.5),
        (TernGrad(), 0.8),
        (Natural(), 0.6),
        (Fp16(), 0.95),
    ],
    ids=lambda value: value.name if isinstance(value, Codec) else str(value),
)
def test_codes_of_gaussians_get_shorter(codec: Codec, share: float) -> None:
    payload = encoded(Entropy(codec=codec), X)
    assert payload[-1] == 1
    assert payload.numel() < share * codec.wire_bytes(X.numel())


def test_what_does_not_get_shorter_is_sent_as_it_is() -> None:
    codec, noise = OneBit(), torch.randn(997, generator=generator(2))
    payload = encoded(Entropy(codec=codec), noise)
    assert torch.equal(payload[:-1], encoded(codec, noise))
    assert payload[-1] == 0


def repeats() -> torch.Tensor:
    x = torch.arange(256) % 5 - 1.0
    x[100:140] = torch.tensor([3.0, 1, 0, 0, 2, 1, 0, -1]).repeat(5)
    return x


def unlike() -> torch.Tensor:
    """Whole numbers in no order, most of them small."""
    i = torch.arange(256)
    k = (i * i * i * 7919 + i * 31) % 1009
    x = (k * k // 150_000).float()
    x[0] = 127.0
    return x


def test_a_payload_in_no_frame_has_golden_bytes() -> None:
    x = torch.tensor([127.0, -3.5, 0.25, 1.5, -64.0, 0.0, 2.0, -1.0, 7.0, -7.0, 3.0])
    payload = encoded(Entropy(codec=Int8(block=8)), x)
    assert bytes(payload.tolist()).hex() == "0000803f87c3613d7ffc0002c00002ff7f8136" + "00"


# What a frame decodes to is fixed by its format. Its own bytes are not: the library finds shorter
# ones as it gets better. So these frames are read, and not compared with what is written today.
FRAMES = {
    # Matches; then Huffman codes.
    "28b52ffd601000150100880683c13cd6002a557f7f2a0000552a00d60500627cc00a3381159c33caa4e71c1101": (
        Int8(block=64),
        repeats(),
    ),
    (
        "28b52ffd600400750300220f180fb025690c1c860148929493bdb79429e39126a4e69cdbce4698f7"
        "e5146f2ea2162d9a11b62839ca49d2b044d0d91089364773c892f188c7cddba5d46ab1a16cd285e2"
        "936baf6884b09df0a630a44c47bb8a71b227c55229ae88550519401038030067c8c2813526c95414"
        "01"
    ): (Int8(block=256), unlike()),
}


@pytest.mark.parametrize(("coded", "what"), FRAMES.items(), ids=["matches", "huffman"])
def test_frames_that_were_written_once_are_read_for_ever(
    coded: str, what: tuple[Codec, torch.Tensor]
) -> None:
    codec, x = what
    payload = torch.tensor([*bytes.fromhex(coded)], dtype=torch.uint8)
    out = decoded(Entropy(codec=codec), payload, x.numel())
    assert torch.equal(out, decoded(codec, encoded(codec, x), x.numel()))


def test_bytes_do_not_depend_on_what_was_coded_before() -> None:
    codec = Entropy(codec=Int4(), level=3)
    first = encoded(codec, X)
    for other in (X[:3], 5 * X[:20_000].round(), X.flip(0)):
        encoded(codec, other)
        encoded(Entropy(codec=OneBit(), level=3), other)
    assert torch.equal(encoded(codec, X), first)
    with ThreadPoolExecutor(3) as pool:
        assert all(torch.equal(p, first) for p in pool.map(lambda _: encoded(codec, X), range(6)))


@pytest.mark.parametrize("level", [1, 5, 9])
def test_every_level_reads_what_any_wrote(level: int) -> None:
    payload = encoded(Entropy(codec=Int4(), level=level), X)
    plain = decoded(Int4(), encoded(Int4(), X), X.numel())
    assert torch.equal(decoded(Entropy(codec=Int4()), payload, X.numel()), plain)


def test_a_frame_as_the_format_describes_it_is_read() -> None:
    for body in (frame(HELD), zstandard.compress(HELD), zstandard.compress(HELD, 19)):
        assert not decoded(CODEC, payload_of(body), ELEMS).any()


def test_a_bomb_is_refused_without_its_memory() -> None:
    decoded(CODEC, encoded(CODEC, X[:ELEMS]), ELEMS)
    honest = zstandard.compress(bytes(200_000_000))
    liar = honest[:4] + b"\xa0" + (1016).to_bytes(4, "little")
    liar += honest[zstandard.frame_header_size(honest) :]
    assert len(honest) < 20_000
    elems = 20_000  # so that the frame is shorter than what it says, and than a payload may be
    out = torch.full((elems,), 3.0)
    wide = liar[:5] + (20_316).to_bytes(4, "little") + liar[9:]
    for bomb, why in ((honest, "to be remembered"), (wide, "too small|corrupted")):
        with allocations() as seen, pytest.raises(PayloadError, match=f"entropy: .*({why})"):
            CODEC.decode(payload_of(bomb), out, DRAW)
        assert seen.total_bytes < 300_000
    assert (out == 3.0).all()


def coder(**parameters: int) -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(**parameters)
    )


def of_unknown_size(held: bytes, window_log: int) -> bytes:
    writing = coder(window_log=window_log).compressobj()
    return writing.compress(held) + writing.flush()


def with_a_size(body: bytes, held: int) -> bytes:
    """Add to a header what an encoder of unknown size leaves out."""
    assert body[4] == 0
    return body[:4] + b"\x80" + body[5:6] + held.to_bytes(4, "little") + body[6:]


SHARED = bytes(i * i * 7919 % 1009 % 256 for i in range(len(HELD)))
DICTIONARY = zstandard.ZstdCompressionDict(SHARED)  # without a number, so that no flag tells
GOOD = frame(HELD)
# What comes, without the flag 1 that ends it, and why it is refused.
UNFIT = {
    "only a flag": (b"", "no frame"),
    "only a magic number": (MAGIC, "no frame"),
    "no frame": (bytes(50), "no frame"),
    "a skippable frame": (b"\x50\x2a\x4d\x18" + bytes([9, 0, 0, 0]) + bytes(9), "no "),
    "half a header": (MAGIC + b"\xe0" + bytes(4), "entropy: "),
    "too little": (frame(HELD[:-1]), "exactly 1016"),
    "too much": (frame(HELD + b"\0"), "at most 1016"),
    "says too little": (frame(HELD, says=1015), "entropy: "),
    "says too much": (frame(HELD[:-1], says=1016), "entropy: "),
    "of unknown size": (of_unknown_size(HELD, 20), "entropy: .* says it holds [0-9]{20};"),
    "a large window": (
        with_a_size(of_unknown_size(HELD, 27), 1016),
        "134217728 bytes to be remembered",
    ),
    "cut off": (zstandard.compress(HELD)[:-3], "ends at byte"),
    "a byte after it": (GOOD + b"\0", "ends at byte 13 of 14"),
    "a frame after it": (GOOD + GOOD, "ends at byte 13 of 26"),
    "an empty frame after it": (GOOD + frame(b"", blocks=b"\1\0\0"), "ends at byte 13"),
    "no last block": (frame(HELD, blocks=b"\x00\x00\x00" * 3), "ends at byte"),
    "a block of no kind": (frame(HELD, blocks=b"\x0f\0\0\0"), "no known kind"),
    "a block that is cut off": (frame(HELD, blocks=b"\xfd\x1f\0\0"), "ends at byte"),
    "a checksum": (coder(write_checksum=1).compress(HELD), "flags"),
    "a dictionary": (
        zstandard.ZstdCompressor(dict_data=DICTIONARY).compress(SHARED),
        "zstd decompress error",
    ),
    "a dictionary's number": (MAGIC + b"\xa1\x07" + GOOD[5:], "flags 0xa1"),
    "no shorter than it was": (
        frame(HELD[:900], blocks=(900 << 3 | 1).to_bytes(3, "little") + HELD[:900]),
        "must be more than it has itself",
    ),
}


def test_what_has_no_right_flag_is_refused() -> None:
    assert "without a byte" in refused(torch.empty(0, dtype=torch.uint8))
    assert "neither 0 nor 1" in refused(payload_of(GOOD, flag=2))
    assert "exactly 1016" in refused(payload_of(HELD[:-1], flag=0))
    assert "at most 1017" in refused(payload_of(HELD + b"\0", flag=0))


@pytest.mark.parametrize(("body", "why"), UNFIT.values(), ids=UNFIT)
def test_anything_but_one_whole_frame_is_refused(body: bytes, why: str) -> None:
    message = refused(payload_of(body))
    assert re.search(why, message), message


def test_what_a_frame_holds_is_checked_as_if_it_had_come_alone() -> None:
    codec = TopK(density=0.05)
    raw = encoded(codec, X[:ELEMS]).numpy().tobytes()
    values, indices = raw[:200], raw[200:]
    wrong = values + b"\xff" * len(indices)
    body = frame(wrong, blocks=(len(wrong) << 3 | 1).to_bytes(3, "little") + wrong)
    coded = zstandard.compress(wrong)
    assert len(coded) < len(wrong) < len(body)
    assert "topk: " in refused(payload_of(coded), Entropy(codec=codec))


def test_no_memory_is_asked_for_once_it_is_warm() -> None:
    check_codec_allocations(Entropy(codec=Int8()))


def test_it_declares_what_the_codec_does() -> None:
    for codec in (c for c in ALL.values() if isinstance(c, Codec)):
        coded = Entropy(codec=codec)
        assert coded.bias(5000) == codec.bias(5000)
        assert coded.wire_bytes(5000) == codec.wire_bytes(5000) + 1
        assert coded.reduce is None
        for fact in ("granularity", "block_elems", "shared_stream", "conserves_mass"):
            assert getattr(coded, fact) == getattr(codec, fact)
        for fact in ("error_feedback", "takes_half"):
            assert getattr(coded, fact) == getattr(codec, fact)
        assert coded.fused.splits_feedback == codec.fused.splits_feedback


def test_the_codec_looks_at_the_parameter() -> None:
    matrix = ParameterInfo(0, "weight", (30, 50))
    looked = OneBitSGD().for_parameter(matrix)
    assert looked != OneBitSGD()
    assert Entropy(codec=OneBitSGD(), level=2).for_parameter(matrix) == Entropy(
        codec=looked, level=2
    )


def test_without_the_library_it_is_refused_with_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "c.toml"
    file.write_text('compressor = "int8"\n[exchange]\nentropy_level = 1\n')
    load_config(file)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ConfigError, match=r"line 3: .*pip install 'compressa\[entropy\]'"):
        load_config(file)
    with pytest.raises(ConfigError, match=r"entropy: .*pip install 'compressa\[entropy\]'"):
        Entropy(codec=Int8())
    load_config({"compressor": "int8"})


def test_the_library_is_not_imported_before_it_is_needed() -> None:
    text = (
        "import sys, compressa\n"
        "from compressa.codecs import Entropy, Int8\n"
        "from compressa.config import load_config\n"
        "load_config({'compressor': 'int8'})\n"
        "assert 'zstandard' not in sys.modules\n"
        "load_config({'compressor': 'int8', 'exchange': {'entropy_level': 1}})\n"
        "assert 'zstandard' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize(
    "exchange", ["auto", "all_reduce", "all_gather", "scatter_reduce", "per_hop"]
)
def test_what_is_summed_on_its_way_is_left_alone(exchange: str, size: int) -> None:
    for codec in (c for c in ALL.values() if isinstance(c, Codec)):
        dense = isinstance(codec, NoCompression)
        summed = choose_exchange(codec, size, exchange) in ("all_reduce", "per_hop") or dense
        assert can_shorten(codec, exchange) == (not summed)


def test_a_configuration_puts_it_under_the_feedback() -> None:
    chosen = {"exchange": {"entropy_level": 3}, "dense_below": {"elems": 0}}
    for kind, wrapper in (("error", ErrorFeedback), ("ef21", EF21)):
        config = load_config({"compressor": "int8", "feedback": {"kind": kind}, **chosen})
        compressor = assign(config, MODEL)[MODEL[0].name]
        assert isinstance(compressor, wrapper)
        assert compressor.codec == Entropy(codec=Int8(), level=3)
    rules = [{"match": {"name": "*"}, "compressor": "randomk"}]
    config = load_config({"compressor": "int8", "rules": rules, **chosen})
    compressor = assign(config, MODEL)[MODEL[0].name]
    assert isinstance(compressor, ErrorFeedback)
    assert not isinstance(compressor.codec, Entropy)


@pytest.mark.parametrize("name", ["none", "randomk", "powersgd"])
def test_a_configuration_in_which_it_does_nothing_is_refused(name: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"exchange.entropy_level: is 1, but nothing that {name}"
    ):
        load_config({"compressor": name, "exchange": {"entropy_level": 1}})
