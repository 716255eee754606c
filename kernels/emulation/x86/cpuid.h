// A processor that says it has every instruction the levels use, and a system that permits the tiles: see immintrin.h.
#pragma once
#include <unistd.h>

#define __builtin_cpu_supports(feature) 1
#define syscall emulated_syscall

static inline long emulated_syscall(long, long, long) { return 0; }

static inline int __get_cpuid_count(unsigned, unsigned, unsigned* a, unsigned* b, unsigned* c, unsigned* d) {
  *a = *b = *c = *d = ~0u;
  return 1;
}
