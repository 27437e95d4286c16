// The kernels of natural_dithering.cu, each for the arguments of several launches; see _many.cuh.

#include "_many.cuh"

#include "natural_dithering.cu"
