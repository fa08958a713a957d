"""C++ operators for CPUs, built where a compiler is. Everything works without them, more slowly."""
