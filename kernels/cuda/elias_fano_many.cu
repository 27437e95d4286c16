// The kernels of elias_fano.cu, each for the arguments of several launches; see _many.cuh.

#include "_many.cuh"

#include "elias_fano.cu"
