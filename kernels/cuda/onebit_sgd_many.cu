// The kernels of onebit_sgd.cu, each for the arguments of several launches; see _many.cuh.

#include "_many.cuh"

#include "onebit_sgd.cu"
