// How loops over numbers are compiled: for each width of vectors, chosen when the library is loaded.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
#define VECTORIZED __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define VECTORIZED
#endif
