// The kernels of fp8.cu, each for the arguments of several launches; see _many.cuh.

#include "_many.cuh"

#include "fp8.cu"
