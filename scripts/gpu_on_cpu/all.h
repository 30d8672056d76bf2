// What every kernel includes, compiled once.
#pragma once
#include "device.h"
#include <cupy/complex.cuh>
#include <cupy/carray.cuh>
#include <cupy/atomics.cuh>
#include <cupy/math_constants.h>
#include <cupy/float16.cuh>

static unsigned short __half_as_ushort(const half& x) { return __half_raw(x).x; }
static half __ushort_as_half(unsigned short x) { return half(__half_raw{x}); }
