"""C++ operators for CPUs, built where there is a compiler. Everything works without them, but more slowly."""
