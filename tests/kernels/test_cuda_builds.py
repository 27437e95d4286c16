"""Every CUDA source compiles for the GPUs that are meant, and spills no register to speak of."""

from __future__ import annotations

import re
from importlib.metadata import version

import nvrtc
import pytest
from compressa.kernels.cuda._device import HOME, OPTIONS, source_text
from compressa.kernels.cuda._gpu import _KERNEL
from cuda_occupancy import (
    ALIGNED,
    ASKED_AHEAD,
    CASTS,
    DECODERS,
    IN_REGISTERS,
    STREAMS,
    SUMS,
    VECTORS,
    Stream,
    Vectors,
    body,
    resident_warps,
    under_way,
    vector_runs,
)
from cuda_registers import (
    ARCHITECTURES,
    SOURCES,
    TABLE,
    built,
    called_spills,
    digest,
    floor_of,
    floors,
    listed,
    listed_spills,
    needs,
)
from emulated_cuda import HEADER

MOST_SPILLED_BYTES = 32
MOST_FRAME_BYTES = 32  # as those spill
CALLERS = {
    r"blockwise: quantize_[48](_at_random)?_of_(128|256)": 88,
    r"multi_tensor: quantize_many_at_random_\d_of_(128|256|512)": 144,
}
"""What calls a function for groups that are not whole or not even, and that function's frame."""
CALLED_SPILLS = {
    r"blockwise: quantize_[48](_at_random)?_of_(128|256)": 116,
    r"multi_tensor: quantize_many_at_random_\d_of_(128|256|512)": 164,
}
"""What calls a function that spills, and the bytes of it: no kernel does where all is even."""
COMPILED_HERE = "sm_90"  # the others are compiled when the table is made

needs_nvrtc = pytest.mark.skipif(
    nvrtc.library() is None, reason="NVRTC is not installed: pip install nvidia-cuda-nvrtc"
)


def page() -> str:
    return TABLE.read_text(encoding="utf-8")


@pytest.mark.parametrize("source", SOURCES)
def test_each_source_was_compiled_for_all_as_it_is(source: str) -> None:
    assert f"| {source} | {digest(source, page())} |" in page(), (
        "run python tests/cuda_registers.py"
    )


def test_a_number_that_no_compiler_has_said_is_noticed() -> None:
    (name, registers), *_ = re.findall(r"^\| topk \| (\w+) \| (\d+)", page(), re.MULTILINE)
    row = f"| topk | {name} | "
    forged = page().replace(f"{row}{registers}", f"{row}{int(registers) - 1}")
    assert digest("topk", forged) != digest("topk", page())


@needs_nvrtc
def test_all_were_compiled_by_the_compiler_that_is_installed() -> None:
    made_by = f"with\nNVRTC {version('nvidia-cuda-nvrtc')}."
    assert made_by in page(), "run python tests/cuda_registers.py"


def test_nothing_spills_to_speak_of() -> None:
    found = list(listed(page()))
    assert {architecture for architecture, _ in found} == set(ARCHITECTURES)
    assert not [one for one in found if one[1].spilled_bytes > MOST_SPILLED_BYTES]


def test_no_thread_has_a_stack_to_speak_of() -> None:
    for architecture, one in listed(page()):
        called = [most for name, most in CALLERS.items() if re.fullmatch(name, one.name)]
        assert one.frame_bytes <= max([MOST_FRAME_BYTES, *called]), (architecture, one.name)


def test_functions_that_are_called_spill_no_more_than_is_known() -> None:
    found = list(listed_spills(page()))
    assert {architecture for architecture, *_ in found} == set(ARCHITECTURES)
    for architecture, name, spilled in found:
        known = [most for kernel, most in CALLED_SPILLS.items() if re.fullmatch(kernel, name)]
        assert spilled <= max([MOST_SPILLED_BYTES, *known]), (architecture, name)


def test_no_kernel_loses_half_of_the_warps_that_share_a_multiprocessor() -> None:
    held_to = floors(page())
    found = {(architecture, one.name): one.warps for architecture, one in listed(page())}
    assert set(held_to) == set(found)
    fewer = {
        which: (warps, held_to[which]) for which, warps in found.items() if warps < held_to[which]
    }
    assert not fewer, "warps, and those that it is held to: see tests/cuda_registers.py"
    assert not [which for which, warps in found.items() if held_to[which] < floor_of(warps)]


@pytest.mark.parametrize(
    ("warps", "floor"), [(64, 40), (48, 32), (40, 24), (32, 24), (24, 16), (16, 16), (8, 8)]
)
def test_half_as_many_warps_are_too_few(warps: int, floor: int) -> None:
    assert floor_of(warps) == floor
    assert warps // 2 < floor <= warps


@needs_nvrtc
@pytest.mark.parametrize("source", SOURCES)
def test_the_compiler_makes_of_a_source_what_is_said_of_it(source: str) -> None:
    """One test, since to compile one takes seconds."""
    the_table_says_what_the_compiler_says(source)
    ptx = built(source, COMPILED_HERE).ptx
    for stream in (each for each in IN_REGISTERS + VECTORS if each.source == source):
        asks_for_vectors(ptx, stream)
    for stream in (each for each in (*DECODERS, *SUMS, *CASTS) if each.source == source):
        asks_for_all_codes(ptx, stream)
    for kernel in (each for each in ALIGNED if each.source == source):
        accesses_vectors_without_another_look(kernel)
    assert "__local_depot" not in ptx, "an array lies in local memory"
    for stream in (each for each in ASKED_AHEAD if each.source == source):
        asks_for_the_next_block_before_it_writes_this_one(ptx, stream)


def the_table_says_what_the_compiler_says(source: str) -> None:
    said = {one.name: one for architecture, one in listed(page()) if architecture == COMPILED_HERE}
    found = [one._replace(name=f"{source}: {one.name}") for one in needs(source, COMPILED_HERE)]
    assert found
    assert [said.get(one.name) for one in found] == found, "run python tests/cuda_registers.py"
    spills = called_spills(source, COMPILED_HERE)
    told = {
        name: n for architecture, name, n in listed_spills(page()) if architecture == COMPILED_HERE
    }
    assert {f"{source}: {name}": n for name, n in spills.items()} == {
        name: n for name, n in told.items() if name.startswith(f"{source}: ")
    }, "run python tests/cuda_registers.py"


def asks_for_vectors(ptx: str, stream: Stream) -> None:
    """What a thread asks for at once is asked for by vectors."""
    assert max(vector_runs(ptx, stream.name)) == stream.asked_bytes, stream.name


def accesses_vectors_without_another_look(kernel: Vectors) -> None:
    """What remains once no other instantiation may access a vector."""
    text = source_text(kernel.source).replace("(EVEN || is_aligned(", "(EVEN && is_aligned(")
    virtual = COMPILED_HERE.replace("sm", "compute")  # what counts is in the PTX
    found = body(nvrtc.compiled(text, virtual, OPTIONS).ptx, kernel.name)
    loads = re.findall(r"ld\.global(?:\.nc)?\.v[24]\.", found)
    stores = re.findall(r"st\.global\.v[24]\.", found)
    assert (len(loads), len(stores)) == (kernel.loads, kernel.stores), kernel.name


def asks_for_all_codes(ptx: str, stream: Stream) -> None:
    """The words of codes, and what they are added to, are asked for before any is used."""
    most = max(vector_runs(ptx, stream.name, codes=True))
    if stream in SUMS:
        assert most == SUMS[stream], stream.name
    elif stream in DECODERS:
        assert most - stream.asked_bytes in (0, 4), stream.name  # signs' scale is read as a word
    else:
        assert most >= stream.asked_bytes, stream.name


def asks_for_the_next_block_before_it_writes_this_one(ptx: str, stream: Stream) -> None:
    text = body(ptx, stream.name)
    loads = [found.start() for found in re.finditer(r"ld\.global(\.nc)?\.v4", text)]
    first_store = text.index("st.global")
    iterations = sum(load < first_store for load in loads) * 16 // stream.asked_bytes
    assert iterations == 2, stream.name


@pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: f"{stream.source}-{stream.name}")
def test_streams_keep_as_much_under_way_as_memory_needs(stream: Stream) -> None:
    """What spills, takes more registers or asks for less in advance falls below it."""
    name = f"{stream.source}: {stream.name}"
    found = {where: one.warps for where, one in listed(page()) if one.name == name}
    assert set(found) == set(ARCHITECTURES)
    for architecture, warps in found.items():
        assert under_way(stream, warps) >= stream.needed_bytes, architecture
    kib = f"| {name} | {stream.asked_bytes} | {stream.needed_bytes / 1024:.1f} |"
    assert kib in page(), "run python tests/cuda_registers.py"


@pytest.mark.parametrize(
    ("registers", "shared_bytes", "architecture", "warps"),
    [
        (32, 0, "sm_90", 64),
        (32, 0, "sm_120", 48),
        (33, 0, "sm_90", 48),  # registers are given out by eight for a thread
        (64, 8192, "sm_90", 32),
        (65, 8192, "sm_90", 24),
        (40, 32768, "sm_120", 24),  # three times 33 KiB of 100
        (40, 32768, "sm_80", 32),
        (255, 0, "sm_90", 8),
    ],
)
def test_registers_and_shared_memory_bound_the_warps_of_a_multiprocessor(
    registers: int, shared_bytes: int, architecture: str, warps: int
) -> None:
    assert resident_warps(registers, shared_bytes, architecture) == warps


@needs_nvrtc
@pytest.mark.parametrize("architecture", ["sm_80", "sm_120"])
def test_machine_code_names_the_kernels_that_are_loaded(architecture: str) -> None:
    code = built("topk", architecture).code
    names = {found.decode() for found in _KERNEL.findall(code)}
    assert names == {one.name for one in needs("topk", architecture)}


@needs_nvrtc
def test_what_does_not_compile_says_why() -> None:
    with pytest.raises(SyntaxError, match=r"identifier .nothing. is undefined"):
        nvrtc.compiled("__global__ void f() { nothing; }", "sm_90", ())


def test_kernels_have_no_assembly_and_no_contraction() -> None:
    assert "--fmad=false" in OPTIONS
    for path in HOME.glob("*.cu*"):
        assert not re.search(r"\basm\b|\b__?f(ma|mul|add)\w*\(", path.read_text()), path.name


def test_a_vector_is_looked_at_only_where_its_launch_is_not_even() -> None:
    for path in HOME.glob("*.cu*"):
        before = re.findall(r"(.{9})is_aligned\([^(),]*\+", path.read_text(), re.DOTALL)
        assert set(before) <= {"(EVEN || "}, path.name


def test_a_source_holds_each_of_its_headers_once() -> None:
    for source in SOURCES:
        text = source_text(source)
        assert "#include" not in text
        assert text.count("constexpr int WARP ") <= 1


def test_sources_stay_readable() -> None:
    for path in [*HOME.glob("*.cu*"), HEADER]:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 400, path.name
        assert lines[0].startswith("// "), path.name
        assert [line for line in lines if len(line) > 100] == [], path.name
