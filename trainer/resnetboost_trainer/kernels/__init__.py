"""C++ operators for CPUs, built where there is a compiler. Without them everything works, but slower."""
