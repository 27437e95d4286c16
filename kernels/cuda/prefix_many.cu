// The kernels of prefix.cu, each for the arguments of several launches; see _many.cuh.

#include "_many.cuh"

#include "prefix.cu"
