"""The kernels for NVIDIA GPUs, in CUDA C++; see :mod:`compressa.kernels.cuda._device`."""
