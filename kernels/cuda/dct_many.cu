// The kernels of dct.cu, each for the arguments of several launches; see _many.cuh.

#include "_many.cuh"

#include "dct.cu"
