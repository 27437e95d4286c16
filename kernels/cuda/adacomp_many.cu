// The kernels of adacomp.cu, each for the arguments of several launches; see _many.cuh.

#include "_many.cuh"

#include "adacomp.cu"
