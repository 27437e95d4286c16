// The kernels of dct_tiles.cu, each for the arguments of several launches; see _many.cuh.

#include "_many.cuh"

#include "dct_tiles.cu"
