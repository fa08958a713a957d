// Compiles a function once per vector width; the loader selects the version for the CPU.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define VECTORIZED __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define VECTORIZED
#endif
