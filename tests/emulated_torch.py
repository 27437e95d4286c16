"""CUDA tensors, streams and events for torch where there is no GPU; as late as they may be.

A `CudaTensor` lies in the CPU's memory and says that a GPU has it. What is done to it goes to the
stream that is current, and is done only when somebody waits for it: then what the streams, their
events and the waits between them demand is done, and no more. So work that reads before its
memory is written, because a wait is missing, finds what was there before; and with
`eager=True` for some streams, so does work that is overtaken. Memory that is let go is somebody
else's at once, as far as torch's pools allow; see `emulated_memory`. What mixes devices is refused,
as is what torch would refuse of a tensor on a GPU.

`emulated_torch` patches torch's names for a test, and has kernels run by `Emulated` on the same
streams.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import numpy as np
import torch
from compressa.kernels.cuda._device import Argument, Launch, running_on
from compressa.kernels.device_array import DeviceArray
from emulated_cuda import Emulated, bytes_of
from emulated_memory import alias, allocated, forget, take_back, used_by
from emulated_streams import (
    DEVICE,
    Emulation,
    Event,
    Stream,
    current_stream,
    relax,
    set_stream,
    stream_context,
    stream_of,
)

from compressa.transports import gpu_threads

RELAXED = 2
_FACTORIES = ("empty", "zeros", "ones", "full", "tensor", "arange", "randn", "empty_strided")
_VIEWS = {
    *("__getitem__", "view", "split", "as_strided", "reshape", "flatten", "unsqueeze", "squeeze"),
    *("detach", "view_as", "T", "t", "narrow", "unbind", "chunk", "expand"),
}
_WAITS = {"item", "tolist", "__bool__", "__float__", "__int__", "cpu", "equal", "masked_select"}
_WAITS |= {"nonzero", "__repr__", "allclose", "is_nonzero", "__contains__", "__format__"}
_FACTS = {"data_ptr", "numel", "dim", "size", "stride", "is_contiguous", "storage_offset"}
_FACTS |= {"is_conj", "is_neg"}
_FACTS |= {"element_size", "is_floating_point", "__len__", "__hash__", "type", "untyped_storage"}
_MIXES = {"copy_", "to", "cpu", "cuda"}


class CudaTensor(torch.Tensor):
    """A tensor that says it is on a GPU."""

    @property
    def is_cuda(self) -> bool:
        return True

    @property
    def device(self) -> torch.device:
        return DEVICE

    def get_device(self) -> int:
        return 0

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy; use Tensor.cpu() first")

    def __array__(self, *args: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy; use Tensor.cpu() first")

    def record_stream(self, stream: Stream) -> None:
        assert isinstance(stream, Stream)
        used_by(_plain(self), stream)

    def __deepcopy__(self, memo: Any) -> CudaTensor:
        return self.clone()

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "__get__":  # of an attribute
            name = getattr(getattr(func, "__self__", None), "__name__", "")
            if name not in _VIEWS:
                return _plain_call(func, args, kwargs)
        if name in _FACTS:
            return _plain_call(func, args, kwargs)
        if name == "contiguous" and _plain_call(torch.Tensor.is_contiguous, args, {}):
            return args[0]
        if name not in _MIXES:
            _check_devices(name, args, kwargs)
        if name in _VIEWS:
            return _wrapped(_plain_call(func, args, kwargs))
        if name in _MIXES:
            return _moved(func, name, args, kwargs)
        if name in _WAITS or _masks(name, args):
            current_stream().synchronize()
            return _wrapped(_plain_call(func, args, kwargs))
        return _enqueued(func, name, args, kwargs)


def on_gpu(x: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor as the emulated GPU has it."""
    values = x.detach().clone()
    return as_cuda(allocated(values).copy_(values))


def on_cpu(x: torch.Tensor, *, share: bool = False) -> torch.Tensor:
    """Return what an emulated tensor holds now, without any wait; or an alias of its memory."""
    with torch._C.DisableTorchFunctionSubclass():
        inner = x.as_subclass(torch.Tensor)
        return alias(inner) if share else inner.clone()


def as_cuda(x: torch.Tensor) -> CudaTensor:
    """Return the same memory as if a GPU had it."""
    with torch._C.DisableTorchFunctionSubclass():
        return x.as_subclass(CudaTensor)


def _mapped(change: Callable[[Any], Any], x: Any) -> Any:
    """Change all leaves of arguments or results. torch's own `tree_map` takes ten times as long."""
    if isinstance(x, tuple | list):
        return type(x)([_mapped(change, inner) for inner in x])
    if isinstance(x, dict):
        return {key: _mapped(change, inner) for key, inner in x.items()}
    return change(x)


def _leaves(x: Any) -> Iterator[Any]:
    if isinstance(x, tuple | list | dict):
        for inner in x.values() if isinstance(x, dict) else x:
            yield from _leaves(inner)
    else:
        yield x


def _copy_all(targets: Any, sources: Any) -> None:
    for target, source in zip(_leaves(targets), _leaves(sources), strict=True):
        target.copy_(source)


def _plain(x: Any) -> Any:
    return x.as_subclass(torch.Tensor) if isinstance(x, CudaTensor) else x


def _alias(x: Any) -> Any:
    return alias(x.as_subclass(torch.Tensor)) if isinstance(x, CudaTensor) else x


def _plain_call(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return func(*_mapped(_plain, args), **_mapped(_plain, kwargs))


def _wrapped(result: Any) -> Any:
    return _mapped(lambda x: as_cuda(x) if type(x) is torch.Tensor else x, result)


def _check_devices(name: str, args: Any, kwargs: Any) -> None:
    tensors = [x for x in _leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    foreign = [x for x in tensors if not isinstance(x, CudaTensor)]
    if any(type(x) is torch.Tensor and (x.dim() or name.endswith("out")) for x in foreign):
        raise RuntimeError(f"{name}: Expected all tensors to be on the same device: cuda:0 and cpu")


def _masks(name: str, args: Any) -> bool:
    """Whether a call's result is as long as the data says."""
    return name == "__getitem__" and any(
        isinstance(x, torch.Tensor) and x.dtype is torch.bool for x in _leaves(args[1:])
    )


def _moved(func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """Copies between devices: in order; into memory that is not pinned, the host waits."""
    if name == "copy_":
        target, source, *rest = args
        lazily = bool(kwargs.pop("non_blocking", rest and rest[0]))
        inner = _alias(target), _alias(source)
        of_host = isinstance(source, torch.Tensor) and not isinstance(source, CudaTensor)
        if of_host and not (lazily and _pinned(source)):
            inner = inner[0], source.clone()  # the driver keeps a copy of so little
        current_stream().give(lambda: inner[0].copy_(inner[1]))
        if not isinstance(target, CudaTensor) and not (lazily and _pinned(target)):
            current_stream().synchronize()
        return target
    where = kwargs.get("device", args[1] if len(args) > 1 else None)
    if name == "cpu" or (isinstance(where, str | torch.device) and "cpu" in str(where)):
        current_stream().synchronize()
        return _plain(args[0]).clone()
    return _enqueued(func, name, *_without_device(args, kwargs))


def _without_device(args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    kwargs = {key: value for key, value in kwargs.items() if key != "device"}
    return tuple(x for x in args if not isinstance(x, torch.device | str)), kwargs


def _enqueued(func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """Give a call to the stream; what it returns has its shape now, and its values later."""
    take_back()
    kwargs.pop("device", None)
    inner_args, inner_kwargs = _mapped(_alias, args), _mapped(_alias, kwargs)

    def call() -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*inner_args, **inner_kwargs)

    if name in ("new_empty", "empty_like"):
        return as_cuda(allocated(call()))
    in_place = name.endswith("_") and not name.endswith("__")
    if in_place or name in ("__setitem__", "__iadd__", "__imul__", "__isub__", "__idiv__"):
        current_stream().give(call)
        return args[0]
    if kwargs.get("out") is not None:
        current_stream().give(call)
        return kwargs["out"]
    shapes = _mapped(lambda x: x.to("meta") if type(x) is torch.Tensor else x, inner_args)
    others = _mapped(lambda x: x.to("meta") if type(x) is torch.Tensor else x, inner_kwargs)
    with torch._C.DisableTorchFunctionSubclass():
        like = func(*shapes, **others)
    known = all(isinstance(x, torch.Tensor) for x in _leaves(like))
    assert known, f"{name} is neither known to wait nor not to"
    results = _mapped(lambda x: allocated(torch.empty(x.shape, dtype=x.dtype)), like)
    there = _mapped(alias, results)
    current_stream().give(lambda: _copy_all(there, call()))
    return _mapped(as_cuda, results)


_pinned_storages: set[int] = set()


def _pinned(x: torch.Tensor) -> bool:
    return not x.numel() or x.untyped_storage().data_ptr() in _pinned_storages


def _factory(make: Any) -> Any:
    """A function of torch that makes tensors, on the emulated GPU too."""

    def made(*args: Any, **kwargs: Any) -> Any:
        pinned = kwargs.pop("pin_memory", False)
        where = kwargs.get("device")
        if where is None or torch.device(where).type != "cuda":
            x = make(*args, **kwargs)
            if pinned and x.numel():
                _pinned_storages.add(x.untyped_storage().data_ptr())
            return x
        values = make(*args, **{**kwargs, "device": "cpu"})
        x = allocated(values)
        there = alias(x)
        if make.__name__ == "tensor":  # torch waits for this copy
            there.copy_(values)
        elif not make.__name__.startswith("empty"):
            current_stream().give(lambda: there.copy_(values))
        return as_cuda(x)

    return made


class StreamedEmulated(Emulated):
    """Runs kernels on the stream that is current."""

    def launch(self, source: str, name: str, blocks: int, arguments: tuple[Argument, ...]) -> None:
        take_back()
        launch, given = super().launch, tuple(map(bytes_of, arguments))
        current_stream().give(lambda: launch(source, name, blocks, given))

    def graph(self, launches: Sequence[Launch]) -> Callable[[], None]:
        """A stream takes all as one piece of work."""
        launch = super().launch
        captured = [each._replace(arguments=(*map(bytes_of, each.arguments),)) for each in launches]

        def replay() -> None:
            take_back()
            current_stream().give(lambda: [launch(*each) for each in captured])

        return replay

    def empty(self, elems: int, dtype: Any) -> Any:
        kind = np.dtype(dtype)
        memory = allocated(torch.empty(max(elems * kind.itemsize, 1), dtype=torch.uint8))
        return DeviceArray(memory.data_ptr(), elems, kind, memory)

    def read(self, array: Any) -> int:
        current_stream().synchronize()
        return super().read(array)


class Driver:
    """CUDA's, as much of it as is called."""

    @staticmethod
    def cuThreadExchangeStreamCaptureMode(mode: Any) -> int:  # noqa: N802
        assert mode._obj.value == RELAXED
        relax()
        return 0

    @staticmethod
    def cuLaunchHostFunc(  # noqa: N802
        stream: ctypes.c_void_p, function: ctypes.c_void_p, argument: ctypes.c_void_p
    ) -> int:
        assert stream.value is not None
        assert function.value is not None
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function.value)
        stream_of(stream.value).give(lambda: call(argument))
        return 0


@contextmanager
def emulated_torch(seed: int | None = None) -> Iterator[None]:
    """Give torch a GPU for a while.

    Args:
        seed: Which streams are eager, at random; None for none.
    """
    Emulation.eager = None if seed is None else random.Random(seed)
    Emulation.default = Stream(eager=False)
    names = {
        "Stream": Stream,
        "Event": Event,
        "current_stream": current_stream,
        "set_stream": set_stream,
        "stream": stream_context,
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "set_device": lambda device: None,
        "device": lambda device: nullcontext(),
        "is_current_stream_capturing": lambda: Emulation.captured is current_stream(),
        "synchronize": lambda device=None: Emulation.default.synchronize(),
    }
    with ExitStack() as patched:
        for name in _FACTORIES:
            patched.enter_context(mock.patch.object(torch, name, _factory(getattr(torch, name))))
        for name, value in names.items():
            patched.enter_context(mock.patch.object(torch.cuda, name, value))
        patched.enter_context(running_on(StreamedEmulated(seed or 0)))
        patched.enter_context(mock.patch.object(gpu_threads, "_driver", Driver))
        try:
            yield
        finally:
            Emulation.default = None
            _pinned_storages.clear()
            forget()
