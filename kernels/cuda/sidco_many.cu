// The kernels of sidco.cu, each for the arguments of several launches; see _many.cuh.

#include "_many.cuh"

#include "sidco.cu"
